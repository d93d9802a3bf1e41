//! Scenes of their own, for faults of the guarantees whose point is an order or a time. In virtual
//! time, the bounds are exact: what is not due by the promise is due by the latency of the network.

mod answers;
mod calls;
mod copies;
mod handing;
mod holds;
mod leases;
mod lost;
mod maps;
mod nodes;
mod outages;
mod reports;
mod sets;
mod stops;
mod switches;
mod waiters;
mod waits;
mod wire;

use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{self, Ended, Order, below, change_link, fail, now};
use crate::simulation::judge::Judge;
use crate::simulation::redis::{Entry, Value};
use crate::simulation::world::engine::{Engine, Servers};
use crate::{Builder, LockManager};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A round trip takes less than this, and so do the steps of a call.
pub(crate) const QUICK: Duration = Duration::from_millis(1);

pub(crate) struct World {
    pub(crate) servers: Rc<Servers>,
}

/// Plays `events` with one server in so many orders.
pub(crate) fn in_scenes(times: u64, events: impl Fn(&World) + Send + Sync + 'static) {
    in_scenes_with(Engine::Server, times, events);
}

pub(crate) fn in_scenes_with(
    engine: Engine,
    times: u64,
    events: impl Fn(&World) + Send + Sync + 'static,
) {
    in_scenes_of(&[1, 2, 4, 16], engine, times, events);
}

/// Each thread takes many steps before another one goes on.
pub(crate) fn in_long_strides(times: u64, events: impl Fn(&World) + Send + Sync + 'static) {
    in_scenes_of(&[32], Engine::Server, times, events);
}

fn in_scenes_of(
    switches: &'static [u32],
    engine: Engine,
    times: u64,
    events: impl Fn(&World) + Send + Sync + 'static,
) {
    let order = move |seed| Order {
        switches: switches[usize::try_from(seed).expect("a few") % switches.len()],
        stalls: 0,
        longest: Duration::MAX,
    };
    let play = move |_| {
        let world = World {
            servers: Rc::new(Servers::start(engine, &Judge::idle())),
        };
        events(&world);
        let left = scheduler::threads_left();
        if !left.is_empty() {
            fail(format!("threads are left: {left:?}"));
        }
    };
    scheduler::run(0..scheduler::orders(times), order, play, |ended| {
        let Ended { seed, failure, .. } = ended;
        assert!(
            failure.is_none(),
            "seed {seed}: {}",
            failure.unwrap_or_default()
        );
    });
}

impl World {
    pub(crate) fn delete(&self, key: &str) {
        let key = format!("lock:{key}");
        self.servers.nodes[0]
            .borrow_mut()
            .act(|redis, now| redis.delete(key.as_bytes(), now));
    }

    /// Another process has the lock.
    pub(crate) fn occupy(&self, key: &str, number: u32) {
        let key = format!("lock:{key}");
        let value = Value::String(format!("host-{number}-1-{number:032x}").into_bytes());
        self.servers.nodes[0].borrow_mut().act(|redis, now| {
            redis.advance(now);
            let expires = Some(redis.clock() + 60_000);
            redis.set(key.as_bytes(), Entry { value, expires }, now);
        });
    }

    pub(crate) fn value(&self, key: &str) -> Option<Value> {
        let mut server = self.servers.nodes[0].borrow_mut();
        server.act(|redis, now| {
            redis.advance(now);
            let entry = redis.get(format!("lock:{key}").as_bytes());
            entry.map(|entry| entry.value.clone())
        })
    }

    pub(crate) fn exists(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Nothing arrives for `span`.
    fn silence(&self, span: Duration) {
        let until = now() + u64::try_from(span.as_nanos()).expect("a short time");
        change_link(self.servers.address(0), |link| {
            link.silent_until = [until; 2];
        });
    }
}

pub(crate) fn locks(change: impl FnOnce(Builder) -> Builder) -> LockManager {
    change(Engine::Server.builder())
        .build_lazily()
        .expect("options that can work")
}

pub(crate) fn since(moment: u64) -> Duration {
    Duration::from_nanos(now() - moment)
}

/// Any time up to `most`.
pub(crate) fn some(most: Duration) -> Duration {
    Duration::from_nanos(below(u64::try_from(most.as_nanos()).expect("a short time")))
}
