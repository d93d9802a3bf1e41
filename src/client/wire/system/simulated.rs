//! What stands in for [`system`](real) in unit tests: inside a run of the simulator, sockets, names
//! and slots are those of the scheduler.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::base::sync::scheduler;

pub(crate) use crate::base::sync::scheduler::{Slot as BorrowedSlot, SlotPool};

#[path = "mod.rs"]
#[expect(unused_imports, reason = "what is lent comes from the scheduler")]
mod real;

pub(super) fn connect(address: SocketAddr, limit: Duration) -> io::Result<Handle> {
    match scheduler::connect(address, limit) {
        Some(socket) => Ok(Handle::Simulated(socket?)),
        None => real::connect(address, limit).map(Handle::System),
    }
}

pub(super) fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    scheduler::resolve(host, port).unwrap_or_else(|| real::addresses(host, port))
}

pub(super) fn read_now(socket: &Handle, buffer: &mut [u8]) -> io::Result<usize> {
    match socket {
        Handle::System(socket) => real::read_now(socket, buffer),
        Handle::Simulated(socket) => socket.read_now(buffer),
    }
}

pub(super) fn slots<M: r2d2::ManageConnection + Default>(pool: r2d2::Pool<M>) -> SlotPool<M> {
    if scheduler::inside() {
        SlotPool::simulated(M::default(), pool.max_size())
    } else {
        SlotPool::Real(real::slots(pool))
    }
}

pub(super) fn threads<E>(
    start: impl FnOnce() -> Result<ScheduledThreadPool, E>,
) -> Result<Arc<ScheduledThreadPool>, E> {
    if scheduler::inside() {
        return Ok(Arc::clone(&scheduler::UNUSED));
    }
    real::threads(start)
}

#[derive(Debug)]
pub(super) enum Handle {
    System(socket2::Socket),
    Simulated(scheduler::Socket),
}

impl Handle {
    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Handle::System(socket) => socket.shutdown(how),
            Handle::Simulated(socket) => {
                socket.shutdown();
                Ok(())
            }
        }
    }

    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match (self, timeout) {
            (Handle::System(socket), _) => return socket.set_read_timeout(timeout),
            (Handle::Simulated(socket), Some(timeout)) => socket.set_timeout(timeout),
            (Handle::Simulated(_), None) => {}
        }
        Ok(())
    }

    pub(super) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Handle::System(socket) => socket.set_write_timeout(timeout),
            Handle::Simulated(_) => Ok(()),
        }
    }
}

impl Read for &Handle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Handle::System(socket) => (&*socket).read(buffer),
            Handle::Simulated(socket) => socket.read(buffer),
        }
    }
}

impl Write for &Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Handle::System(socket) => (&*socket).write(bytes),
            Handle::Simulated(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Deref for Handle {
    type Target = socket2::Socket;

    fn deref(&self) -> &socket2::Socket {
        match self {
            Handle::System(socket) => socket,
            Handle::Simulated(_) => unreachable!("there is no socket of the system"),
        }
    }
}

impl From<socket2::Socket> for Handle {
    fn from(socket: socket2::Socket) -> Handle {
        Handle::System(socket)
    }
}
