//! How many other processes want the same lock, and how long a waiter sleeps because of them before
//! it asks. (A *look* is an attempt: one question to Redis.)
//!
//! *A waiter estimates its rivals from the last holders it saw: few repeats mean many rivals.
//! Before each look it sleeps about three and a half looks' time per rival, less what it has slept
//! in this wait.*
//!
//! Redis wakes all waiters of a key at once. If each of them looked at once, every release would
//! cost as many commands as there are waiters, and Redis would serve the losers while the next
//! holder waits for its answer. So they spread their looks: the more waiters there are, the further
//! apart. A waiter does not need speed to win: one that lost has slept already, and sleeps less
//! next time.
//!
//! The estimate is that of a mark-recapture census (Schnabel's, with samples of one): repeats among
//! the last sightings show how many rivals there are. `many` sightings of `kinds` different
//! processes have `many - kinds` repeats, and suggest about `kinds * many / (2 * repeats)` rivals.
//! The added `1` in the divisor keeps the estimate finite if there are no repeats.
//!
//! The figures given with the constants come from the simulation in this file's tests. Processes
//! *lose* turns if they have fewer in the same time than processes that look at once.

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
/// left. With 2, four processes with short holds lose 14 % of their turns instead of 9 %; with 8,
/// the longest waits of ten processes are one and a half times as long.
const FORGOTTEN: usize = 4;

/// How long a rival's turn takes, apart from its hold, as a multiple of the time of one look: its
/// own look, its release, and a waiter's trip to Redis. With half of this, four hundred processes
/// ask 72 times a turn; with twice as much, two processes with short holds lose a sixth of their
/// turns instead of a twentieth.
const LOOKS: f64 = 3.5;

/// The least part of the full sleep that a waiter sleeps before each look, even if it has slept its
/// full time already. If such waiters looked at once, more and more of them would ask a slow Redis
/// more and more often. With an eighth, ten processes lose 14 % of their turns instead of 8 %; with
/// a 32nd, four hundred ask 54 times a turn.
const LATE: f64 = 1.0 / 16.0;

/// The chance that a waiter that knows one rival looks at once, except at the start of its wait. If
/// it never did, two processes would lose a tenth of their turns instead of 3 %; if it always did,
/// two would take turns forever, and a third would get none.
const AT_ONCE: f64 = 0.75;

/// The longest sleep before a look, so that a Redis that was slow once does not hold a waiter up
/// for long. A quarter of this, or four times as much, does as well.
const LONGEST: Duration = Duration::from_millis(250);

/// A process that saw no other for this long counts as alone. A process that did not want the key
/// for this long forgets the rivals it had. (If that time counted from the last sighting, a process
/// would forget its rivals during each long hold of its own. It would then look at once, and get
/// the lock before all those that wait.)
const MEMORY: Duration = Duration::from_secs(1);

/// A process's observations of its rivals for one key, and how it waits for that key.
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
    /// There has been no look in this wait yet.
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

    /// The sleep before the first look was skipped.
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

    /// True if no other process has been seen for [`MEMORY`], so perhaps none wants the lock. (The
    /// estimate alone does not show that: it drops with each first look that finds the lock free.)
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

    /// How many other processes want the lock, as far as this process has seen.
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
/// so the values do not show how many processes there are.
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
    use std::cmp::Reverse;
    use std::collections::{BTreeSet, BinaryHeap};
    use std::iter;

    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

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
        // Four rivals, 3.5 ms each, and the smallest number that can be drawn.
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

    /// A simulation of many processes and one key. All times are in microseconds. A message takes
    /// `ONE_WAY` over the network. Redis does one thing after another: a command takes `COMMAND`,
    /// an invalidation `NOTICE`. A process that gets a message needs `WAKE` to run. Unless `once`
    /// is set, a process wants the lock again as soon as it has released it.
    struct Herd {
        hold: u64,
        /// The processes follow the rule. If false, they look at once.
        follows: bool,
        /// Each process takes the lock only once.
        once: bool,
        random: SmallRng,
        events: BinaryHeap<Reverse<(u64, u64, Event)>>,
        commands: u64,
        order: u64,
        busy_until: u64,
        holder: Option<usize>,
        registered: BTreeSet<usize>,
        processes: Vec<Process>,
        /// For each turn: when it began, which process had it, and how long that process waited.
        turns: Vec<(u64, usize, u64)>,
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Begin(usize),
        Wake(usize),
        Look(usize),
        Lost(usize, usize),
        Won(usize),
        Delete(usize),
    }

    struct Process {
        contention: Contention,
        name: Holder,
        began: u64,
        asked: u64,
        /// How long it has had the lock without meeting any other process.
        run: u64,
    }

    const ONE_WAY: u64 = 100;
    const COMMAND: u64 = 8;
    const NOTICE: u64 = 1;
    const WAKE: u64 = 30;
    const HAND_OFF: u64 = 2 * ONE_WAY + WAKE;

    /// After a run of this length, a process leaves the key free for a twenty-fourth of it, or for
    /// as long as others need. (`waiting/queue.rs` has that rule.)
    const RUN: u64 = 5000;

    impl Herd {
        fn new(processes: u32, hold: u64) -> Herd {
            let mut herd = Herd {
                hold,
                follows: true,
                once: false,
                random: SmallRng::seed_from_u64(u64::from(processes) * 1_000_000 + hold),
                events: BinaryHeap::new(),
                commands: 0,
                order: 0,
                busy_until: 0,
                holder: None,
                registered: BTreeSet::new(),
                processes: Vec::new(),
                turns: Vec::new(),
            };
            for number in 0..processes {
                let (contention, name) = (Contention::default(), process(number));
                herd.processes.push(Process {
                    contention,
                    name,
                    began: 0,
                    asked: 0,
                    run: 0,
                });
                let soon = herd.random.random_range(0..10);
                herd.at(soon, Event::Begin(number as usize));
            }
            herd
        }

        fn at(&mut self, when: u64, event: Event) {
            self.order += 1;
            self.events.push(Reverse((when, self.order, event)));
        }

        fn serve(&mut self, now: u64, cost: u64) -> u64 {
            self.busy_until = self.busy_until.max(now) + cost;
            self.busy_until
        }

        fn run(mut self, until: u64) -> Herd {
            while let Some(Reverse((now, _, event))) = self.events.pop()
                && now <= until
            {
                self.step(now, event);
            }
            self
        }

        fn step(&mut self, now: u64, event: Event) {
            match event {
                Event::Begin(who) => {
                    self.processes[who].contention.ended(at(now));
                    let let_in = self.begin(now, who);
                    self.look(now + let_in, who);
                }
                Event::Wake(who) => self.look(now, who),
                Event::Look(who) => {
                    self.commands += 1;
                    let heard = self.serve(now, COMMAND) + ONE_WAY + WAKE;
                    if let Some(by) = self.holder {
                        self.registered.insert(who);
                        return self.at(heard, Event::Lost(who, by));
                    }
                    self.holder = Some(who);
                    self.at(heard, Event::Won(who));
                }
                Event::Lost(who, by) => {
                    let holder = self.processes[by].name.clone();
                    let me = &mut self.processes[who];
                    me.contention.took(micros(now - me.asked));
                    me.contention.saw(&holder, at(now));
                    me.run = 0;
                }
                Event::Won(who) => {
                    let me = &mut self.processes[who];
                    me.contention.took(micros(now - me.asked));
                    me.contention.won(at(now));
                    me.run += self.hold + HAND_OFF;
                    self.turns.push((now, who, now - me.began));
                    self.at(now + self.hold + ONE_WAY, Event::Delete(who));
                }
                Event::Delete(who) => {
                    self.commands += 1;
                    self.holder = None;
                    let answered = self.serve(now, COMMAND) + ONE_WAY + WAKE;
                    let mut waiters: Vec<_> = mem::take(&mut self.registered).into_iter().collect();
                    waiters.shuffle(&mut self.random);
                    for waiter in waiters {
                        let heard = self.serve(now, NOTICE) + ONE_WAY + WAKE;
                        self.at(heard, Event::Wake(waiter));
                    }
                    if !self.once {
                        self.at(answered, Event::Begin(who));
                    }
                }
            }
        }

        /// How long the process leaves the lock to others.
        fn begin(&mut self, now: u64, who: usize) -> u64 {
            let me = &mut self.processes[who];
            me.began = now;
            me.contention.begin(at(now));
            if me.run < RUN {
                return 0;
            }
            let least = if me.contention.is_alone(at(now)) {
                250
            } else {
                750
            };
            (mem::take(&mut me.run) / 24).clamp(least, 2500)
        }

        fn look(&mut self, now: u64, who: usize) {
            let random = &mut self.random;
            let nap = self.processes[who]
                .contention
                .nap(|| random.random_range(0.0..1.0));
            let nap = if self.follows {
                u64::try_from(nap.as_micros()).unwrap()
            } else {
                0
            };
            self.processes[who].asked = now + nap;
            self.at(now + nap + ONE_WAY, Event::Look(who));
        }
    }

    #[test]
    fn no_process_starves_and_little_is_lost_however_many_take_turns() {
        // The number of processes, and how long each of them has the lock.
        for (processes, hold) in [
            (2, 40),
            (10, 40),
            (3, 1000),
            (30, 1000),
            (10, 20_000),
            (3, 2_000_000),
        ] {
            let until = 600 * (hold + HAND_OFF);
            let herd = Herd::new(processes, hold).run(until);
            let turns_of = |who| herd.turns.iter().filter(|turn| turn.1 == who).count();
            let fewest = (0..herd.processes.len()).map(turns_of).min().unwrap();
            // Waits that are not over are included.
            let open = herd.processes.iter().map(|process| until - process.began);
            let waits: Vec<_> = herd.turns.iter().map(|turn| turn.2).chain(open).collect();
            let mean = waits.iter().sum::<u64>() / waits.len() as u64;
            let longest = waits.iter().max().unwrap() / mean;
            let commands_a_turn = herd.commands / herd.turns.len() as u64;
            let told = format!(
                "{processes} processes, {hold} us: {commands_a_turn} commands a turn, the longest \
                 wait {longest} times the mean, {fewest} turns at least"
            );
            let follows = false;
            let at_once = Herd {
                follows,
                ..Herd::new(processes, hold)
            }
            .run(until);
            assert!(100 * herd.turns.len() >= 85 * at_once.turns.len(), "{told}");
            assert!(longest <= 30 && fewest > 0, "{told}");
            // During a long hold, every waiter looks. That does no harm, since Redis has time for
            // it.
            let most = if hold > 1000 {
                u64::from(processes) + 2
            } else {
                20
            };
            assert!(commands_a_turn <= most, "{told}");
        }
    }

    #[test]
    fn all_that_wait_for_one_hold_have_it_soon() {
        let once = true;
        let herd = Herd {
            once,
            ..Herd::new(200, 1000)
        }
        .run(u64::MAX);
        let last = herd.turns.last().unwrap().0;
        assert_eq!(herd.turns.len(), 200);
        assert!(last <= 700_000 && herd.commands <= 200 * 50, "{last} us");
    }
}
