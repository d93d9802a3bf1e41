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
use crate::client::servers::epochs::Epochs;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::{Failure, check};
use crate::client::wire::link::{FAIR_TRY, Link};
use crate::client::wire::login::Access;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;
use crate::client::wire::subscription::Subscription;
use crate::client::wire::tls;

/// The longest time that one sentinel gets to answer, unless all are silent for so long. A sentinel
/// is near, and does little.
const LONGEST_ASK: Duration = Duration::from_millis(300);

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

/// What a sentinel has answered.
struct Answer {
    place: Place,
    /// The epoch of its configuration. `None` if the right to ask is missing.
    epoch: Option<u64>,
    /// How many replicas there are, if that was asked.
    replicas: Option<u32>,
}

impl Sentinels {
    pub(crate) fn new(
        name: String,
        hosts: impl IntoIterator<Item = (String, u16)>,
        access: Access,
        tls: Option<tls::Client>,
        counts_replicas: bool,
    ) -> Sentinels {
        let known = |(host, port)| {
            let endpoint = Arc::new(Endpoint::new(Place::Tcp { host, port }, tls.clone()));
            Known {
                endpoint,
                is_in_url: true,
            }
        };
        let known = Mutex::new(hosts.into_iter().map(known).collect());
        let (replicas, epochs) = (AtomicU32::new(UNKNOWN), Mutex::default());
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

    /// Asks who is the master. Also returns the sentinel that said so.
    ///
    /// An answer that is out of date does not count, and the next sentinel is asked. If all have
    /// answered, and none knows better, the sentinels were set up anew. The same is assumed if some
    /// cannot be asked, and nobody has shown the newer epoch for long.
    pub(crate) fn master(&self, deadline: Moment) -> Result<(Place, Arc<Endpoint>), Failure> {
        self.ask_for_master(false, deadline, Sentinels::ask)
    }

    /// Asks all sentinels who is the master, and believes the newest epoch. (A sentinel that does
    /// not show its epoch counts less than each one that does and is not out of date.)
    pub(crate) fn newest_master(
        &self,
        deadline: Moment,
    ) -> Result<(Place, Arc<Endpoint>), Failure> {
        self.ask_for_master(true, deadline, Sentinels::ask)
    }

    fn ask_for_master(
        &self,
        all: bool,
        deadline: Moment,
        ask: impl Fn(&Self, &Arc<Endpoint>, Moment) -> Result<Option<Answer>, Failure>,
    ) -> Result<(Place, Arc<Endpoint>), Failure> {
        let (mut newest, mut outdated, mut all_answered) = (None, None, true);
        let first = self.first_answer(deadline, |sentinel, limit| {
            let asked = ask(self, sentinel, limit).inspect_err(|_| all_answered = false);
            let Some(answer) = asked? else {
                return Ok(None);
            };
            let is_outdated = self
                .epochs
                .lock()
                .is_outdated(&answer.place.to_string(), answer.epoch);
            let better = match answer.epoch {
                _ if is_outdated => &mut outdated,
                _ if all => &mut newest,
                _ => return Ok(Some((answer, Arc::clone(sentinel)))),
            };
            if better
                .as_ref()
                .is_none_or(|(other, _): &(Answer, _)| other.epoch < answer.epoch)
            {
                *better = Some((answer, Arc::clone(sentinel)));
            }
            Ok(None)
        });
        // Or the time was over before all were asked.
        let all_answered = all_answered && !matches!(first, Err(Failure::OutOfTime(_)));
        let (mut epochs, now) = (self.epochs.lock(), Moment::now());
        let (answer, sentinel) = match (newest, first, outdated) {
            (Some(newest), ..) | (None, Ok(newest), _) => {
                epochs.note(newest.0.epoch, now);
                newest
            }
            (None, Err(_), Some(outdated)) if all_answered || epochs.is_old(now) => {
                epochs.begin_anew(outdated.0.epoch.unwrap_or_default(), now);
                outdated
            }
            (None, Err(failure), _) => return Err(failure),
        };
        drop(epochs);
        if all {
            // A sentinel that does not show its epoch may name another master, and must not be asked
            // first by the next connection.
            self.prefer(&sentinel);
        }
        if let Some(replicas) = answer.replicas {
            self.replicas.store(replicas, Ordering::Relaxed);
        }
        Ok((answer.place, sentinel))
    }

    /// Notes that this is not the master any more: answers from before that are out of date.
    pub(crate) fn leave(&self, master: &str) {
        self.epochs.lock().leave(master);
    }

    /// Asks one sentinel. `None` if it does not know the name.
    fn ask(&self, sentinel: &Arc<Endpoint>, deadline: Moment) -> Result<Option<Answer>, Failure> {
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
        let epoch = number(&master, "config-epoch");
        let replicas = if self.counts_replicas {
            // Without that number, nobody would know when all of them have a lock.
            let count =
                number(&check(master)?, "num-slaves").and_then(|count| count.try_into().ok());
            Some(count.ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))?)
        } else {
            None
        };
        Ok(Some(Answer {
            place,
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
        let known: Vec<_> = self
            .known
            .lock()
            .iter()
            .map(|it| Arc::clone(&it.endpoint))
            .collect();
        let (mut outage, mut refusal, mut all_silent) = (None, None, true);
        for longest in [LONGEST_ASK, Duration::MAX] {
            for sentinel in &known {
                let now = Moment::now();
                let limit = (deadline.since(now) / 2).min(longest);
                if limit.is_zero() {
                    let cause = "no time was left to ask more sentinels".into();
                    outage = outage.or(Some((sentinel, Failure::OutOfTime(cause))));
                    break;
                }
                let until = now.after(limit);
                let answer = ask(sentinel, until);
                all_silent &= until <= Moment::now();
                match answer {
                    Ok(Some(answer)) => {
                        // If another sentinel has come to the front since the first was asked, it
                        // may have reported a switch that this one has not heard of. Preferring
                        // this one would lead back to the old master where the sentinels do not
                        // show their epoch.
                        let mut now = self.known.lock();
                        if Arc::ptr_eq(&now[0].endpoint, &known[0]) {
                            to_front(&mut now, sentinel);
                        }
                        return Ok(answer);
                    }
                    Ok(None) => {}
                    // With more time, the sentinel might have answered.
                    Err(Failure::NotSent(cause)) if limit < FAIR_TRY => {
                        outage = outage.or(Some((sentinel, Failure::OutOfTime(cause))));
                    }
                    Err(failure) if failure.can_pass() => {
                        outage = outage.or(Some((sentinel, failure)));
                    }
                    Err(failure) => refusal = refusal.or(Some((sentinel, failure))),
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
                let (name, why) = (sentinel.name(), failure.text());
                let cause =
                    io::Error::other(format!("no sentinel reachable ({name}: {why})")).into();
                match failure {
                    Failure::OutOfTime(_) => Failure::OutOfTime(cause),
                    _ => Failure::NotSent(cause),
                }
            }
            (None, Some((sentinel, failure))) => at(sentinel, failure),
            (None, None) => {
                let (name, asked) = (&self.name, self.addresses());
                let message = format!("no sentinel knows a master named {name:?} (asked {asked})");
                Failure::Refused(Refusal {
                    code: String::new(),
                    message,
                })
            }
        }
    }

    fn open(
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
        let place = |other: &Reply| {
            let (host, port) = (other.field("ip")?, other.field("port")?);
            Place::announced(host, port.parse().ok()?)
        };
        let named: Vec<_> = others.iter().filter_map(place).take(MOST).collect();
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

/// A number in a reply that is a map.
fn number(map: &Reply, field: &str) -> Option<u64> {
    map.field(field)?.parse().ok()
}

/// Adds to a refusal which sentinel it came from.
fn at(sentinel: &Endpoint, failure: Failure) -> Failure {
    let Failure::Refused(Refusal { code, message }) = failure else {
        return failure;
    };
    let is_other = message.contains("unknown command");
    let what = if is_other {
        "is not a sentinel"
    } else {
        "is a sentinel that refuses"
    };
    Failure::Refused(Refusal {
        code,
        message: format!("{} {what}: {message}", sentinel.name()),
    })
}

/// Reads the reply to `SENTINEL get-master-addr-by-name`. `None` if the sentinel does not know the
/// name.
fn read_master(reply: Reply) -> Result<Option<Place>, Failure> {
    let parts = match check(reply)? {
        Reply::Nil => return Ok(None),
        Reply::Array(parts) => parts,
        _ => Vec::new(),
    };
    let read = || {
        let (host, port) = (parts.first()?.text()?, parts.get(1)?.text()?);
        Place::announced(host, port.parse().ok()?)
    };
    read()
        .map(Some)
        .ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::wire::login::Expected;

    const LONG: Duration = Duration::from_secs(60);

    fn sentinels() -> Sentinels {
        let hosts = [1, 2, 3].map(|port| ("127.0.0.1".to_owned(), port));
        let access = Access::new(None, 0, Expected::Sentinel);
        Sentinels::new("mymaster".to_owned(), hosts, access, None, false)
    }

    fn answer(port: u16, epoch: Option<u64>) -> Answer {
        Answer {
            place: Place::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
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
                Ok(Some(answer(port, epoch)))
            };
            let (place, sentinel) = sentinels
                .ask_for_master(true, Moment::now().after(LONG), ask)
                .unwrap();
            let first = Arc::clone(&sentinels.known.lock()[0].endpoint);
            assert!(
                Arc::ptr_eq(&first, &sentinel),
                "another one is asked first by the next connection"
            );
            place.to_string()
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
        let (sentinels, deadline) = (sentinels(), Moment::now().after(Duration::from_millis(20)));
        sentinels.epochs.lock().note(Some(4), Moment::now());
        let ask = |_: &Sentinels, _: &Arc<Endpoint>, _| {
            while Moment::now() < deadline {
                std::thread::yield_now();
            }
            Ok(Some(answer(7001, Some(3))))
        };
        let asked = sentinels.ask_for_master(false, deadline, ask);
        assert!(matches!(asked, Err(Failure::OutOfTime(_))));
        assert!(
            sentinels
                .epochs
                .lock()
                .is_outdated("127.0.0.1:7001", Some(3))
        );
        // If all of them have answered, they were set up anew.
        let ask = |_: &Sentinels, _: &Arc<Endpoint>, _| Ok(Some(answer(7001, Some(3))));
        let asked = sentinels.ask_for_master(false, Moment::now().after(LONG), ask);
        assert_eq!(asked.unwrap().0.to_string(), "127.0.0.1:7001");
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
