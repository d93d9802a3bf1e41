//! The TLS settings that a program can choose.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::Client;
use crate::base::error::Error;

/// How connections use TLS: which servers they trust, and how they identify this program. For
/// [`Builder::tls`](crate::Builder::tls).
///
/// Without any setting, connections trust what the system trusts, and the certificate has to name
/// the host in the URL. Certificates and keys are text in PEM form. The manager reads all of this
/// once, when it is built.
///
/// This type exists with the feature `tls`, which brings *ring*'s cryptography, and with the
/// feature `tls-no-provider`, which leaves the choice to the program: see
/// [`provider`](Tls::provider).
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = relatch::Tls::new().roots(std::fs::read("/etc/redis/ca.pem")?);
/// let locks = relatch::LockManager::builder("rediss://redis.internal/").tls(tls).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "settings do nothing until a builder has them"]
pub struct Tls {
    config: Option<Arc<ClientConfig>>,
    roots: Option<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
    provider: Option<Arc<CryptoProvider>>,
}

/// What is wrong with the settings: the value, if it may be shown, and the reason.
type Bad = (Option<String>, &'static str);

impl Tls {
    /// Every setting at its default.
    ///
    /// ```
    /// let builder = relatch::LockManager::builder("rediss://redis.internal/");
    /// let builder = builder.tls(relatch::Tls::new());
    /// # drop(builder);
    /// ```
    pub fn new() -> Tls {
        Tls::default()
    }

    /// A rustls (0.23) configuration, used as it is. Only [`server_name`](Tls::server_name) can be
    /// set along with it.
    ///
    /// ```
    /// # #[cfg(feature = "tls")] {
    /// # use std::sync::Arc;
    /// let ring = Arc::new(rustls::crypto::ring::default_provider());
    /// let config = rustls::ClientConfig::builder_with_provider(ring)
    ///     .with_safe_default_protocol_versions()
    ///     .expect("it supports TLS 1.3")
    ///     .with_root_certificates(rustls::RootCertStore::empty())
    ///     .with_no_client_auth();
    /// let tls = relatch::Tls::from_config(Arc::new(config));
    /// # drop(tls); }
    /// ```
    pub fn from_config(config: Arc<ClientConfig>) -> Tls {
        Tls {
            config: Some(config),
            ..Tls::default()
        }
    }

    /// The certificates of the authorities to trust, in PEM form. Defaults to those that the system
    /// trusts. (On Android, the crate `rustls-platform-verifier` has to be initialized for that.)
    ///
    /// They replace the system's. To trust a single certificate, give that certificate, which must
    /// then not be an authority's.
    ///
    /// ```
    /// # let pem = "-----BEGIN CERTIFICATE-----";
    /// let tls = relatch::Tls::new().roots(pem); // the text of a file
    /// # drop(tls);
    /// ```
    pub fn roots(mut self, pem: impl Into<Vec<u8>>) -> Tls {
        self.roots = Some(pem.into());
        self
    }

    /// The certificate that this program shows to the server, followed by those of its issuers, and
    /// the private key, both in PEM form. Defaults to none.
    ///
    /// Redis asks for a certificate unless `tls-auth-clients` is `no`.
    ///
    /// ```
    /// # let pem = "-----BEGIN CERTIFICATE-----";
    /// # let key = pem;
    /// let tls = relatch::Tls::new().client_certificate(pem, key);
    /// # drop(tls);
    /// ```
    pub fn client_certificate(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        self.certificate = Some((chain.into(), key.into()));
        self
    }

    /// The name that the server's certificate must have. Defaults to the host of the URL.
    ///
    /// This is for a server that is reached at an address that its certificate does not name. With
    /// several servers, all their certificates need this name.
    ///
    /// ```
    /// let tls = relatch::Tls::new().server_name("redis.example.org");
    /// # drop(tls);
    /// ```
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }

    /// The crypto provider for rustls (0.23). Defaults to *ring* with the feature `tls`. With the
    /// feature `tls-no-provider` alone, a provider has to be given here or in
    /// [`from_config`](Tls::from_config). A default provider that the process has installed is not
    /// used.
    ///
    /// ```
    /// # #[cfg(feature = "tls")] {
    /// let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    /// let tls = relatch::Tls::new().provider(ring);
    /// # drop(tls); }
    /// ```
    pub fn provider(mut self, provider: Arc<CryptoProvider>) -> Tls {
        self.provider = Some(provider);
        self
    }

    /// What a connection needs: the ready configuration of `from_config`, or one that is made from
    /// the other settings.
    fn client(self) -> Result<Client, Bad> {
        let name = self.server_name.as_ref().map(|name| {
            let reason = "`server_name` must be a host name or an IP address";
            ServerName::try_from(name.clone()).map_err(|_| (Some(format!("{name:?}")), reason))
        });
        let name = name.transpose()?;
        let has_others =
            self.roots.is_some() || self.certificate.is_some() || self.provider.is_some();
        if self.config.is_some() && has_others {
            let reason = "with `from_config`, only `server_name` can be set";
            return Err((None, reason));
        }
        let config = match self.config {
            Some(ready) => ready,
            None => Arc::new(self.build_config(default_provider())?),
        };
        Ok(Client { config, name })
    }

    fn build_config(self, default: Option<Arc<CryptoProvider>>) -> Result<ClientConfig, Bad> {
        let bad = |reason| (None, reason);
        let Some(provider) = self.provider.or(default) else {
            let reason = "a crypto provider is missing: call `Tls::provider`, or use the feature `tls` of relatch";
            return Err((None, reason));
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| bad("`provider` supports neither TLS 1.2 nor TLS 1.3"))?;
        let builder = if let Some(pem) = &self.roots {
            builder.with_root_certificates(roots_in(pem).map_err(bad)?)
        } else {
            let reason = "the certificates that the system trusts cannot be read: set `roots`";
            let verifier = Verifier::new(provider).map_err(|_| (None, reason))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
        };
        let Some((chain, key)) = &self.certificate else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates_in(chain).ok_or_else(|| {
            bad("the chain of `client_certificate` has to be certificates in PEM form")
        })?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            bad("the key of `client_certificate` has to be a private key in PEM form")
        })?;
        builder.with_client_auth_cert(chain, key).map_err(|_| {
            bad("the key of `client_certificate` does not match the certificate, or is not of a supported kind")
        })
    }
}

impl Client {
    /// Makes the configuration from `tls`, or from the defaults. An error names the `option`.
    pub(crate) fn new(tls: Option<Tls>, option: &'static str) -> Result<Client, Error> {
        let client = tls.unwrap_or_default().client();
        client.map_err(|(value, reason)| Error::InvalidOption {
            option,
            value,
            reason,
        })
    }
}

/// The provider if the program gives none.
#[cfg(feature = "tls")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "without the feature, there is none"
)]
fn default_provider() -> Option<Arc<CryptoProvider>> {
    Some(Arc::new(rustls::crypto::ring::default_provider()))
}

#[cfg(not(feature = "tls"))]
fn default_provider() -> Option<Arc<CryptoProvider>> {
    None
}

fn roots_in(pem: &[u8]) -> Result<RootCertStore, &'static str> {
    let certificates = certificates_in(pem).ok_or("`roots` has to be certificates in PEM form")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|_| "`roots` holds a certificate that cannot be trusted as an authority")?;
    }
    Ok(roots)
}

/// The certificates in a text, which has to have at least one.
fn certificates_in(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    (!certificates.is_empty()).then_some(certificates)
}

/// Shows what is set, but no certificate and no key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("config", &self.config.is_some())
            .field("roots", &self.roots.is_some())
            .field("client_certificate", &self.certificate.is_some())
            .field("server_name", &self.server_name)
            .field("provider", &self.provider.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As with the feature `tls-no-provider` alone.
    #[test]
    fn without_a_provider_there_is_an_error_and_no_panic() {
        let (_, reason) = Tls::new().build_config(None).unwrap_err();
        assert!(reason.contains("`Tls::provider`"), "{reason}");
    }
}
