//! How many other processes want the same lock, and for how long a waiter sleeps because of them
//! before it asks. (A *look* is an attempt: one question to Redis.)
//!
//! *A waiter estimates its rivals from the last holders it saw: few repeats mean many rivals.
//! Before each look it sleeps about three and a half looks' time per rival, less what it has slept
//! in this wait.*
//!
//! Redis wakes all waiters of a key at once. If each of them looked at once, every release would
//! cost as many commands as there are waiters, and Redis would serve the losers while the next
//! holder waits for its answer. So they spread their looks: the more they are, the further. A
//! waiter needs no speed to win: one that lost has slept already, and sleeps less next time.
//!
//! The estimate is that of a mark-recapture census (Schnabel's, with samples of one): repeats among
//! the last sightings tell how many rivals there are. `many` sightings of `kinds` different
//! processes have `many - kinds` repeats, and mean about `kinds * many / (2 * repeats)` rivals. The
//! added `1` in the divisor keeps the estimate finite if there are no repeats.
//!
//! The figures at the constants are those of the simulation in this file's tests. Processes *lose*
//! turns if they have fewer in the same time than processes that look at once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;

/// How many sightings are kept. With 8, four hundred processes that hold for a millisecond ask 128
/// times a turn instead of 34; with 32, it takes a third longer until each of them has had the lock
/// once.
const SIGHTINGS: usize = 16;

/// How many sightings are forgotten when the first look finds the lock free, since rivals may have
/// left. With 2, four processes with short holds lose 14 % of their turns instead of 9; with 8, the
/// longest waits of ten processes are half as long again.
const FORGOTTEN: usize = 4;

/// How long a rival's turn takes, apart from its hold, as a multiple of the time of one look: its
/// own look, its release, and a waiter's way to Redis. With half of this, four hundred processes
/// ask 72 times a turn; with twice as much, two processes with short holds lose a sixth of their
/// turns instead of a twentieth.
const LOOKS: f64 = 3.5;

/// The least part of the full sleep that a waiter sleeps before each look, even if it has slept its
/// full time already. If such waiters looked at once, more and more of them would ask a slow Redis
/// more and more often. With an eighth, ten processes lose 14 % of their turns instead of 8; with a
/// 32nd, four hundred ask 54 times a turn.
const LATE: f64 = 1.0 / 16.0;

/// The chance that a waiter that knows one rival looks at once, except at the start of its wait. If
/// it never did, two processes would lose a tenth of their turns instead of 3 %; if it always did,
/// two would take turns for ever, and a third would have none.
const AT_ONCE: f64 = 0.75;

/// The longest sleep before a look, so that a Redis that was slow once does not keep a waiter for
/// long. A quarter of this, or four times as much, does as well.
const LONGEST: Duration = Duration::from_millis(250);

/// A process that saw no other for this long counts as alone. A process that did not want the key
/// for this long forgets the rivals it had. (If that time counted from the last sighting, a process
/// would forget its rivals during each long hold of its own. It would then look at once, and get
/// the lock before all that wait.)
const MEMORY: Duration = Duration::from_secs(1);

/// What a process has seen of its rivals for one key, and how it waits for that key.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// The processes that it saw holding the lock, each as a hash. The latest comes last.
    seen: Vec<u64>,
    /// When it last saw another process.
    last_seen: Option<Moment>,
    /// When it last released the lock or gave up the wait.
    ended: Option<Moment>,
    /// How long a look takes: a running mean, in which the last look counts one half. (A slow look
    /// counts as twice the mean at most.)
    look: Option<Duration>,
    /// How long it has slept in this wait.
    slept: Duration,
    /// No look of this wait was made yet.
    is_new: bool,
    /// It has seen another process in this wait.
    met: bool,
}

impl Contention {
    /// A wait begins.
    pub(crate) fn begin(&mut self, now: Moment) {
        if self.ended.is_some_and(|ended| now.since(ended) > MEMORY) {
            self.seen.clear();
        }
        self.slept = Duration::ZERO;
        self.is_new = true;
        self.met = false;
    }

    /// How long to sleep before the next look. `random` draws from 0 to 1.
    pub(crate) fn nap(&mut self, mut random: impl FnMut() -> f64) -> Duration {
        let contention = self.contention();
        let is_new = mem::take(&mut self.is_new);
        let turn = self.turn();
        if contention == 0.0 || turn.is_zero() || contention <= 1.0 && !is_new && random() < AT_ONCE
        {
            return Duration::ZERO;
        }
        let turns = (contention - self.slept.div_duration_f64(turn)).max(contention * LATE);
        let nap = turn
            .mul_f64(turns)
            .min(LONGEST)
            .mul_f64(0.5 + random() / 2.0);
        self.slept += nap;
        nap
    }

    /// The sleep before the first look was left out.
    pub(crate) fn skip(&mut self) {
        self.slept = Duration::ZERO;
    }

    /// How long a rival needs for a turn, apart from its hold.
    fn turn(&self) -> Duration {
        self.look.unwrap_or_default().mul_f64(LOOKS)
    }

    /// A look has taken the time `look`. A look that took more than twice the mean counts as twice
    /// the mean: a Redis, or a machine, that paused once is not slow.
    pub(crate) fn took(&mut self, look: Duration) {
        self.look = Some(
            self.look
                .map_or(look, |mean| (mean + look.min(2 * mean)) / 2),
        );
    }

    /// The process has found the lock held.
    pub(crate) fn saw(&mut self, holder: &Holder, now: Moment) {
        if self.seen.len() == SIGHTINGS {
            self.seen.remove(0);
        }
        self.seen.push(process_of(holder));
        self.last_seen = Some(now);
        self.met = true;
    }

    /// True if no other process was seen for [`MEMORY`], so perhaps none wants the lock. (The
    /// estimate alone does not tell that: it drops with each first look that finds the lock free.)
    pub(crate) fn is_alone(&self, now: Moment) -> bool {
        self.last_seen.is_none_or(|seen| now.since(seen) > MEMORY)
    }

    /// The process has found the lock free, and holds it now.
    pub(crate) fn won(&mut self, now: Moment) {
        if self.met {
            self.last_seen = Some(now); // The other process had it until a moment ago.
        } else {
            self.seen.drain(..FORGOTTEN.min(self.seen.len()));
        }
    }

    /// The lock is released, or the wait given up.
    pub(crate) fn ended(&mut self, now: Moment) {
        self.ended = Some(now);
    }

    /// How many other processes want the lock, as far as was seen.
    #[expect(clippy::cast_precision_loss, reason = "sixteen at most")]
    pub(crate) fn contention(&self) -> f64 {
        if self.seen.is_empty() {
            return 0.0;
        }
        let is_first = |at: &usize| !self.seen[..*at].contains(&self.seen[*at]);
        let many = self.seen.len();
        let kinds = (0..self.seen.len()).filter(is_first).count();
        kinds as f64 * (many as f64 / (2 * (many - kinds) + 1) as f64).max(1.0)
    }
}

/// The process that holds the lock, as a hash. All of its threads are one rival. All holders whose
/// values this crate did not write are one rival, too: most libraries write a new value each time,
/// so the values do not tell how many processes there are.
fn process_of(holder: &Holder) -> u64 {
    let mut hash = DefaultHasher::new();
    // Containers may share a host name, and each be process 1. The beginning of the nonce differs.
    if let Some(owner) = holder.owner() {
        let nonce = holder.raw.rsplit('-').next().unwrap_or_default();
        (&owner.host, owner.pid, nonce.get(..8)).hash(&mut hash);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    const fn at(micros: u64) -> Moment {
        Moment::from_nanos(1000 * micros)
    }

    fn process(number: u32) -> Holder {
        Holder::new(format!("host-{number}-1-{number:032x}").as_bytes(), None)
    }

    fn after_seeing(holders: impl IntoIterator<Item = u32>) -> Contention {
        let mut contention = Contention::default();
        contention.begin(at(0));
        contention.took(micros(1000));
        holders
            .into_iter()
            .for_each(|number| contention.saw(&process(number), at(0)));
        contention
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "quotients of small numbers")]
    fn few_repeats_mean_many_rivals() {
        assert_eq!(Contention::default().contention(), 0.0);
        assert_eq!(after_seeing([1]).contention(), 1.0);
        assert_eq!(after_seeing(iter::repeat_n(1, 16)).contention(), 1.0);
        assert_eq!(after_seeing((0..16).map(|it| it % 2)).contention(), 2.0);
        assert_eq!(after_seeing([1, 2, 3, 4, 1]).contention(), 4.0 * 5.0 / 3.0);
        assert_eq!(after_seeing(1..=16).contention(), 256.0);
        assert_eq!(
            after_seeing((1..=16).chain(iter::repeat_n(1, 16))).contention(),
            1.0,
            "the last 16 count"
        );
    }

    #[test]
    fn threads_of_a_process_are_one_rival_and_so_are_all_foreign_values() {
        let (token, nonce) = (|who: &str, nonce: u32| format!("{who}-{nonce:032x}"), 7);
        for (one, other, same) in [
            (token("host-1-1", nonce), token("host-1-2", nonce + 1), true),
            (token("host-1-1", nonce), token("host-2-1", nonce), false),
            (token("host-1-1", nonce), token("other-1-1", nonce), false),
            (
                token("host-1-1", nonce),
                format!("host-1-1-{:08x}{nonce:024x}", 1),
                false,
            ),
            ("e7a1".to_owned(), "93b2".to_owned(), true),
            ("e7a1".to_owned(), token("host-1-1", nonce), false),
        ] {
            let [one, other] =
                [one, other].map(|raw| process_of(&Holder::new(raw.as_bytes(), None)));
            assert_eq!(one == other, same);
        }
    }

    #[test]
    fn a_process_is_alone_a_second_after_it_has_seen_another_and_not_sooner() {
        assert!(Contention::default().is_alone(at(0)));
        let mut contention = after_seeing([1]);
        assert!(!contention.is_alone(at(1_000_000)));
        assert!(contention.is_alone(at(1_000_001)));
        contention.won(at(3_000_000)); // It waited for the other until now.
        contention.begin(at(3_000_001));
        contention.won(at(3_000_002));
        assert!(contention.contention() == 0.0);
        assert!(
            !contention.is_alone(at(4_000_000)),
            "it got the lock first again, but others may wait"
        );
        assert!(contention.is_alone(at(4_000_001)));
    }

    #[test]
    fn a_waiter_sleeps_for_each_rival_and_less_after_what_it_has_slept() {
        let mut contention = after_seeing((0..16).map(|it| it % 4));
        let naps: Vec<_> = iter::repeat_with(|| contention.nap(|| 0.0).as_micros())
            .take(4)
            .collect();
        // Four rivals, 3.5 ms each, and the lower end of what is drawn.
        assert_eq!(naps, [7000, 3500, 1750, 875]);
        assert_eq!(
            iter::repeat_with(|| contention.nap(|| 1.0).as_micros())
                .take(2)
                .last(),
            Some(875)
        );
        contention.begin(at(0));
        assert_eq!(contention.nap(|| 1.0), micros(14_000), "a new wait");
    }

    #[test]
    fn a_waiter_without_rivals_looks_at_once_and_with_one_rival_three_times_of_four() {
        assert_eq!(after_seeing([]).nap(|| 1.0), micros(0));
        let mut contention = after_seeing([1, 1]);
        assert_eq!(contention.nap(|| 0.5), micros(2625), "a newcomer sleeps");
        assert_eq!(contention.nap(|| 0.74), micros(0));
        assert!(contention.nap(|| 0.76) > micros(0));
        let mut contention = after_seeing([1, 2]);
        assert!(
            (0..9).all(|_| contention.nap(|| 0.0) > micros(0)),
            "two rivals"
        );
    }

    #[test]
    fn the_last_looks_count_for_what_a_look_takes_and_no_nap_is_longer_than_a_quarter_second() {
        let mut contention = after_seeing([1]);
        contention.took(micros(2000));
        contention.took(micros(500));
        assert_eq!(contention.nap(|| 1.0), micros(3500));
        contention.took(Duration::from_secs(3600));
        contention.begin(at(0));
        assert_eq!(
            contention.nap(|| 1.0),
            micros(5250),
            "a slow look counts as twice the mean"
        );
        (0..40).for_each(|_| contention.took(Duration::from_secs(3600)));
        contention.begin(at(0));
        assert_eq!(contention.nap(|| 1.0), LONGEST);
        let mut many = after_seeing(1..=16);
        assert_eq!(many.nap(|| 1.0), LONGEST);
    }

    #[test]
    fn rivals_that_are_not_seen_any_more_are_forgotten() {
        let mut contention = after_seeing(1..=8);
        contention.won(at(0));
        assert_eq!(contention.seen.len(), 8, "it met some");
        contention.begin(at(0));
        contention.won(at(0));
        assert_eq!(contention.seen.len(), 4);
        assert_eq!(contention.seen, after_seeing(5..=8).seen, "the oldest went");
        contention.ended(at(500));
        contention.begin(at(1_000_500));
        assert_eq!(contention.seen.len(), 4);
        contention.begin(at(1_000_501));
        assert_eq!(contention.seen.len(), 0);
    }
}
