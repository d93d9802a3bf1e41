//! A server that is none: it says whatever it is told to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::listen;
use super::resp::{Splitter, words};

/// What is said in the place of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    /// These bytes, and nothing more.
    Bytes(Vec<u8>),
    /// These bytes, and the others after a while.
    Late(Vec<u8>, Duration, Vec<u8>),
    /// The first bytes, then the others over and over for so long, as fast as they are taken; then the connection ends.
    OverAndOver(Vec<u8>, Vec<u8>, Duration),
    /// The end of the connection.
    Bye,
}

type Script = dyn Fn(&[String]) -> Say + Send + Sync;

/// A server on 127.0.0.1 that asks `script` for each command what to say to it, and for no words at all when a connection
/// begins; gone, with its threads, when this is dropped.
pub(crate) struct Fake {
    shared: Arc<Shared>,
    port: u16,
    door: Option<JoinHandle<()>>,
}

struct Shared {
    script: Box<Script>,
    shut: AtomicBool,
    guests: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
}

impl Fake {
    pub(crate) fn start(script: impl Fn(&[String]) -> Say + Send + Sync + 'static) -> Fake {
        let listener = listen();
        let port = listener.local_addr().expect("a bound listener").port();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            shut: AtomicBool::new(false),
            guests: Mutex::default(),
        });
        let host = Arc::clone(&shared);
        let door = Some(thread::spawn(move || host.receive(&listener)));
        Fake { shared, port, door }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Shared {
    fn receive(self: &Arc<Self>, listener: &TcpListener) {
        for guest in listener.incoming() {
            if self.shut.load(Ordering::SeqCst) {
                return;
            }
            let Ok(guest) = guest else { continue };
            let (host, stream) = (Arc::clone(self), guest.try_clone().expect("a descriptor"));
            let thread = thread::spawn(move || host.talk(stream));
            self.guests.lock().push((guest, thread));
        }
    }

    fn talk(&self, mut stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut splitter = Splitter::default();
        let mut bytes = [0; 4096];
        let mut goes_on = self.say(&mut stream, &[]);
        while goes_on {
            goes_on = match stream.read(&mut bytes) {
                Ok(0) | Err(_) => false,
                Ok(count) => {
                    splitter.push(&bytes[..count]);
                    splitter.by_ref().all(|command| self.say(&mut stream, &words(&command)))
                }
            };
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// False where the connection is to end.
    fn say(&self, stream: &mut TcpStream, words: &[String]) -> bool {
        match (self.script)(words) {
            Say::Bytes(bytes) => stream.write_all(&bytes).is_ok(),
            Say::Late(first, pause, rest) => {
                let began = stream.write_all(&first);
                thread::sleep(pause);
                began.and_then(|()| stream.write_all(&rest)).is_ok()
            }
            Say::OverAndOver(first, again, time) => {
                let (end, block) = (Instant::now() + time, again.repeat(4096 / again.len()));
                let mut goes_on = stream.write_all(&first).is_ok();
                while goes_on && Instant::now() < end && !self.shut.load(Ordering::SeqCst) {
                    goes_on = stream.write_all(&block).is_ok();
                }
                false
            }
            Say::Bye => false,
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.shut.store(true, Ordering::SeqCst);
        // It looks whether it is to shut when somebody comes.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(door) = self.door.take() {
            let _ = door.join();
        }
        for (stream, thread) in self.shared.guests.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
    }
}
