//! The options that a program can set, their defaults and their checks.

pub(crate) mod classes;
mod replicas;

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::key::MAX_BYTES;

pub use crate::base::options::replicas::Replicas;

/// The shortest lease. With a shorter one, any small delay of the network would lose the lock.
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(10);

const MIN_PERIOD: Duration = Duration::from_millis(1);

/// The longest `connect_timeout`, `response_timeout` and `poll_every`.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// The largest `pool_size`: as many clients as Redis accepts by default (`maxclients`). The pool
/// allocates room for all of them when it is made.
const MOST_CONNECTIONS: u32 = 10_000;

/// The options of a lock. A manager has options, too: the defaults of its locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) renewal: Renewal,
    pub(crate) reclaim_dead: bool,
    /// Whether a hold gets a fencing token.
    pub(crate) fenced: bool,
    /// Whether a thread may take a lock that it already holds.
    pub(crate) reentrant: bool,
    /// The shortest time that the lock stays taken. Zero: no longer than it is held.
    pub(crate) keep_at_least: Duration,
    /// An option whose value cannot work, if there is one. Taking the lock then fails with an error
    /// that names this option.
    pub(crate) invalid: Option<InvalidOption>,
}

/// An option with a value that cannot work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InvalidOption {
    name: &'static str,
    value: Duration,
    reason: &'static str,
}

impl From<InvalidOption> for Error {
    fn from(option: InvalidOption) -> Error {
        invalid_option(option.name, option.value, option.reason)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(30),
            wait: None,
            renewal: Renewal {
                on: true,
                every: None,
                max_hold: None,
            },
            reclaim_dead: false,
            fenced: false,
            reentrant: true,
            keep_at_least: Duration::ZERO,
            invalid: None,
        }
    }
}

/// Whether, how often and for how long a hold is renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub(crate) on: bool,
    /// The period. `None` is a third of the lease.
    pub(crate) every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl Renewal {
    /// The time from one renewal to the next. `None` if renewal is off. At most half the lease:
    /// even if `set_lease` has shortened the lease, one renewal can fail without losing the hold.
    pub(crate) fn every(&self, lease: Lease) -> Option<Duration> {
        let every = self.every.unwrap_or(lease.time() / 3).min(lease.time() / 2);
        self.on.then_some(every)
    }
}

impl Options {
    /// Changes the options and checks them.
    pub(crate) fn change(&mut self, max_lease: Duration, change: impl FnOnce(&mut Options)) {
        change(self);
        self.invalid = self.check(max_lease).err();
    }

    fn check(&self, max_lease: Duration) -> Result<(), InvalidOption> {
        check_lease("lease", self.lease, max_lease)?;
        if let Some(value) = self.renewal.every
            && (value < MIN_PERIOD || value > self.lease / 2)
        {
            let reason =
                "it has to be between 1 ms and half the lease, so that a renewal can fail once";
            return Err(InvalidOption {
                name: "renew_every",
                value,
                reason,
            });
        }
        if self.keep_at_least > max_lease {
            let reason = "it is longer than `max_lease` (24 h unless raised)";
            return Err(InvalidOption {
                name: "keep_at_least",
                value: self.keep_at_least,
                reason,
            });
        }
        if !self.keep_at_least.is_zero() && self.reclaim_dead {
            let reason = "with `reclaim_dead`, a waiter would take the lock as soon as this process has ended";
            return Err(InvalidOption {
                name: "keep_at_least",
                value: self.keep_at_least,
                reason,
            });
        }
        if let Some(value) = self.renewal.max_hold
            && value < self.lease
        {
            let reason = "it has to be at least the lease, which lasts that long in any case";
            return Err(InvalidOption {
                name: "max_hold",
                value,
                reason,
            });
        }
        Ok(())
    }
}

pub(crate) fn check_lease(
    name: &'static str,
    value: Duration,
    max_lease: Duration,
) -> Result<(), InvalidOption> {
    if value < MIN_LEASE {
        return Err(InvalidOption {
            name,
            value,
            reason: "a lease has to be at least 10 ms",
        });
    }
    if value > max_lease {
        return Err(InvalidOption {
            name,
            value,
            reason: "it is longer than `max_lease` (24 h unless raised)",
        });
    }
    Ok(())
}

/// The options of a manager.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) options: Options,
    pub(crate) max_lease: Duration,
    pub(crate) pool_size: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) tolerate_outage: Duration,
    /// For how long threads of this process may hand a lock off among themselves before they leave
    /// it to other processes. Zero switches hand-offs off.
    pub(crate) local_handoff: Duration,
    pub(crate) client_tracking: bool,
    /// Whether waiters may find out that this process is dead.
    pub(crate) reclaimable: bool,
    pub(crate) poll_every: Duration,
    /// How long a wait or a hold may last before there is a warning.
    pub(crate) warn_after: Option<WarnAfter>,
    /// The prefixes of the classes that have their own counters.
    pub(crate) classes: Vec<String>,
    /// Which replicas have to acknowledge a lock and its renewals, and how long the server waits
    /// for them.
    pub(crate) replicas: Option<(Replicas, Duration)>,
}

/// How long a wait or a hold may last before there is a warning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarnAfter {
    pub(crate) wait: Duration,
    pub(crate) held: Duration,
}

/// The defaults of a manager. (The defaults of a lock are in `Options`.)
impl Default for Settings {
    fn default() -> Self {
        Settings {
            prefix: "lock:".to_owned(),
            options: Options::default(),
            max_lease: Duration::from_secs(24 * 3600),
            pool_size: 64,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            tolerate_outage: Duration::from_secs(10),
            local_handoff: Duration::from_millis(5),
            client_tracking: true,
            reclaimable: true,
            poll_every: Duration::from_millis(64),
            warn_after: None,
            classes: Vec::new(),
            replicas: None,
        }
    }
}

impl Settings {
    /// For how long threads of this process may hand a lock off among themselves.
    ///
    /// Zero with acknowledged replicas: the next thread's `SET` goes out with the release, and
    /// nobody would ask whether the replicas have it.
    pub(crate) fn local_handoff(&self) -> Duration {
        if self.replicas.is_some() {
            Duration::ZERO
        } else {
            self.local_handoff
        }
    }

    /// How long an attempt may take: to connect, and to get the answer.
    pub(crate) fn an_attempt(&self) -> Duration {
        self.connect_timeout.saturating_add(self.response_timeout)
    }

    /// By when a release or a renewal that begins now ends.
    pub(crate) fn response_deadline(&self) -> Moment {
        Moment::now().after(self.response_timeout)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

        if self.max_lease < MIN_LEASE || self.max_lease > LONGEST {
            return Err(invalid_option(
                "max_lease",
                self.max_lease,
                "it has to be between 10 ms and a year (366 days)",
            ));
        }
        self.options.check(self.max_lease)?;
        if self.prefix.len() > MAX_BYTES {
            let reason = "it is longer than 64 KiB";
            return Err(invalid_option("prefix", self.prefix.len(), reason));
        }
        if self.pool_size == 0 {
            return Err(invalid_option(
                "pool_size",
                self.pool_size,
                "a manager needs at least one connection",
            ));
        }
        if self.pool_size > MOST_CONNECTIONS {
            let reason =
                "it has to be at most 10,000, which is how many clients Redis accepts by default";
            return Err(invalid_option("pool_size", self.pool_size, reason));
        }
        for (option, timeout) in [
            ("connect_timeout", self.connect_timeout),
            ("response_timeout", self.response_timeout),
            ("poll_every", self.poll_every),
        ] {
            if timeout < Duration::from_millis(1) || timeout > MAX_TIMEOUT {
                return Err(invalid_option(
                    option,
                    timeout,
                    "it has to be between 1 ms and 1 h",
                ));
            }
        }
        if let Some(WarnAfter { wait, held }) = self.warn_after
            && wait.min(held) < Duration::from_millis(1)
        {
            return Err(invalid_option(
                "warn_after",
                wait.min(held),
                "both have to be at least 1 ms",
            ));
        }
        self.check_classes()?;
        self.check_replicas()
    }

    fn check_classes(&self) -> Result<(), Error> {
        let prefixes = &self.classes;
        if prefixes.len() > classes::MOST {
            let reason = "there are more than 100, and each makes about 100 time series";
            return Err(invalid_option("classes", prefixes.len(), reason));
        }
        for (n, prefix) in prefixes.iter().enumerate() {
            let reason = if prefix.is_empty() {
                "all keys begin with an empty prefix"
            } else if prefix.chars().any(char::is_control) {
                "it has a control character, and people read the label"
            } else if prefixes[..n].contains(prefix) {
                "it is there twice"
            } else {
                continue;
            };
            return Err(invalid_option("classes", prefix, reason));
        }
        Ok(())
    }

    fn check_replicas(&self) -> Result<(), Error> {
        let Some((replicas, timeout)) = self.replicas else {
            return Ok(());
        };
        if replicas == Replicas::at_least(0) {
            let reason =
                "leave the option out, or ask for the master's disk with `at_least(0).on_disk()`";
            return Err(invalid_option("replicas", replicas, reason));
        }
        if timeout < Duration::from_millis(1) || timeout > self.response_timeout {
            let reason = "its timeout has to be between 1 ms and the response timeout";
            return Err(invalid_option("replicas", timeout, reason));
        }
        Ok(())
    }
}

pub(crate) fn invalid_option(
    option: &'static str,
    value: impl std::fmt::Debug,
    reason: &'static str,
) -> Error {
    Error::InvalidOption {
        option,
        value: Some(format!("{value:?}")),
        reason,
    }
}

/// How long Redis keeps a key without renewal, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease(u64);

impl Lease {
    /// Redis counts whole milliseconds, so a fraction of a millisecond is cut off.
    pub(crate) fn new(asked: Duration) -> Lease {
        Lease(u64::try_from(asked.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn from_millis(millis: u64) -> Lease {
        Lease(millis)
    }

    pub(crate) fn time(self) -> Duration {
        Duration::from_millis(self.0)
    }

    pub(crate) fn millis(self) -> u64 {
        self.0
    }

    /// Until when a hold may be trusted if the command that set this lease was sent at `sent`.
    ///
    /// Redis starts the lease when it executes the command, never before the send. The hold leaves
    /// a margin of 1 % and 2 ms unused: the clocks of the two machines may drift apart, and Redis
    /// expires keys in whole milliseconds. The Redlock description has the same margin,
    /// <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>.
    pub(crate) fn valid_until(self, sent: Moment) -> Moment {
        let lease = self.nanos();
        sent.after_nanos(lease.saturating_sub(lease / 100 + 2_000_000))
    }

    /// The lease with which a hold may be trusted for `span` from the send on.
    pub(crate) fn trusted_for(span: Duration) -> Lease {
        let whole = (span + Duration::from_millis(2)) * 100 / 99;
        Lease::new(whole + Duration::from_nanos(999_999))
    }

    /// When the key has certainly expired, if Redis set this lease no later than `answered`.
    pub(crate) fn gone_by(self, answered: Moment) -> Moment {
        answered.after_nanos(self.nanos())
    }

    fn nanos(self) -> u64 {
        self.0.saturating_mul(1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    /// How `docs/defaults.md` writes a value that `Debug` shows like this.
    fn in_words(shown: &str) -> String {
        match shown {
            "None" => "no limit, off or a third of the lease".to_owned(),
            "true" => "on".to_owned(),
            "false" => "off".to_owned(),
            "0ns" | "[]" => "none".to_owned(),
            "86400s" => "24 h".to_owned(),
            text if text.starts_with('"') => text.replace('"', "`"),
            number => {
                let unit = number.find(char::is_alphabetic).unwrap_or(number.len());
                let (number, unit) = number.split_at(unit);
                [number, unit].join(" ").trim().to_owned()
            }
        }
    }

    #[test]
    fn the_page_on_defaults_has_every_option_with_its_value() {
        let page = include_str!("../../../docs/defaults.md");
        let rows: Vec<_> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .collect();
        let shown = format!("{:?}", Settings::default());
        let fields = shown.split([',', '{', '}']);
        let fields = fields.filter_map(|field| field.trim().split_once(": "));
        let is_option = |(name, value): &(&str, &str)| {
            *name != "invalid" && !["Options", "Renewal"].contains(value)
        };
        let mut options = 0;
        for (name, value) in fields.filter(is_option) {
            let name = match name {
                "on" => "renew",
                "every" => "renew_every",
                name => name,
            };
            let mut rest = rows
                .iter()
                .filter_map(|row| row.strip_prefix(&format!("{name}` | ")));
            let rest = rest.next().unwrap_or_else(|| panic!("{name} is missing"));
            let default = rest.split(" | ").next().expect("a cell");
            assert!(
                in_words(value).contains(default),
                "{name}: {value}, {default}"
            );
            options += 1;
        }
        assert_eq!(options, rows.len(), "{shown}");
    }

    #[test]
    fn classes_that_cannot_work_are_refused() {
        let many: Vec<_> = (0..=classes::MOST).map(|n| format!("{n}:")).collect();
        let many: Vec<_> = many.iter().map(|it| &**it).collect();
        for (classes, named) in [
            (&["a", ""][..], r#"`classes` cannot be "": all keys"#),
            (&["a", "b", "a"], r#"`classes` cannot be "a": it is there"#),
            (&["a\n"], r#"`classes` cannot be "a\n": it has a control"#),
            (
                &["\u{85}"],
                r#"`classes` cannot be "\u{85}": it has a control"#,
            ),
            (&many, "`classes` cannot be 101: there are more"),
        ] {
            let settings = Settings {
                classes: classes.iter().map(ToString::to_string).collect(),
                ..Settings::default()
            };
            let error = settings.check().unwrap_err();
            assert!(matches!(error, Error::InvalidOption { .. }), "{error:?}");
            assert!(error.to_string().contains(named), "{error}");
        }
        let settings = Settings {
            classes: many[1..].iter().map(ToString::to_string).collect(),
            ..Settings::default()
        };
        settings.check().unwrap();
    }

    /// Durations of every size, and the limits of the options.
    fn any_span() -> impl Strategy<Value = Duration> {
        let sizes = (0..64_u32, any::<u64>())
            .prop_map(|(shift, nanos)| Duration::from_nanos(nanos >> shift));
        let seconds = (any::<u64>(), 0..1_000_000_000_u32)
            .prop_map(|(secs, nanos)| Duration::new(secs, nanos));
        let edges = [
            0,
            1,
            10,
            1000,
            30_000,
            3_600_000,
            86_400_000,
            366 * 86_400_000,
        ]
        .map(Duration::from_millis);
        prop_oneof![4 => sizes, 1 => seconds, 2 => prop::sample::select(edges.to_vec()), 1 => Just(Duration::MAX)]
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        /// Holds for any lease, even one that only a server could report, whatever the clock shows.
        #[test]
        fn no_lease_or_time_overflows(asked in any_span(), at: u64, every in any_span()) {
            let (lease, sent) = (Lease::new(asked), Moment::from_nanos(at));
            prop_assert!(lease.valid_until(sent) >= sent);
            prop_assert!(lease.valid_until(sent) <= lease.gone_by(sent));
            prop_assert!(Duration::from_millis(lease.millis()) <= asked);
            let renewal = Renewal { on: true, every: Some(every), max_hold: None };
            prop_assert!(renewal.every(lease).is_some_and(|every| sent.after(every) <= lease.gone_by(sent)));
        }
    }

    /// Sets an option.
    type Set = fn(&mut Settings, Duration);

    #[test]
    fn a_value_that_cannot_work_is_refused_with_its_option() {
        const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
        let (nanos, millis) = (Duration::from_nanos, Duration::from_millis);
        // Two values that are too small or too large, and two that work.
        let table: [(&str, Set, [Duration; 4]); 9] = [
            (
                "lease",
                |it, value| it.options.lease = value,
                [
                    nanos(9_999_999),
                    millis(86_400_001),
                    millis(10),
                    millis(86_400_000),
                ],
            ),
            (
                "renew_every",
                |it, value| it.options.renewal.every = Some(value),
                [nanos(999_999), millis(15_001), millis(1), millis(15_000)],
            ),
            (
                "max_hold",
                |it, value| it.options.renewal.max_hold = Some(value),
                [
                    millis(29_999),
                    Duration::ZERO,
                    millis(30_000),
                    Duration::MAX,
                ],
            ),
            (
                "max_lease",
                |it, value| (it.max_lease, it.options.lease) = (value, value),
                [nanos(9_999_999), YEAR + nanos(1), millis(10), YEAR],
            ),
            (
                "connect_timeout",
                |it, value| it.connect_timeout = value,
                [
                    Duration::ZERO,
                    millis(3_600_001),
                    millis(1),
                    millis(3_600_000),
                ],
            ),
            (
                "response_timeout",
                |it, value| it.response_timeout = value,
                [Duration::ZERO, Duration::MAX, millis(1), millis(3_600_000)],
            ),
            (
                "poll_every",
                |it, value| it.poll_every = value,
                [
                    nanos(999_999),
                    millis(3_600_001),
                    millis(1),
                    millis(3_600_000),
                ],
            ),
            (
                "warn_after",
                |it, wait| {
                    it.warn_after = Some(WarnAfter {
                        wait,
                        held: Duration::MAX,
                    });
                },
                [Duration::ZERO, Duration::ZERO, millis(1), Duration::MAX],
            ),
            (
                "replicas",
                |it, value| it.replicas = Some((Replicas::all(), value)),
                [nanos(999_999), millis(1001), millis(1), millis(1000)],
            ),
        ];
        for (option, set, [small, large, least, most]) in table {
            for value in [small, large] {
                let error = checked(|it| set(it, value)).expect_err(option).to_string();
                assert!(error.contains(option), "{error}");
                let is_shown = option == "replicas" || error.contains(&format!("{value:?}"));
                assert!(is_shown, "{error}");
            }
            for value in [least, most] {
                checked(|it| set(it, value)).expect(option);
            }
        }
    }

    fn checked(change: impl FnOnce(&mut Settings)) -> Result<(), Error> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check()
    }

    #[test]
    fn what_is_no_duration_is_checked_too() {
        let second = Duration::from_secs(1);
        let warn = WarnAfter {
            wait: second,
            held: Duration::ZERO,
        };
        let replicas = |it| Some((it, second));
        let refused: [fn(&mut Settings); 4] = [
            |it| {
                it.options.keep_at_least = Duration::from_millis(1);
                it.options.reclaim_dead = true;
            },
            |it| it.prefix = "p".repeat(MAX_BYTES + 1),
            |it| it.pool_size = 0,
            |it| it.pool_size = MOST_CONNECTIONS + 1,
        ];
        for (change, option) in
            refused
                .into_iter()
                .zip(["keep_at_least", "prefix", "pool_size", "pool_size"])
        {
            let error = checked(change);
            assert!(matches!(error, Err(Error::InvalidOption { option: it, .. }) if it == option));
        }
        assert!(checked(|it| it.warn_after = Some(warn)).is_err());
        assert!(checked(|it| it.replicas = replicas(Replicas::at_least(0))).is_err());
        let on_disk = Replicas::at_least(0).on_disk();
        assert_eq!(
            format!("{:?} {on_disk:?}", Replicas::all()),
            "all() at_least(0).on_disk()"
        );
        checked(|it| it.replicas = replicas(on_disk)).unwrap();
        checked(|it| it.pool_size = MOST_CONNECTIONS).unwrap();
    }

    #[test]
    fn options_are_checked_together_in_whatever_order_they_are_set() {
        let mut options = Options::default();
        let mut set = |change: fn(&mut Options)| {
            options.change(Duration::from_secs(3600), change);
            options.invalid.map(|it| it.name)
        };
        let every = set(|options| options.renewal.every = Some(Duration::from_secs(20)));
        assert_eq!(every, Some("renew_every"));
        assert_eq!(set(|options| options.lease = Duration::from_secs(60)), None);
        let lease = set(|options| options.lease = Duration::from_secs(3601));
        assert_eq!(lease, Some("lease"));
    }

    #[test]
    fn a_lease_is_trusted_for_one_percent_and_two_milliseconds_less() {
        let (sent, micros) = (Moment::from_nanos(0), Duration::from_micros);
        for (asked, valid, gone) in [(10_000_000, 9_898_000, 10_000_000), (10_900, 7900, 10_000)] {
            let lease = Lease::new(micros(asked));
            let ends = [lease.valid_until(sent), lease.gone_by(sent)];
            assert_eq!(ends.map(|it| it.since(sent)), [valid, gone].map(micros));
        }
        assert_eq!(Lease::new(Duration::MAX).gone_by(sent), Moment::NEVER);
    }

    #[test]
    fn the_renewal_period_is_at_most_half_the_lease() {
        let (lease, seconds) = (Lease::new(Duration::from_secs(12)), Duration::from_secs);
        for (on, every, expected) in [
            (true, None, Some(4)),
            (true, Some(5), Some(5)),
            (true, Some(10), Some(6)),
            (false, None, None),
        ] {
            let every = every.map(seconds);
            let renewal = Renewal {
                on,
                every,
                max_hold: None,
            };
            assert_eq!(renewal.every(lease), expected.map(seconds));
        }
    }
}
