//! The sentinels: who is the master?
//!
//! The procedure is that of [Redis's guide for
//! clients](https://redis.io/docs/latest/develop/reference/sentinel-clients/): the sentinels are
//! asked one after the other, each for a short time, and the one that answered is asked first the
//! next time. Whether the answer is right is checked by the role of the server that was named.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::store::endpoint::{Endpoint, Place};
use crate::store::failure::{Failure, Refusal};
use crate::store::link::Link;
use crate::store::login::Access;
use crate::store::reply::allowed;
use crate::store::resp::Reply;
use crate::store::subscription::Subscription;
use crate::store::tls;

/// The longest time that one sentinel gets to answer. A sentinel is near, and does little.
const LONGEST_ASK: Duration = Duration::from_millis(300);

/// The most sentinels that are remembered. (Five are many.)
const MOST: usize = 32;

/// The channel on which a sentinel reports a new master.
const SWITCH: &str = "+switch-master";

/// The channels on which a sentinel reports that a replica was promoted, and a replica that it did
/// not know. The sentinel that leads a failover reports the new master only when all replicas
/// follow it, a second or more after the promotion.
const OTHERS: [&str; 2] = ["+promoted-slave", "+slave"];

/// The value of `replicas` while the number is not known.
const UNKNOWN: u32 = u32::MAX;

pub(super) struct Sentinels {
    /// The name by which the sentinels know the master.
    name: String,
    /// The one that answered last comes first.
    known: Mutex<Vec<Arc<Endpoint>>>,
    access: Access,
    tls: Option<tls::Client>,
    /// Whether to ask how many replicas there are.
    counts_replicas: bool,
    replicas: AtomicU32,
    /// The newest configuration that a sentinel has answered with. Each failover has an epoch of
    /// its own, higher than those before.
    epoch: AtomicU64,
}

impl Sentinels {
    pub(super) fn new(
        name: String,
        hosts: impl IntoIterator<Item = (String, u16)>,
        access: Access,
        tls: Option<tls::Client>,
        counts_replicas: bool,
    ) -> Sentinels {
        let endpoint = |(host, port)| Arc::new(Endpoint::new(Place::Tcp { host, port }, tls.clone()));
        let known = Mutex::new(hosts.into_iter().map(endpoint).collect());
        let (replicas, epoch) = (AtomicU32::new(UNKNOWN), AtomicU64::new(0));
        Sentinels { name, known, access, tls, counts_replicas, replicas, epoch }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The addresses of the sentinels, for messages.
    pub(super) fn addresses(&self) -> String {
        self.known.lock().iter().map(|sentinel| sentinel.name()).collect::<Vec<_>>().join(", ")
    }

    /// How many replicas the master has, also those that are down. `None` if the sentinels have not
    /// said so.
    pub(super) fn replicas(&self) -> Option<u32> {
        Some(self.replicas.load(Ordering::Relaxed)).filter(|replicas| *replicas != UNKNOWN)
    }

    /// Asks who is the master. Also returns the sentinel that said so.
    ///
    /// For a moment after a failover, some sentinels still name the old master, which may still say
    /// that it is the master. Without a rule, a client that knows better would go back to it, find
    /// none of its locks there, and take them for lost. So an answer with an older epoch than one
    /// before does not count, unless no sentinel has a better one: then the sentinels were set up
    /// anew, and count from the start.
    pub(super) fn master(&self, deadline: Moment) -> Result<(Place, Arc<Endpoint>), Failure> {
        let mut older: Option<(u64, (Place, Arc<Endpoint>))> = None;
        let newest = self.first_answer(deadline, |sentinel, limit| {
            let Some((place, epoch)) = self.ask(sentinel, limit)? else {
                return Ok(None);
            };
            let answer = (place, Arc::clone(sentinel));
            let Some(epoch) = epoch.filter(|epoch| *epoch < self.epoch.load(Ordering::Relaxed)) else {
                self.note(epoch);
                return Ok(Some(answer));
            };
            if older.as_ref().is_none_or(|(other, _)| *other < epoch) {
                older = Some((epoch, answer));
            }
            Ok(None)
        });
        newest.or_else(|failure| {
            let (epoch, answer) = older.ok_or(failure)?;
            self.epoch.store(epoch, Ordering::Relaxed);
            Ok(answer)
        })
    }

    /// Takes note of the epoch of a sentinel that has reported a switch, so that from now on no
    /// older answer counts.
    pub(super) fn note_epoch(&self, sentinel: &Arc<Endpoint>, deadline: Moment) {
        if let Ok(Some((_, epoch))) = self.ask(sentinel, deadline) {
            self.note(epoch);
        }
    }

    fn note(&self, epoch: Option<u64>) {
        if let Some(epoch) = epoch {
            self.epoch.fetch_max(epoch, Ordering::Relaxed);
        }
    }

    /// Asks one sentinel for the master and the epoch. `None` if it does not know the name, and for
    /// the epoch if it does not tell: then the right to ask is missing.
    fn ask(&self, sentinel: &Endpoint, deadline: Moment) -> Result<Option<(Place, Option<u64>)>, Failure> {
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
        self.learn(replies.next());
        let master = replies.next().unwrap_or(Reply::Nil);
        let epoch = master.field("config-epoch").and_then(|epoch| epoch.parse().ok());
        if self.counts_replicas {
            self.count(master)?;
        }
        Ok(Some((place, epoch)))
    }

    /// Subscribes at a sentinel to its reports: of a new master, of a promotion, of a new replica.
    /// Also returns the sentinel.
    pub(super) fn subscribe(&self, deadline: Moment) -> Result<(Subscription, Arc<Endpoint>), Failure> {
        self.first_answer(deadline, |sentinel, limit| {
            let (link, _) = self.open(sentinel, &[], limit)?;
            Ok(Some((Subscription::open(link, SWITCH, &OTHERS, limit)?, Arc::clone(sentinel))))
        })
    }

    /// Asks this sentinel first from now on, and those that came before it last.
    pub(super) fn prefer(&self, sentinel: &Arc<Endpoint>) {
        let mut known = self.known.lock();
        if let Some(at) = known.iter().position(|it| Arc::ptr_eq(it, sentinel)) {
            known.rotate_left(at);
        }
    }

    /// Asks this sentinel last from now on: what it said was wrong, or is out of date.
    pub(super) fn doubt(&self, sentinel: &Arc<Endpoint>) {
        let mut known = self.known.lock();
        if let Some(at) = known.iter().position(|it| Arc::ptr_eq(it, sentinel)) {
            known[at..].rotate_left(1);
        }
    }

    /// Asks one sentinel after the other until one knows the master, and prefers that one from then
    /// on. The time is shared equally among those that were not asked yet and the master itself.
    fn first_answer<T>(
        &self,
        deadline: Moment,
        mut ask: impl FnMut(&Arc<Endpoint>, Moment) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let known = self.known.lock().clone();
        let (mut outage, mut refusal) = (None, None);
        for (asked, sentinel) in known.iter().enumerate() {
            let (now, shares) = (Moment::now(), known.len() - asked + 1);
            let share = deadline.since(now) / u32::try_from(shares).unwrap_or(u32::MAX);
            let limit = now.after(share.min(LONGEST_ASK));
            match ask(sentinel, limit) {
                Ok(Some(answer)) => {
                    self.prefer(sentinel);
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(failure) if failure.can_pass() => outage = outage.or(Some((sentinel, failure))),
                Err(failure) => refusal = refusal.or(Some((sentinel, failure))),
            }
        }
        Err(match (outage, refusal) {
            (Some((sentinel, failure)), _) => {
                let (name, why) = (sentinel.name(), failure.text());
                Failure::not_sent(io::Error::other(format!("no sentinel reachable ({name}: {why})")))
            }
            (None, Some((sentinel, failure))) => at(sentinel, failure),
            (None, None) => {
                let (name, asked) = (&self.name, self.addresses());
                let message = format!("no sentinel knows a master named {name:?} (asked {asked})");
                Failure::Refused(Refusal { code: String::new(), message })
            }
        })
    }

    fn open(
        &self,
        sentinel: &Endpoint,
        first: &[&[&str]],
        deadline: Moment,
    ) -> Result<(Link, Vec<Reply>), Failure> {
        Link::open(sentinel, &sentinel.ways()?, &self.access, first, deadline, |_| Ok(()))
    }

    /// Remembers the sentinels that another one knows. Their number is bounded: an address that
    /// changes often would otherwise fill the memory.
    fn learn(&self, others: Option<Reply>) {
        let Some(Reply::Array(others)) = others else {
            return;
        };
        let mut known = self.known.lock();
        for other in others {
            let (Some(host), Some(port)) = (other.field("ip"), other.field("port")) else {
                continue;
            };
            let Ok(port) = port.parse() else { continue };
            let place = Place::Tcp { host: host.to_owned(), port };
            let endpoint = Endpoint::new(place, self.tls.clone());
            if known.len() < MOST && !known.iter().any(|it| it.name() == endpoint.name()) {
                known.push(Arc::new(endpoint));
            }
        }
    }

    /// Takes the number of replicas from the reply to `SENTINEL master`. Without that number,
    /// nobody would know when all of them have a lock.
    fn count(&self, master: Reply) -> Result<(), Failure> {
        let count = allowed(master)?.field("num-slaves").and_then(|count| count.parse().ok());
        let count = count.ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))?;
        self.replicas.store(count, Ordering::Relaxed);
        Ok(())
    }
}

/// Adds to a refusal which sentinel it came from.
fn at(sentinel: &Endpoint, failure: Failure) -> Failure {
    let Failure::Refused(Refusal { code, message }) = failure else {
        return failure;
    };
    let is_other = message.contains("unknown command");
    let what = if is_other { "is not a sentinel" } else { "is a sentinel that refuses" };
    Failure::Refused(Refusal { code, message: format!("{} {what}: {message}", sentinel.name()) })
}

/// Reads the reply to `SENTINEL get-master-addr-by-name`. `None` if the sentinel does not know the
/// name.
fn read_master(reply: Reply) -> Result<Option<Place>, Failure> {
    let parts = match allowed(reply)? {
        Reply::Nil => return Ok(None),
        Reply::Array(parts) => parts,
        _ => Vec::new(),
    };
    let read = || {
        let (host, port) = (parts.first()?.text()?, parts.get(1)?.text()?);
        Some(Place::Tcp { host: host.to_owned(), port: port.parse().ok()? })
    };
    read().map(Some).ok_or_else(|| Failure::not_sent("the sentinel's reply made no sense"))
}
