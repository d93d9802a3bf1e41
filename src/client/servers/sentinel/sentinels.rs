//! The sentinels: who is the master?
//!
//! The procedure is that of [Redis's guide for
//! clients](https://redis.io/docs/latest/develop/reference/sentinel-clients/): the sentinels are
//! asked one after the other, each for a short time, and the one that answered is asked first the
//! next time. Whether the answer is right is checked by the role of the server that was named.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::Mutex;
use crate::client::servers::sentinel::epochs::Epochs;
use crate::client::servers::sentinel::named::{
    NamedMaster, read_epoch, read_master, read_others, read_replicas, refused_by,
};
use crate::client::servers::sentinel::poll::{Poll, keep_newer};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::link::{FAIR_TRY, Link};
use crate::client::wire::login::Access;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;
use crate::client::wire::subscription::Subscription;
use crate::client::wire::tls;

/// The longest time that one sentinel gets to answer, unless all are silent for so long. A sentinel
/// is near, and does little.
pub(super) const LONGEST_ASK: Duration = Duration::from_millis(300);

/// The most sentinels that are learnt. (Five are many.)
const MOST: usize = 32;

/// The channel on which a sentinel reports a new master.
const SWITCH: &str = "+switch-master";

/// The channels on which a sentinel reports that a replica was promoted, and a replica that it did
/// not know. The sentinel that leads a failover reports the new master only when all replicas
/// follow it, a second or more after the promotion.
const OTHERS: [&str; 2] = ["+promoted-slave", "+slave"];

/// The value of `replicas` while the number is not known.
const UNKNOWN: u32 = u32::MAX;

pub(crate) struct Sentinels {
    /// The name by which the sentinels know the master.
    name: String,
    /// The one that answered last comes first.
    known: Mutex<Vec<Known>>,
    access: Access,
    tls: Option<tls::Client>,
    /// Whether to ask how many replicas there are.
    counts_replicas: bool,
    replicas: AtomicU32,
    epochs: Mutex<Epochs>,
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
        let replicas = AtomicU32::new(UNKNOWN);
        let epochs = Mutex::default();
        Sentinels {
            name,
            known,
            access,
            tls,
            counts_replicas,
            replicas,
            epochs,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The addresses of the sentinels, for messages.
    pub(crate) fn addresses(&self) -> String {
        self.known
            .lock()
            .iter()
            .map(|it| it.endpoint.name())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// How many replicas the master has, also those that are down. `None` if the sentinels have not
    /// said so.
    pub(crate) fn replicas(&self) -> Option<u32> {
        Some(self.replicas.load(Ordering::Relaxed)).filter(|replicas| *replicas != UNKNOWN)
    }

    /// Asks who is the master.
    ///
    /// An answer that is out of date does not count, and the next sentinel is asked. If all have
    /// answered, and none knows better, the sentinels were set up anew. The same is assumed if some
    /// cannot be asked, and nobody has shown the newer epoch for long.
    pub(crate) fn master(&self, deadline: Moment) -> Result<NamedMaster, Failure> {
        self.first_named(deadline, Sentinels::ask)
    }

    /// Asks all sentinels who is the master, and believes the newest epoch. (A sentinel that does
    /// not show its epoch counts less than each one that does and is not out of date.)
    pub(crate) fn newest_master(&self, deadline: Moment) -> Result<NamedMaster, Failure> {
        self.newest_named(deadline, Sentinels::ask)
    }

    fn first_named(
        &self,
        deadline: Moment,
        ask: impl Fn(&Self, &Arc<Endpoint>, Moment) -> Result<Option<NamedMaster>, Failure>,
    ) -> Result<NamedMaster, Failure> {
        let mut poll = Poll::new(&self.epochs);
        let first = self.first_answer(deadline, |sentinel, limit| {
            poll.hear(ask(self, sentinel, limit))
        });
        Ok(self.note_replicas(poll.believe(first)?))
    }

    fn newest_named(
        &self,
        deadline: Moment,
        ask: impl Fn(&Self, &Arc<Endpoint>, Moment) -> Result<Option<NamedMaster>, Failure>,
    ) -> Result<NamedMaster, Failure> {
        let mut poll = Poll::new(&self.epochs);
        let mut newest = None;
        let none = self.first_answer(deadline, |sentinel, limit| {
            if let Some(named) = poll.hear(ask(self, sentinel, limit))? {
                keep_newer(&mut newest, named);
            }
            Ok(None) // The next sentinel may know better.
        });
        let named = poll.believe(newest.map_or(none, Ok))?;
        // A sentinel that does not show its epoch may name another master, and must not be asked
        // first by the next connection.
        self.prefer(&named.sentinel);
        Ok(self.note_replicas(named))
    }

    fn note_replicas(&self, named: NamedMaster) -> NamedMaster {
        if let Some(replicas) = named.replicas {
            self.replicas.store(replicas, Ordering::Relaxed);
        }
        named
    }

    /// Notes that this is not the master any more: answers from before that are out of date.
    pub(crate) fn leave(&self, master: &str) {
        self.epochs.lock().leave(master);
    }

    /// Asks one sentinel. `None` if it does not know the name.
    fn ask(
        &self,
        sentinel: &Arc<Endpoint>,
        deadline: Moment,
    ) -> Result<Option<NamedMaster>, Failure> {
        let questions: [&[&str]; 3] = [
            &["SENTINEL", "get-master-addr-by-name", &self.name],
            &["SENTINEL", "sentinels", &self.name],
            &["SENTINEL", "master", &self.name],
        ];
        let (_, replies) = self.open(sentinel, &questions, deadline)?;
        let mut replies = replies.into_iter();
        let Some(place) = read_master(replies.next().unwrap_or(Reply::Nil))? else {
            return Ok(None);
        };
        self.learn(sentinel, replies.next());
        let master = replies.next().unwrap_or(Reply::Nil);
        let epoch = read_epoch(&master);
        // Without the number of replicas, nobody would know when all of them have a lock.
        let replicas = self
            .counts_replicas
            .then(|| read_replicas(master))
            .transpose()?;
        Ok(Some(NamedMaster {
            place,
            sentinel: Arc::clone(sentinel),
            epoch,
            replicas,
        }))
    }

    /// Subscribes at a sentinel to its reports: of a new master, of a promotion, of a new replica.
    /// Also returns the sentinel.
    pub(crate) fn subscribe(
        &self,
        deadline: Moment,
    ) -> Result<(Subscription, Arc<Endpoint>), Failure> {
        self.first_answer(deadline, |sentinel, limit| {
            let (link, _) = self.open(sentinel, &[], limit)?;
            Ok(Some((
                Subscription::open(link, SWITCH, &OTHERS, limit)?,
                Arc::clone(sentinel),
            )))
        })
    }

    /// Asks this sentinel first from now on, and those that came before it last.
    pub(crate) fn prefer(&self, sentinel: &Arc<Endpoint>) {
        to_front(&mut self.known.lock(), sentinel);
    }

    /// Prefers this sentinel, unless another one than `first` has come to the front. That one may
    /// have reported a switch that this one has not heard of. Preferring this one would lead back
    /// to the old master where the sentinels do not show their epoch.
    fn prefer_if_first_is(&self, first: &Arc<Endpoint>, sentinel: &Arc<Endpoint>) {
        let mut known = self.known.lock();
        if Arc::ptr_eq(&known[0].endpoint, first) {
            to_front(&mut known, sentinel);
        }
    }

    /// Asks this sentinel last from now on: the server that it named could not be used.
    pub(crate) fn doubt(&self, sentinel: &Arc<Endpoint>) {
        self.epochs.lock().may_return();
        let mut known = self.known.lock();
        if let Some(at) = known
            .iter()
            .position(|it| Arc::ptr_eq(&it.endpoint, sentinel))
        {
            known[at..].rotate_left(1);
        }
    }

    /// Asks one sentinel after the other until one can answer, and prefers that one from then on.
    /// Each gets half of the time that is left: the rest is for the others and for the master. If
    /// all are silent for [`LONGEST_ASK`], they may be far away, and are asked once more without
    /// it.
    fn first_answer<T>(
        &self,
        deadline: Moment,
        mut ask: impl FnMut(&Arc<Endpoint>, Moment) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let known = self.all();
        let mut outage = None;
        let mut refusal = None;
        let mut all_silent = true;
        for longest in [LONGEST_ASK, Duration::MAX] {
            for sentinel in &known {
                let now = Moment::now();
                let limit = (deadline.since(now) / 2).min(longest);
                if limit.is_zero() {
                    let cause = "no time was left to ask more sentinels".into();
                    outage.get_or_insert((sentinel, Failure::OutOfTime(cause)));
                    break;
                }
                let until = now.after(limit);
                let answer = ask(sentinel, until);
                all_silent &= until <= Moment::now();
                match answer {
                    Ok(Some(answer)) => {
                        self.prefer_if_first_is(&known[0], sentinel);
                        return Ok(answer);
                    }
                    Ok(None) => {}
                    // With more time, the sentinel might have answered.
                    Err(Failure::NotSent(cause)) if limit < FAIR_TRY => {
                        outage.get_or_insert((sentinel, Failure::OutOfTime(cause)));
                    }
                    Err(failure) if failure.can_pass() => {
                        outage.get_or_insert((sentinel, failure));
                    }
                    Err(failure) => _ = refusal.get_or_insert((sentinel, failure)),
                }
            }
            if !all_silent {
                break;
            }
        }
        Err(self.no_answer(outage, refusal))
    }

    /// Why no sentinel has answered: the first that is away, or else the first that has refused.
    fn no_answer(
        &self,
        outage: Option<(&Arc<Endpoint>, Failure)>,
        refusal: Option<(&Arc<Endpoint>, Failure)>,
    ) -> Failure {
        match (outage, refusal) {
            (Some((sentinel, failure)), _) => {
                let name = sentinel.name();
                let why = failure.text();
                let cause =
                    io::Error::other(format!("no sentinel reachable ({name}: {why})")).into();
                match failure {
                    Failure::OutOfTime(_) => Failure::OutOfTime(cause),
                    _ => Failure::NotSent(cause),
                }
            }
            (None, Some((sentinel, failure))) => refused_by(sentinel, failure),
            (None, None) => {
                let name = &self.name;
                let asked = self.addresses();
                let message = format!("no sentinel knows a master named {name:?} (asked {asked})");
                Failure::Refused(Refusal::found("", message))
            }
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Endpoint>> {
        let known = self.known.lock();
        known.iter().map(|it| Arc::clone(&it.endpoint)).collect()
    }

    pub(super) fn open(
        &self,
        sentinel: &Endpoint,
        first: &[&[&str]],
        deadline: Moment,
    ) -> Result<(Link, Vec<Reply>), Failure> {
        self.access
            .open(sentinel, &sentinel.ways()?, first, deadline, |_| Ok(()))
    }

    /// Learns the sentinels that this one knows, and forgets those that are neither among them nor
    /// in the URL: where sentinels change their addresses, the list would grow, and the time for
    /// each would shrink.
    fn learn(&self, sentinel: &Arc<Endpoint>, others: Option<Reply>) {
        let Some(Reply::Array(others)) = others else {
            return;
        };
        let named: Vec<_> = read_others(&others).take(MOST).collect();
        let mut known = self.known.lock();
        known.retain(|it| {
            let is_named = || {
                named
                    .iter()
                    .any(|place| place.to_string() == it.endpoint.name())
            };
            it.is_in_url || Arc::ptr_eq(&it.endpoint, sentinel) || is_named()
        });
        for place in named {
            if !known
                .iter()
                .any(|it| it.endpoint.name() == place.to_string())
            {
                let endpoint = Arc::new(Endpoint::new(place, self.tls.clone()));
                known.push(Known {
                    endpoint,
                    is_in_url: false,
                });
            }
        }
    }
}

/// Has this sentinel asked first, and those that came before it last.
fn to_front(known: &mut [Known], sentinel: &Arc<Endpoint>) {
    if let Some(at) = known
        .iter()
        .position(|it| Arc::ptr_eq(&it.endpoint, sentinel))
    {
        known.rotate_left(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::wire::login::Expected;

    const LONG: Duration = Duration::from_secs(60);

    fn sentinels() -> Sentinels {
        let hosts = [1, 2, 3].map(place);
        let access = Access::new(None, 0, Expected::Sentinel);
        Sentinels::new("mymaster".to_owned(), hosts, access, None, false)
    }

    fn place(port: u16) -> Place {
        Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        }
    }

    fn answer(sentinel: &Arc<Endpoint>, port: u16, epoch: Option<u64>) -> NamedMaster {
        NamedMaster {
            place: place(port),
            sentinel: Arc::clone(sentinel),
            epoch,
            replicas: None,
        }
    }

    #[test]
    fn of_all_sentinels_the_newest_epoch_counts_and_none_only_if_nobody_shows_one() {
        let newest = |answers: [(u16, Option<u64>); 3]| {
            let sentinels = sentinels();
            let ask = |_: &Sentinels, sentinel: &Arc<Endpoint>, _| {
                let at = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
                    .iter()
                    .position(|it| *it == sentinel.name());
                let (port, epoch) = answers[at.unwrap()];
                Ok(Some(answer(sentinel, port, epoch)))
            };
            let named = sentinels
                .newest_named(Moment::now().after(LONG), ask)
                .unwrap();
            let first = Arc::clone(&sentinels.known.lock()[0].endpoint);
            assert!(
                Arc::ptr_eq(&first, &named.sentinel),
                "another one is asked first by the next connection"
            );
            named.place.to_string()
        };
        assert_eq!(
            newest([(7001, Some(3)), (7002, None), (7002, Some(4))]),
            "127.0.0.1:7002"
        );
        assert_eq!(
            newest([(7003, None), (7001, Some(3)), (7002, Some(4))]),
            "127.0.0.1:7002"
        );
        assert_eq!(
            newest([(7001, None), (7002, None), (7002, None)]),
            "127.0.0.1:7001"
        );
    }

    /// The process was stopped while it waited for the first answer, which is out of date.
    #[test]
    fn sentinels_that_nobody_had_the_time_to_ask_have_not_confirmed_an_old_epoch() {
        let sentinels = sentinels();
        let deadline = Moment::now().after(Duration::from_millis(20));
        sentinels.epochs.lock().note(Some(4), Moment::now());
        let ask = |_: &Sentinels, sentinel: &Arc<Endpoint>, _| {
            while Moment::now() < deadline {
                std::thread::yield_now();
            }
            Ok(Some(answer(sentinel, 7001, Some(3))))
        };
        let asked = sentinels.first_named(deadline, ask);
        assert!(matches!(asked, Err(Failure::OutOfTime(_))));
        assert!(
            sentinels
                .epochs
                .lock()
                .is_outdated("127.0.0.1:7001", Some(3))
        );
        // If all of them have answered, they were set up anew.
        let ask =
            |_: &Sentinels, sentinel: &Arc<Endpoint>, _| Ok(Some(answer(sentinel, 7001, Some(3))));
        let asked = sentinels.first_named(Moment::now().after(LONG), ask);
        assert_eq!(asked.unwrap().place.to_string(), "127.0.0.1:7001");
    }

    /// The addresses of all sentinels are in an error.
    #[test]
    fn a_sentinel_that_has_no_host_is_not_learnt() {
        let sentinels = sentinels();
        let first = Arc::clone(&sentinels.known.lock()[0].endpoint);
        let text = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        let other = |host| Reply::Array(vec![text("ip"), text(host), text("port"), text("26379")]);
        let hosts = ["a\nERROR", "a\u{1b}[2J", "", "sentinel-4"];
        sentinels.learn(&first, Some(Reply::Array(hosts.map(other).into())));
        assert_eq!(
            sentinels.addresses(),
            "127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3, sentinel-4:26379"
        );
    }
}
