//! Certificates for TLS, made for one test.

use std::fmt;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// An authority that issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key, in PEM form.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Authority {
    /// Makes a new authority, which nobody trusts yet.
    pub fn new() -> Authority {
        let mut params = params(&[], "an authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Its own certificate, for those who trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for hosts and addresses.
    pub fn issue(&self, names: &[&str]) -> Identity {
        self.sign(&params(names, "a certificate of a test"))
    }

    /// Issues a certificate that has expired.
    pub fn issue_expired(&self, names: &[&str]) -> Identity {
        let mut params = params(names, "an expired certificate");
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

impl Identity {
    /// A certificate that is its own issuer.
    pub fn self_signed(names: &[&str]) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params(names, "a self-signed certificate")
            .self_signed(&key)
            .expect("a certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn params(names: &[&str], title: &str) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name.push(DnType::CommonName, title);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}
