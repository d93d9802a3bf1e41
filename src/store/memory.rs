//! A store in the memory of this process: the same commands with the same answers, and no server.
//!
//! It sends nothing, starts no thread and does not wait. A key whose holder has it renewed needs no
//! renewal here, since nothing can cut the process off from its own memory: the key lasts until its
//! holder stops renewing it ([`MemoryStore::lets_expire`]). The controls for tests can end it
//! sooner: they delete keys, make every lease older, and have commands fail for a while.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::holder::{Holder, KEPT};
use crate::base::random;
use crate::store::failure::Failure;
use crate::store::keys::{Entry, Keys, Outage};
use crate::store::reply::{AdoptReply, ClaimReply, Compared, Seen, Tracking};
use crate::store::wanted::Wanted;

/// Called with a key that has changed and that a waiter asked about.
type OnChange = OnceLock<Box<dyn Fn(&str) + Send + Sync>>;

pub(crate) struct MemoryStore {
    keys: Mutex<Keys>,
    on_change: OnChange,
    /// False: nobody is excluded, since each hold has a key of its own.
    pub(crate) excludes: bool,
    /// The number before the first one that was drawn.
    first: u128,
    /// How many numbers were drawn.
    drawn: AtomicU64,
}

impl MemoryStore {
    pub(super) fn new(excludes: bool) -> MemoryStore {
        /// How many stores had no random bits.
        static STORES: AtomicU64 = AtomicU64::new(0);
        let unlike_others = |_| u128::from(STORES.fetch_add(1, Ordering::Relaxed)) << 64;
        MemoryStore {
            keys: Mutex::default(),
            on_change: OnceLock::new(),
            excludes,
            first: random::bits().unwrap_or_else(unlike_others),
            drawn: AtomicU64::new(0),
        }
    }

    /// Registers `call`, which gets each key that changes while a waiter asks for it.
    pub(crate) fn on_change(&self, call: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(call)); // The keeper sets it once.
    }

    /// A number that was not drawn before, neither from this store nor from another one. A token
    /// with it is no other manager's: if two managers of a process had the same token, a thread
    /// that waits for the one would look as if it had the lock already.
    pub(crate) fn fresh_number(&self) -> u128 {
        self.first.wrapping_add(self.drawn.fetch_add(1, Ordering::Relaxed).into())
    }

    pub(super) fn is_away(&self) -> bool {
        self.keys.lock().is_away()
    }

    /// Runs a command, unless the store is away.
    fn run<T>(&self, command: impl FnOnce(&mut Keys) -> T) -> Result<T, Failure> {
        let mut keys = self.keys.lock();
        if keys.is_away() {
            return Err(Failure::not_sent("the store in memory is away: `Memory::go_away` was called"));
        }
        Ok(command(&mut keys))
    }

    fn changed(&self, key: &str, awaited: bool) {
        if let Some(call) = self.on_change.get().filter(|_| awaited) {
            call(key);
        }
    }

    pub(super) fn ping(&self) -> Result<(), Failure> {
        self.run(|_| ())
    }

    /// Takes a key if it is free at `now`: the lease begins then. With `awaits`, the caller is woken
    /// when a busy key changes.
    pub(super) fn claim(
        &self,
        wanted: Wanted<'_>,
        awaits: bool,
        now: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        self.run(|keys| {
            let taken = keys.take(wanted, now, |entry| {
                entry.awaited |= awaits;
                entry.holder()
            });
            let tracking = if awaits { Tracking::Direct } else { Tracking::Off };
            match taken {
                Ok(fence) => (ClaimReply::Taken { fence }, Tracking::Off),
                Err(holder) => (ClaimReply::Busy(Some(holder)), tracking),
            }
        })
    }

    pub(super) fn remove(&self, key: &str, token: &str) -> Result<Compared, Failure> {
        let (compared, awaited) = self.run(|keys| keys.remove(key, token))?;
        self.changed(key, awaited);
        Ok(compared)
    }

    /// Removes a key and takes it for another thread, in one step.
    pub(super) fn remove_and_claim(
        &self,
        token: &str,
        wanted: Wanted<'_>,
    ) -> Result<(Compared, ClaimReply), Failure> {
        self.run(|keys| {
            let (compared, _) = keys.remove(wanted.key, token);
            let claim = match keys.take(wanted, Moment::now(), |_| ()) {
                Ok(fence) => ClaimReply::Taken { fence },
                Err(()) => ClaimReply::Busy(None),
            };
            (compared, claim)
        })
    }

    /// The key expires after `rest`, in milliseconds, and nobody owns it from now on.
    pub(super) fn keep(&self, key: &str, token: &str, rest: u64) -> Result<Compared, Failure> {
        let kept = format!("{KEPT}{token}");
        if self.run(|keys| keys.of_token(key, &kept).is_ok())? {
            return Ok(Compared::Done); // It was executed before.
        }
        self.compare(key, token, |entry| {
            (entry.value, entry.renewed) = (kept, false);
            entry.expires = Moment::now().after(Duration::from_millis(rest));
        })
    }

    /// Swaps the token of a lock that was handed over. If nobody is excluded, every adoption is
    /// granted: the key is a fresh one.
    pub(super) fn adopt(&self, old: &str, least: u64, wanted: Wanted<'_>) -> Result<AdoptReply, Failure> {
        self.run(|keys| {
            keys.fence = keys.fence.max(least);
            match keys.remove(wanted.key, old).0 {
                Compared::Absent if self.excludes => AdoptReply::Absent,
                // The key is free now, which no other command can see.
                Compared::Done | Compared::Absent => match keys.take(wanted, Moment::now(), |_| ()) {
                    Ok(fence) => AdoptReply::Adopted { fence },
                    Err(()) => AdoptReply::NotOurs,
                },
                Compared::NotOurs => AdoptReply::NotOurs,
            }
        })
    }

    /// Gives a key a lease, in milliseconds, from now on. Never shortens the time that it has.
    pub(super) fn extend(&self, key: &str, token: &str, lease: u64) -> Result<Compared, Failure> {
        self.compare(key, token, |entry| {
            entry.lease = Duration::from_millis(lease);
            entry.expires = entry.expires.max(Moment::now().after(entry.lease));
        })
    }

    fn compare(&self, key: &str, token: &str, change: impl FnOnce(&mut Entry)) -> Result<Compared, Failure> {
        self.run(|keys| match keys.of_token(key, token) {
            Ok(entry) => {
                change(entry);
                Compared::Done
            }
            Err(compared) => compared,
        })
    }

    /// Who has a key, with the fencing token if that is asked for.
    pub(super) fn look(&self, key: &str, with_fence: bool) -> Result<Seen, Failure> {
        self.run(|keys| match keys.live(key) {
            Some(entry) => {
                let fence = entry.fence.filter(|_| with_fence);
                Seen::Somebody(entry.holder().with_fence(fence))
            }
            None => Seen::Nothing,
        })
    }

    /// Deletes a key whatever its value, and returns who had it.
    pub(super) fn force(&self, key: &str) -> Result<Option<Holder>, Failure> {
        self.run(|_| ())?;
        Ok(self.delete(key))
    }
}

/// What a hold in memory has to do with its key.
impl MemoryStore {
    /// The thread that took a key at the moment `taken` has its hold now. `renewed`: until when the
    /// key lasts, if the hold is one to renew. `use_end` gets the end of the key, [`Moment::PAST`] if
    /// it is gone, and says when it is to end: [`Moment::PAST`] if at once. Meanwhile, no control for
    /// tests can change it.
    pub(crate) fn settle(
        &self,
        key: &str,
        token: &str,
        taken: Moment,
        renewed: Option<Moment>,
        use_end: impl FnOnce(Moment) -> Moment,
    ) {
        let mut keys = self.keys.lock();
        let outage = keys.outage.filter(|_| keys.is_away());
        let entry = keys.by_name.get_mut(key).filter(|entry| taken < entry.expires && entry.value == token);
        let Some(entry) = entry else {
            use_end(Moment::PAST);
            return;
        };
        if let Some(until) = renewed {
            (entry.renewed, entry.expires) = (true, entry.expires.max(until));
            if let Some(outage) = outage {
                entry.suffer(outage);
            }
        }
        entry.expires = use_end(entry.expires);
        let awaited = entry.awaited && entry.expires == Moment::PAST;
        drop(keys);
        self.changed(key, awaited);
    }

    /// The end of a key, if the key still holds the token.
    pub(crate) fn end_of(&self, key: &str, token: &str) -> Option<Moment> {
        self.keys.lock().of_token(key, token).ok().map(|entry| entry.expires)
    }

    /// Nobody has the key renewed any more: it is gone at `gone_by`. If the key is an orphan, which
    /// nobody wants to last, it is gone as soon as the store is there.
    pub(crate) fn lets_expire(&self, key: &str, token: &str, gone_by: Moment, is_orphan: bool) {
        let mut keys = self.keys.lock();
        let (now, outage) = (Moment::now(), keys.outage);
        let Ok(entry) = keys.of_token(key, token) else { return };
        let soon = outage.map_or(now, |outage| outage.until.max(now));
        let end = if is_orphan { gone_by.min(soon) } else { gone_by };
        (entry.renewed, entry.expires) = (false, entry.expires.min(end));
        let awaited = entry.awaited && entry.expires <= now;
        drop(keys);
        self.changed(key, awaited);
    }
}

/// The controls for tests.
impl MemoryStore {
    /// Deletes a key, and returns who had it.
    pub(crate) fn delete(&self, key: &str) -> Option<Holder> {
        let mut keys = self.keys.lock();
        let entry = keys.by_name.remove(key).filter(Entry::is_live)?;
        drop(keys);
        self.changed(key, entry.awaited);
        Some(entry.holder())
    }

    /// From now on, each lease is older by `span`, and so is an outage.
    pub(crate) fn age(&self, span: Duration) {
        let mut keys = self.keys.lock();
        for entry in keys.by_name.values_mut() {
            entry.expires = entry.expires.before(span);
        }
        if let Some(outage) = &mut keys.outage {
            (outage.since, outage.until) = (outage.since.before(span), outage.until.before(span));
        }
    }

    /// Commands fail for `span` from now on. During an outage: until then at least.
    pub(crate) fn go_away(&self, span: Duration) {
        let mut keys = self.keys.lock();
        let now = Moment::now();
        let before = keys.outage.filter(|outage| now < outage.until);
        let mut outage = before.unwrap_or(Outage { since: now, until: now });
        outage.until = outage.until.max(now.after(span));
        keys.outage = Some(outage);
        keys.by_name.values_mut().for_each(|entry| entry.suffer(outage));
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("excludes", &self.excludes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(key: &'a str, token: &'a str) -> Wanted<'a> {
        Wanted { key, token, lease: 60_000, counter: None }
    }

    fn is_taken(store: &MemoryStore, key: &str, token: &str) -> bool {
        is_taken_at(Moment::now(), store, key, token)
    }

    fn is_taken_at(now: Moment, store: &MemoryStore, key: &str, token: &str) -> bool {
        matches!(store.claim(wanted(key, token), false, now), Ok((ClaimReply::Taken { .. }, _)))
    }

    #[test]
    fn each_command_compares_the_token() {
        let store = MemoryStore::new(true);
        assert!(is_taken(&store, "a", "one") && !is_taken(&store, "a", "two"));
        for (key, token, compared) in [("a", "two", Compared::NotOurs), ("b", "one", Compared::Absent)] {
            assert_eq!(store.remove(key, token).unwrap(), compared);
            assert_eq!(store.extend(key, token, 1000).unwrap(), compared);
            assert_eq!(store.keep(key, token, 1000).unwrap(), compared);
            assert!(store.end_of(key, token).is_none());
            store.lets_expire(key, token, Moment::PAST, true);
        }
        let (removed, claim) = store.remove_and_claim("two", wanted("a", "three")).unwrap();
        assert!(removed == Compared::NotOurs && matches!(claim, ClaimReply::Busy(None)), "{claim:?}");
        let (removed, claim) = store.remove_and_claim("one", wanted("a", "three")).unwrap();
        assert!(removed == Compared::Done && matches!(claim, ClaimReply::Taken { .. }), "{claim:?}");
        assert_eq!(store.remove("a", "three").unwrap(), Compared::Done);
        assert!(is_taken(&store, "a", "four"));
    }

    #[test]
    fn an_expired_key_is_absent_and_leaves_nothing_behind() {
        let store = MemoryStore::new(true);
        for key in 0..1000 {
            let key = key.to_string();
            assert!(is_taken(&store, &key, "one"));
            store.age(Duration::from_secs(60));
            assert_eq!(store.remove(&key, "one").unwrap(), Compared::Absent);
        }
        assert!(store.keys.lock().by_name.len() < 100, "expired keys pile up");
    }

    #[test]
    fn a_key_that_was_removed_leaves_nothing_to_the_next_holder() {
        let store = MemoryStore::new(true);
        let changes = std::sync::Arc::new(AtomicU64::new(0));
        let counted = std::sync::Arc::clone(&changes);
        store.on_change(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
        assert!(is_taken(&store, "a", "one"));
        store.settle("a", "one", Moment::now(), Some(Moment::NEVER), |end| {
            assert_eq!(end, Moment::NEVER);
            end
        });
        let busy = store.claim(wanted("a", "two"), true, Moment::now());
        assert!(matches!(busy, Ok((ClaimReply::Busy(_), Tracking::Direct))));
        assert_eq!(store.remove("a", "one").unwrap(), Compared::Done);
        assert_eq!(changes.load(Ordering::Relaxed), 1, "the waiter is woken");
        assert!(is_taken(&store, "a", "two"));
        let end = store.end_of("a", "two").expect("it was taken");
        store.go_away(Duration::from_secs(600));
        store.age(Duration::from_secs(600));
        assert!(end < Moment::NEVER && store.end_of("a", "two").is_none());
        assert!(is_taken(&store, "a", "three"));
        assert_eq!(store.remove("a", "three").unwrap(), Compared::Done);
        assert_eq!(changes.load(Ordering::Relaxed), 1, "nobody waits any more");
    }

    #[test]
    fn a_table_that_grows_keeps_every_key_that_lives() {
        let store = MemoryStore::new(true);
        let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        assert!(keys.iter().all(|key| is_taken(&store, key, "one")));
        assert!(keys.iter().all(|key| !is_taken(&store, key, "two") && store.end_of(key, "one").is_some()));
    }

    /// The end that a renewed hold learns. It was `taken` then.
    fn settled(store: &MemoryStore, key: &str, taken: Moment) -> Moment {
        let mut of_hold = None;
        store.settle(key, "one", taken, Some(Moment::NEVER), |end| {
            of_hold = Some(end);
            end
        });
        of_hold.expect("it is called")
    }

    /// Its thread was stopped for longer than the lease before the key was taken, or after that.
    #[test]
    fn a_hold_that_settles_late_has_its_key_unless_another_thread_has_taken_it() {
        let (store, asked) = (MemoryStore::new(true), Moment::now().before(Duration::from_secs(61)));
        assert!(is_taken_at(asked, &store, "a", "one") && is_taken_at(asked, &store, "b", "one"));
        assert!(store.end_of("a", "one").is_none(), "the lease began when its holder asked");
        assert!(is_taken(&store, "b", "two"));
        assert_eq!(settled(&store, "a", asked), Moment::NEVER);
        assert_eq!(settled(&store, "b", asked), Moment::PAST);
        assert!(!is_taken(&store, "a", "two"));
    }

    #[test]
    fn a_waiter_is_woken_if_the_key_goes_with_a_hold_that_was_found_over() {
        let store = MemoryStore::new(true);
        let changes = std::sync::Arc::new(AtomicU64::new(0));
        let counted = std::sync::Arc::clone(&changes);
        store.on_change(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
        let taken = Moment::now();
        assert!(is_taken(&store, "a", "one"));
        assert!(store.claim(wanted("a", "two"), true, Moment::now()).is_ok());
        store.settle("a", "one", taken, Some(Moment::NEVER), |_| Moment::PAST);
        assert_eq!(changes.load(Ordering::Relaxed), 1);
        assert!(is_taken(&store, "a", "two"));
    }

    #[test]
    fn a_hold_that_settles_after_its_key_grew_old_has_lost_it() {
        let (store, asked) = (MemoryStore::new(true), Moment::now());
        assert!(is_taken_at(asked, &store, "a", "one"));
        store.age(Duration::from_secs(61));
        assert_eq!(settled(&store, "a", asked), Moment::PAST);
        assert!(is_taken(&store, "a", "two"));
    }

    /// The key of a hold is taken, then a control comes, and then the hold learns when it ends.
    #[test]
    fn a_hold_settles_for_what_a_control_has_left_of_its_key() {
        let store = MemoryStore::new(true);
        let end_of = |key| settled(&store, key, Moment::now());
        assert!(is_taken(&store, "a", "one") && is_taken(&store, "b", "one") && is_taken(&store, "c", "one"));
        assert_eq!(end_of("a"), Moment::NEVER);
        assert!(store.delete("b").is_some());
        assert_eq!(end_of("b"), Moment::PAST);
        store.go_away(Duration::from_secs(60));
        let end = end_of("c");
        assert!(end > Moment::now() && end < Moment::NEVER, "{end:?}");
    }

    #[test]
    fn an_adoption_takes_the_lock_from_nobody_but_its_sender() {
        for excludes in [true, false] {
            let store = MemoryStore::new(excludes);
            let adopts = |key| {
                let reply = store.adopt("one", 0, wanted(key, "two")).unwrap();
                matches!(reply, AdoptReply::Adopted { .. })
            };
            assert!(is_taken(&store, "a", "one") && adopts("a"));
            assert!(!adopts("a"), "the parcel was used");
            assert_eq!(store.remove("a", "two").unwrap(), Compared::Done);
            assert_eq!(adopts("a"), !excludes, "nobody has the lock");
        }
    }

    #[test]
    fn a_renewal_never_shortens_a_lease_and_a_fence_never_repeats() {
        let store = MemoryStore::new(true);
        let numbered = |key| Wanted { counter: Some("counter"), ..wanted(key, "one") };
        let fence = |key| match store.claim(numbered(key), false, Moment::now()) {
            Ok((ClaimReply::Taken { fence }, _)) => fence,
            other => panic!("{other:?}"),
        };
        let first = fence("a");
        assert!(first > Some(0) && fence("b") > first);
        let end = store.end_of("a", "one");
        assert_eq!(store.extend("a", "one", 1000).unwrap(), Compared::Done);
        assert_eq!(store.end_of("a", "one"), end);
        store.extend("a", "one", 120_000).unwrap();
        assert!(store.end_of("a", "one") > end);
    }
}
