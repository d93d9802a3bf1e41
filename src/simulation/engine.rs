//! What keeps the locks of a scene, and how programs reach it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::simulation::redis::{Redis, Settings};
use crate::simulation::server::Server;
use crate::{Builder, LockManager};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Memory,
    Server,
}

/// The servers of a scene.
pub(super) struct Servers {
    pub(super) nodes: Vec<(SocketAddr, Rc<RefCell<Server>>)>,
}

impl Engine {
    pub(super) fn draw(draw: &mut SmallRng) -> Engine {
        if draw.random_ratio(1, 8) { Engine::Memory } else { Engine::Server }
    }

    pub(super) fn builder(self) -> Builder {
        match self {
            Engine::Memory => LockManager::builder_in_memory(),
            Engine::Server => LockManager::builder("redis://redis:6379/"),
        }
    }
}

impl Servers {
    pub(super) fn start(engine: Engine) -> Servers {
        let count = match engine {
            Engine::Memory => 0,
            Engine::Server => 1,
        };
        let start = |number: u8| {
            let address = SocketAddr::from(([10, 0, 0, number], 6379));
            (address, Server::start(address, "redis", Redis::new(Settings::default())))
        };
        Servers { nodes: (0..count).map(start).collect() }
    }
}
