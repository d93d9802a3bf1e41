//! What the threads of a scene like to do: each scene has a few kinds of operations, so that rare
//! combinations come often enough (swarm testing).

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::simulation::scene::plan::{Body, End, How, Op, Program, SeveralEnd, Terms, Under, With};

/// How often the operations of a scene come, relative to others of their kind.
pub(crate) struct Taste {
    keys: usize,
    ops: Vec<u32>,
    under: Vec<u32>,
    ends: Vec<u32>,
    terms: Vec<u32>,
}

/// What a thread has when it does something.
#[derive(Clone, Copy)]
struct Place<'a> {
    program: &'a Program,
    depth: u32,
    /// The locks that the thread holds. `None`: a deadlock would be found.
    ///
    /// Nobody finds a deadlock between processes. So a thread that holds locks waits for ever only
    /// for a key behind all of them.
    held: Option<&'a [usize]>,
}

impl Taste {
    pub(crate) fn draw(draw: &mut SmallRng, keys: usize) -> Taste {
        let mut some = |weights: &[u32]| {
            let mut one = |weight: &u32| if draw.random_bool(0.5) { *weight } else { 0 };
            let mut some: Vec<u32> = weights.iter().map(&mut one).collect();
            some[0] = weights[0]; // The first one always comes.
            some
        };
        let (ops, under) = (
            some(&[10, 2, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1]),
            some(&[8, 1, 1, 1, 2, 1, 1, 1, 6]),
        );
        let (ends, terms) = (
            some(&[8, 2, 6, 1, 2, 3, 3, 2]),
            some(&[8, 2, 1, 1, 1, 2, 1, 1]),
        );
        Taste {
            keys,
            ops,
            under,
            ends,
            terms,
        }
    }

    /// What a thread does.
    pub(crate) fn ops(
        &mut self,
        draw: &mut SmallRng,
        program: &Program,
        is_alone: bool,
    ) -> Vec<Op> {
        let none: &[usize] = &[];
        let place = Place {
            program,
            depth: 0,
            held: (!is_alone).then_some(none),
        };
        let mut ops: Vec<Op> = (0..draw.random_range(1..=5))
            .map(|_| self.op(draw, place))
            .collect();
        if draw.random_ratio(1, 4) {
            let again = self.short(draw, place);
            ops.extend(vec![again; draw.random_range(2..=16)]);
        }
        let forgets = |op: &Op| {
            matches!(
                op,
                Op::Lock {
                    end: End::Forget,
                    ..
                } | Op::Adopt {
                    end: End::Forget,
                    ..
                }
            )
        };
        if let Some(last) = ops.iter().position(forgets) {
            ops.truncate(last + 1);
        }
        ops
    }

    fn op(&self, draw: &mut SmallRng, place: Place<'_>) -> Op {
        let key = draw.random_range(0..self.keys);
        let manager = draw.random_range(0..place.program.managers);
        match choose(draw, &self.ops) {
            1 if place.depth == 0 => {
                let longest = [30, 300, 3_000][draw.random_range(0..3)];
                Op::Sleep(draw.random_range(0..longest))
            }
            2 => self.with(draw, place, key),
            3 => self.several(draw, place, manager),
            4 => Op::Adopt {
                key,
                terms: self.terms(draw, place),
                under: self.under(draw, place, &[key]),
                end: self.end(draw, place),
            },
            5 => Op::Attach,
            6 if place.depth == 0 => Op::ForceUnlock(key),
            7 if place.depth == 0 => Op::ForceUnlockIf(key),
            8 => Op::Holder(key),
            9 => Op::Look,
            10 if draw.random_ratio(1, 3) => Op::Stop,
            11 if draw.random_ratio(1, 3) => Op::Shutdown {
                manager,
                limit: [0, 20, 500, 3_000][draw.random_range(0..4)],
                releases: draw.random_bool(0.5),
            },
            _ => Op::Lock {
                key,
                how: place.may_wait(How::draw(draw), &[key]),
                terms: self.terms(draw, place),
                under: self.under(draw, place, &[key]),
                end: self.end(draw, place),
            },
        }
    }

    /// A closure under a lock.
    fn with(&self, draw: &mut SmallRng, place: Place<'_>, key: usize) -> Op {
        let with = [With::Lock, With::Try, With::Result][draw.random_range(0..3)];
        let with = if place.is_safe(&[key]) {
            with
        } else {
            With::Try
        };
        let body =
            [Body::Returns, Body::Returns, Body::Fails, Body::Panics][draw.random_range(0..4)];
        Op::With {
            key,
            with,
            terms: self.terms(draw, place),
            under: self.under(draw, place, &[key]),
            body,
        }
    }

    /// Several locks at a time.
    fn several(&self, draw: &mut SmallRng, place: Place<'_>, manager: usize) -> Op {
        let keys: Vec<_> = (0..self.keys).filter(|_| draw.random_bool(0.7)).collect();
        let how = place.may_wait(How::draw(draw), &keys);
        let ends = [
            SeveralEnd::Unlock,
            SeveralEnd::Drop,
            SeveralEnd::Panic,
            SeveralEnd::With,
        ];
        let end = ends[draw.random_range(0..if matches!(how, How::Lock) { 4 } else { 3 })];
        let under = self.under(draw, place, &keys);
        Op::Several {
            keys,
            how,
            manager,
            under,
            end,
        }
    }

    /// A job that is done again and again.
    fn short(&self, draw: &mut SmallRng, place: Place<'_>) -> Op {
        let key = draw.random_range(0..self.keys);
        let under = vec![Under::Work(draw.random_range(0..3))];
        let terms = Terms {
            manager: draw.random_range(0..place.program.managers),
            ..Terms::default()
        };
        Op::Lock {
            key,
            how: How::draw(draw),
            terms,
            under,
            end: End::Unlock,
        }
    }

    fn terms(&self, draw: &mut SmallRng, place: Place<'_>) -> Terms {
        let manager = draw.random_range(0..place.program.managers);
        let terms = Terms {
            manager,
            ..Terms::default()
        };
        match choose(draw, &self.terms) {
            1 => Terms {
                keeps: [1, 50, 700, 3_000][draw.random_range(0..4)],
                ..terms
            },
            2 => Terms {
                once: true,
                ..terms
            },
            3 => Terms {
                most_leases: draw.random_range(1..=3),
                ..terms
            },
            4 => Terms {
                unrenewed: true,
                ..terms
            },
            5 => Terms {
                heeds: true,
                ..terms
            },
            6 => Terms {
                doubled: true,
                ..terms
            },
            7 => Terms {
                often: true,
                ..terms
            },
            _ => terms,
        }
    }

    /// What is done under these locks.
    fn under(&self, draw: &mut SmallRng, place: Place<'_>, keys: &[usize]) -> Vec<Under> {
        let held = place.held.map(|held| [held, keys].concat());
        let place = Place {
            depth: place.depth + 1,
            held: held.as_deref(),
            ..place
        };
        (0..draw.random_range(0..=3))
            .map(|_| self.one_under(draw, place))
            .collect()
    }

    fn one_under(&self, draw: &mut SmallRng, place: Place<'_>) -> Under {
        let lease = place.program.lease;
        match choose(draw, &self.under) {
            1 => Under::Extend,
            2 => Under::ExtendTo([lease / 2, lease * 2][draw.random_range(0..2)]),
            3 => Under::Ensure(draw.random_range(0..lease * 2 / 5)),
            4 => Under::Confirm(draw.random_range(0..lease * 2 / 5)),
            5 => Under::Verify,
            6 => Under::WatchRisk(draw.random_range(0..lease)),
            7 => Under::WatchLoss([1, 100, 5_000][draw.random_range(0..3)]),
            8 if place.depth < 4 => Under::Inner(self.op(draw, place)),
            _ if draw.random_ratio(1, 12) => Under::Work(draw.random_range(0..4_000)),
            _ => Under::Work(draw.random_range(0..20)),
        }
    }

    fn end(&self, draw: &mut SmallRng, place: Place<'_>) -> End {
        match choose(draw, &self.ends) {
            1 => End::UnlockNow,
            2 => End::Drop,
            3 => End::Panic,
            4 => End::Detach,
            5 => End::Leave,
            6 => End::HandOver,
            7 if place.depth == 0 => End::Forget,
            _ => End::Unlock,
        }
    }
}

impl Place<'_> {
    fn is_safe(&self, keys: &[usize]) -> bool {
        // The thread may have lost that lock. Through another manager, it then waits for it as for
        // any other.
        let is_known =
            |key: &usize, held: &[usize]| self.program.managers == 1 && held.contains(key);
        let is_behind =
            |key: &usize, held: &[usize]| is_known(key, held) || held.iter().all(|it| it < key);
        self.held
            .is_none_or(|held| keys.iter().all(|key| is_behind(key, held)))
    }

    fn may_wait(&self, how: How, keys: &[usize]) -> How {
        if matches!(how, How::Lock) && !self.is_safe(keys) {
            How::For(300)
        } else {
            how
        }
    }
}

impl How {
    pub(crate) fn name(self) -> &'static str {
        if matches!(self, How::Try | How::For(0)) {
            "try_lock"
        } else {
            "lock"
        }
    }

    pub(crate) fn name_of_several(self) -> &'static str {
        if matches!(self, How::Try | How::For(0)) {
            "try_lock of several"
        } else {
            "lock of several"
        }
    }

    fn draw(draw: &mut SmallRng) -> How {
        let limit = [0, 1, 20, 300, 3_000][draw.random_range(0..5)];
        match draw.random_range(0..5) {
            0 | 1 => How::Lock,
            2 => How::Try,
            _ => How::For(limit),
        }
    }
}

/// The number of one of these weights.
fn choose(draw: &mut SmallRng, weights: &[u32]) -> usize {
    let mut at = draw.random_range(0..weights.iter().sum());
    weights
        .iter()
        .position(|weight| at.checked_sub(*weight).map(|rest| at = rest).is_none())
        .unwrap_or(0)
}
