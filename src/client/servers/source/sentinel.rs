//! The master that sentinels name, as a map of one range.
//!
//! The procedure is that of [Redis's guide for
//! clients](https://redis.io/docs/latest/develop/reference/sentinel-clients/): the sentinels are
//! asked one after another, each for a short time, and the one that answered is asked first the
//! next time. The login at the server that was named shows whether the answer is right.

use std::io;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::emit::{info, warn};
use crate::base::sync::Mutex;
use crate::client::servers::source::named::{
    read_epoch, read_master, read_others, read_replicas, refused_by,
};
use crate::client::servers::source::{Limits, News, Source, Subscribed, View};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::login::Access;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;
use crate::client::wire::subscription::Subscription;
use crate::client::wire::tls;

/// The most sentinels that are learnt. (Five are many.)
const MOST: usize = 32;

/// The channel on which a sentinel reports a new master.
const SWITCH: &str = "+switch-master";

/// The channels on which a sentinel reports that a replica was promoted, and a replica that it did
/// not know. The sentinel that leads a failover reports the new master only when all replicas
/// follow it, a second or more after the promotion.
const OTHERS: [&str; 2] = ["+promoted-slave", "+slave"];

pub(crate) struct Sentinels {
    /// The name by which the sentinels know the master.
    name: String,
    access: Access,
    tls: Option<tls::Client>,
    /// Whether to ask how many replicas there are.
    counts_replicas: bool,
    /// The last one to answer comes first.
    known: Mutex<Vec<Known>>,
}

struct Known {
    endpoint: Arc<Endpoint>,
    /// Whether the program named it. (The others are learnt.)
    is_in_url: bool,
}

impl Sentinels {
    pub(crate) fn new(
        name: String,
        hosts: impl IntoIterator<Item = Place>,
        access: Access,
        tls: Option<tls::Client>,
        counts_replicas: bool,
    ) -> Sentinels {
        let known = |place| Known {
            endpoint: Arc::new(Endpoint::new(place, tls.clone())),
            is_in_url: true,
        };
        let known = Mutex::new(hosts.into_iter().map(known).collect());
        Sentinels {
            name,
            access,
            tls,
            counts_replicas,
            known,
        }
    }

    fn all(&self) -> Vec<Arc<Endpoint>> {
        let known = self.known.lock();
        known.iter().map(|it| Arc::clone(&it.endpoint)).collect()
    }

    /// The addresses of the sentinels, for messages.
    fn addresses(&self) -> String {
        let all = self.all();
        let names: Vec<_> = all.iter().map(|it| it.name()).collect();
        names.join(", ")
    }

    /// Learns the sentinels that this one knows, and forgets those that are neither among them nor
    /// in the URL: where sentinels change their addresses, the list would grow, and the time for
    /// each would shrink.
    fn learn(&self, sentinel: &Arc<Endpoint>, others: &Reply) {
        let Reply::Array(others) = others else {
            return;
        };
        let named: Vec<_> = read_others(others).take(MOST).collect();
        let mut known = self.known.lock();
        known.retain(|it| {
            let endpoint = &it.endpoint;
            it.is_in_url || Arc::ptr_eq(endpoint, sentinel) || named.contains(endpoint.place())
        });
        for place in named {
            if !known.iter().any(|it| *it.endpoint.place() == place) {
                let endpoint = Arc::new(Endpoint::new(place, self.tls.clone()));
                known.push(Known {
                    endpoint,
                    is_in_url: false,
                });
            }
        }
    }
}

impl Source for Sentinels {
    fn name(&self, node: Option<&str>) -> String {
        match node {
            Some(node) => format!("{node} ({})", self.name),
            None => format!("{} (sentinels {})", self.name, self.addresses()),
        }
    }

    fn candidates(&self, _: Vec<Arc<Endpoint>>) -> Vec<Arc<Endpoint>> {
        self.all()
    }

    fn ask(&self, sentinel: &Arc<Endpoint>, limits: &Limits<'_>) -> Result<View, Failure> {
        let questions: [&[&str]; 3] = [
            &["SENTINEL", "get-master-addr-by-name", &self.name],
            &["SENTINEL", "sentinels", &self.name],
            &["SENTINEL", "master", &self.name],
        ];
        let asked = self
            .access
            .ask(sentinel, questions, limits.time, limits.connected)?;
        let [master, others, details] = asked;
        let sender = sentinel.place().clone();
        let Some(place) = read_master(master)? else {
            return Ok(View::empty(sender));
        };
        self.learn(sentinel, &others);
        let epoch = read_epoch(&details);
        // Without the number of replicas, nobody would know when all of them have a lock.
        let copies = self
            .counts_replicas
            .then(|| read_replicas(details))
            .transpose()?;
        Ok(View {
            copies,
            epoch,
            ..View::of_one(place, sender)
        })
    }

    /// The first that is away, or else the first that has refused.
    fn explain(&self, failures: Vec<(Arc<Endpoint>, Failure)>) -> Failure {
        if let Some((sentinel, failure)) = failures.iter().find(|(_, it)| it.can_pass()) {
            let (name, why) = (sentinel.name(), failure.text());
            let why = format!("no sentinel reachable ({name}: {why})");
            return Failure::NotSent(io::Error::other(why).into());
        }
        let refused = failures.into_iter().next();
        refused.map_or_else(
            || {
                let (name, asked) = (&self.name, self.addresses());
                let message = format!("no sentinel knows a master named {name:?} (asked {asked})");
                Failure::Refused(Refusal::found("", message))
            },
            |(sentinel, failure)| refused_by(&sentinel, failure),
        )
    }

    fn tell(&self, news: News<'_>) {
        match news {
            News::Moved(_, view) => {
                if let Some(master) = view.only_master() {
                    info!(target: "relatch::sentinel", "the master {:?} is at {master} now", self.name);
                }
            }
            News::Unreported(failure) => {
                let why = failure.text();
                warn!(target: "relatch::sentinel",
                    "no sentinel reports switches, so a switch is noticed when the old master fails, \
                    or after some ten seconds: {why}");
            }
            News::Reported => {
                info!(target: "relatch::sentinel", "a sentinel reports switches again");
            }
            News::Stuck(what) => {
                warn!(target: "relatch::sentinel", "the thread that listens to the sentinels {what}");
            }
            News::Failing(_) | News::Back => {}
        }
    }

    fn is_quick(&self) -> bool {
        true
    }

    /// Subscribes to a new master, a promotion, a new replica.
    fn subscribe(&self, sentinel: &Endpoint, limits: &Limits<'_>) -> Option<Subscribed> {
        let subscribe = || {
            let ways = sentinel.ways()?;
            let deadline = Moment::now().after(limits.time);
            let opened = self
                .access
                .open(sentinel, &ways, &[], deadline, limits.connected)?;
            Subscription::open(opened.0, SWITCH, &OTHERS, deadline)
        };
        Some(subscribe())
    }

    /// Asks this sentinel first from now on, and those that came before it last.
    fn prefer(&self, sentinel: &Place) {
        let mut known = self.known.lock();
        let at = known.iter().position(|it| it.endpoint.place() == sentinel);
        known.rotate_left(at.unwrap_or(0));
    }

    /// True for a switch of this master, or a promoted or new replica of it.
    fn is_change(&self, report: &str) -> bool {
        let words: Vec<_> = report.split(' ').collect();
        match words[..] {
            [name, _, _, _, _] | ["slave", .., name, _, _] => name == self.name,
            _ => false,
        }
    }

    fn thread(&self) -> &'static str {
        "relatch-sentinel"
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::client::wire::login::Expected;

    fn place(port: u16) -> Place {
        Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        }
    }

    fn sentinels() -> Sentinels {
        let access = Access::new(None, 0, Expected::Sentinel);
        Sentinels::new(
            "mymaster".to_owned(),
            [1, 2, 3].map(place),
            access,
            None,
            false,
        )
    }

    /// The addresses of all sentinels are in an error.
    #[test]
    fn a_sentinel_that_has_no_host_is_not_learnt() {
        let sentinels = sentinels();
        let first = Arc::clone(&sentinels.all()[0]);
        let text = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        let other = |host| Reply::Array(vec![text("ip"), text(host), text("port"), text("26379")]);
        let hosts = ["a\nERROR", "a\u{1b}[2J", "", "sentinel-4"];
        sentinels.learn(&first, &Reply::Array(hosts.map(other).into()));
        let addresses = "127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3, sentinel-4:26379";
        assert_eq!(sentinels.addresses(), addresses);
        sentinels.prefer(&place(3));
        let addresses = "127.0.0.1:3, sentinel-4:26379, 127.0.0.1:1, 127.0.0.1:2";
        assert_eq!(sentinels.addresses(), addresses);
        sentinels.learn(&first, &Reply::Array(Vec::new()));
        assert_eq!(sentinels.all().len(), 3);
    }

    #[test]
    fn a_report_of_another_master_or_without_sense_is_none() {
        let is_change = |report: &str| sentinels().is_change(report);
        assert!(is_change("mymaster 127.0.0.1 1 127.0.0.1 2"));
        assert!(is_change(
            "slave 127.0.0.1:2 127.0.0.1 2 @ mymaster 127.0.0.1 1"
        ));
        let others = [
            "",
            "mymaster",
            "mymaster2 a 1 a 2",
            "slave a:2 a 2 @ other a 1",
        ];
        assert!(!others.into_iter().any(is_change));
    }
}
