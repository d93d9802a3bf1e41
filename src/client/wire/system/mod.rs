//! What a connection gets from the system and from r2d2: sockets, the addresses of a name, and
//! slots. In unit tests, `simulated` takes its place.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2::{self, TcpKeepalive};
use scheduled_thread_pool::ScheduledThreadPool;

pub(crate) use r2d2::{Pool as SlotPool, PooledConnection as BorrowedSlot};
pub(super) use socket2::Socket as Handle;

/// How long a connection may be silent before the system sends TCP keepalive probes. The probes
/// keep firewalls from dropping an idle connection, and end a connection whose other end is gone.
const ASKED_AFTER: Duration = Duration::from_secs(30);

/// Connects within `limit`.
pub(super) fn connect(address: SocketAddr, limit: Duration) -> io::Result<Handle> {
    let stream = TcpStream::connect_timeout(&address, limit)?;
    // With Nagle's algorithm, a clean-up that is written after an unanswered command would wait for
    // that answer.
    stream.set_nodelay(true)?;
    let socket = Handle::from(stream);
    socket.set_tcp_keepalive(&keepalive())?;
    Ok(socket)
}

/// The TCP keepalive settings: see [`ASKED_AFTER`].
fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(ASKED_AFTER);
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    let keepalive = {
        const EVERY: Duration = Duration::from_secs(10);
        const TIMES: u32 = 3;
        keepalive.with_interval(EVERY).with_retries(TIMES)
    };
    keepalive
}

/// The addresses of a host. Nothing bounds the time that this takes.
pub(super) fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Reads what has arrived. Does not wait.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
pub(super) fn read_now(socket: &Handle, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, rustix::net::RecvFlags::DONTWAIT)?.1)
}

/// Reads what has arrived. Does not wait.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(super) fn read_now(mut socket: &Handle, buffer: &mut [u8]) -> io::Result<usize> {
    socket.set_nonblocking(true)?;
    let read = io::Read::read(&mut socket, buffer);
    socket.set_nonblocking(false).and(read)
}

/// The slots that this pool lends.
pub(super) fn slots<M: r2d2::ManageConnection>(pool: r2d2::Pool<M>) -> SlotPool<M> {
    pool
}

/// The threads on which a pool makes slots.
pub(super) fn threads<E>(
    start: impl FnOnce() -> Result<ScheduledThreadPool, E>,
) -> Result<Arc<ScheduledThreadPool>, E> {
    Ok(Arc::new(start()?))
}
