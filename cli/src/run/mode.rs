//! How a run locks its key: alone, in one of several slots, or as a reader or the writer.

use std::fmt;

use relatch::{Lock, LockManager};
use serde_json::Value;

use crate::args::Run;

/// The most readers at a time: the library's maximum.
const READERS: usize = 64;

/// How the command line asks for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Alone,
    /// In one of this many slots.
    Slots(u8),
    Shared,
    Exclusive,
}

impl Mode {
    pub(crate) fn of(options: &Run) -> Mode {
        match options.slots {
            Some(count) => Mode::Slots(count),
            None if options.shared => Mode::Shared,
            None if options.exclusive => Mode::Exclusive,
            None => Mode::Alone,
        }
    }

    /// The lock that a run in this mode takes. `None` means the plain lock of that name.
    pub(crate) fn lock(self, locks: &LockManager, name: &str) -> Option<Lock> {
        match self {
            Mode::Alone => None,
            Mode::Slots(count) => Some(locks.slots(name, count.into())),
            Mode::Shared => Some(locks.read_write(name, READERS).read_lock()),
            Mode::Exclusive => Some(locks.read_write(name, READERS).write_lock()),
        }
    }

    /// The part of a lock that a run in this mode has. (`slot` comes from its lock guard.)
    pub(crate) fn part(self, slot: Option<u32>) -> Part {
        match (self, slot) {
            (Mode::Slots(_), Some(number)) => Part::Slot(number),
            (Mode::Alone | Mode::Slots(_), _) => Part::Whole,
            (Mode::Shared, _) => Part::Reader,
            (Mode::Exclusive, _) => Part::Writer,
        }
    }

    /// The name of the option.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Mode::Alone => "",
            Mode::Slots(_) => "--slots",
            Mode::Shared => "--shared",
            Mode::Exclusive => "--exclusive",
        }
    }
}

/// The option, as on a command line.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.option())?;
        match self {
            Mode::Slots(count) => write!(f, " {count}"),
            _ => Ok(()),
        }
    }
}

/// The part of a lock that a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Slot(u32),
    Reader,
    Writer,
}

impl Part {
    /// Whether this part is what an inner run wants of the same name. (A writer may read.)
    pub(crate) fn is_enough(self, wanted: Mode) -> bool {
        match wanted {
            Mode::Alone => self == Part::Whole,
            Mode::Slots(count) => matches!(self, Part::Slot(number) if number <= count.into()),
            Mode::Shared => matches!(self, Part::Reader | Part::Writer),
            Mode::Exclusive => self == Part::Writer,
        }
    }

    /// Whether an inner writer would wait for its outer run. (Readers and `--slots` use the same
    /// keys.)
    pub(crate) fn keeps_writers_out(self) -> bool {
        matches!(self, Part::Reader | Part::Slot(_))
    }

    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            Part::Slot(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn value(self) -> Value {
        match self {
            Part::Whole => Value::Null,
            Part::Slot(number) => number.into(),
            Part::Reader => "reader".into(),
            Part::Writer => "writer".into(),
        }
    }

    pub(crate) fn read(value: &Value) -> Part {
        let number = value.as_u64().and_then(|number| number.try_into().ok());
        match (value.as_str(), number) {
            (_, Some(number)) => Part::Slot(number),
            (Some("reader"), _) => Part::Reader,
            (Some("writer"), _) => Part::Writer,
            _ => Part::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_enough_for_a_run_inside() {
        let modes = [Mode::Alone, Mode::Slots(2), Mode::Shared, Mode::Exclusive];
        for (part, expected) in [
            (Part::Whole, [true, false, false, false]),
            (Part::Slot(2), [false, true, false, false]),
            (Part::Slot(3), [false, false, false, false]),
            (Part::Reader, [false, false, true, false]),
            (Part::Writer, [false, false, true, true]),
        ] {
            assert_eq!(modes.map(|mode| part.is_enough(mode)), expected, "{part:?}");
            assert_eq!(Part::read(&part.value()), part);
        }
    }
}
