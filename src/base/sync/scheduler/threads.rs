//! Threads, and what each thread and each process has of its own.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::thread::LocalKey;

use super::world;

/// The thread-locals of one thread, in the order of their first use.
#[derive(Default)]
pub(super) struct Locals(Vec<Value>);

struct Value {
    key: usize,
    /// `None`: destroyed.
    kept: Option<Rc<dyn Any>>,
    /// Whether there is anything to drop.
    drops: bool,
}

/// A thread-local: in a run, each thread of the run has its own.
#[derive(Debug)]
pub(crate) struct Local<T: 'static> {
    real: &'static LocalKey<T>,
    new: fn() -> T,
}

/// The thread is ending, and the thread-local is already destroyed.
#[derive(Debug)]
pub(crate) struct Destroyed;

impl<T: 'static> Local<T> {
    pub(crate) const fn new(real: &'static LocalKey<T>, new: fn() -> T) -> Local<T> {
        Local { real, new }
    }

    pub(crate) fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("the thread-local is destroyed")
    }

    pub(crate) fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, Destroyed> {
        let key = std::ptr::from_ref(self).addr();
        let find = |world: &mut super::World| {
            let locals = &world.state(world.running).locals.0;
            locals
                .iter()
                .find(|it| it.key == key)
                .map(|it| it.kept.clone())
        };
        let value = match world(find) {
            None => return self.real.try_with(f).map_err(|_| Destroyed),
            Some(Some(None)) => return Err(Destroyed),
            Some(Some(Some(value))) => value,
            Some(None) => {
                let value: Rc<dyn Any> = Rc::new((self.new)());
                let kept = Value {
                    key,
                    kept: Some(Rc::clone(&value)),
                    drops: std::mem::needs_drop::<T>(),
                };
                world(|world| world.state(world.running).locals.0.push(kept));
                value
            }
        };
        Ok(f(value.downcast_ref().expect("its type")))
    }
}

impl<T: 'static> Local<Cell<T>> {
    pub(crate) fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    pub(crate) fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }
}

/// Destroys the thread's locals, one after another: a destructor may use the others. Those that
/// have nothing to drop can be used to the end.
pub(super) fn end_of_thread() {
    let next = |world: &mut super::World| {
        let locals = &mut world.state(world.running).locals.0;
        locals
            .iter_mut()
            .filter(|it| it.drops)
            .find_map(|it| it.kept.take())
    };
    while let Some(Some(value)) = world(next) {
        drop(value);
    }
}

/// The static of a process: see [`PerProcess`](super::PerProcess).
pub(super) fn of_process<T: 'static>(key: usize, new: fn() -> T) -> Option<Rc<T>> {
    let find = |world: &mut super::World| {
        let process = world.state(world.running).process;
        let statics = &world.processes[process].statics;
        statics
            .iter()
            .find(|it| it.0 == key)
            .map(|it| Rc::clone(&it.1))
    };
    let value = world(find)?.unwrap_or_else(|| {
        let value: Rc<dyn Any> = Rc::new(new());
        world(|world| {
            let process = world.state(world.running).process;
            world.processes[process]
                .statics
                .push((key, Rc::clone(&value)));
        });
        value
    });
    Some(value.downcast().expect("its type"))
}

/// Threads, as `std` has them.
pub(crate) mod thread {
    use std::io;
    use std::sync::Arc;
    pub(crate) use std::thread::Result;
    use std::time::Duration;

    use super::super::tools::{Condvar, Mutex};
    use super::super::{YIELD, advance, inside, running, switch, trace, wait, world};

    pub(crate) fn sleep(span: Duration) {
        if inside() {
            wait("the end of a sleep", Some(span));
        } else {
            std::thread::sleep(span);
        }
    }

    pub(crate) fn yield_now() {
        if inside() {
            advance(Duration::from_nanos(YIELD));
            if world(|world| world.has_more_to_do()) == Some(true) {
                switch();
            }
        } else {
            std::thread::yield_now();
        }
    }

    #[derive(Debug)]
    pub(crate) enum JoinHandle<T> {
        Real(std::thread::JoinHandle<T>),
        Simulated(Arc<End<T>>),
    }

    /// What a thread of a run has returned.
    #[derive(Debug)]
    pub(crate) struct End<T> {
        result: Mutex<Option<T>>,
        ended: Condvar,
    }

    impl<T> JoinHandle<T> {
        pub(crate) fn join(self) -> Result<T> {
            let end = match self {
                JoinHandle::Real(thread) => return thread.join(),
                JoinHandle::Simulated(end) => end,
            };
            let mut result = end.result.lock();
            loop {
                match result.take() {
                    Some(result) => return Ok(result),
                    None => end.ended.wait(&mut result),
                }
            }
        }

        pub(crate) fn is_finished(&self) -> bool {
            match self {
                JoinHandle::Real(thread) => thread.is_finished(),
                JoinHandle::Simulated(end) => end.result.lock().is_some(),
            }
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Builder {
        name: String,
        process: Option<usize>,
    }

    impl Builder {
        pub(crate) fn new() -> Builder {
            Builder::default()
        }

        pub(crate) fn name(self, name: String) -> Builder {
            Builder { name, ..self }
        }

        /// The thread belongs to this process of the run. If not set: to that of its parent.
        pub(crate) fn process(self, process: usize) -> Builder {
            Builder {
                process: Some(process),
                ..self
            }
        }

        pub(crate) fn spawn<T: Send + 'static>(
            self,
            run: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            let Some(parent) = running() else {
                return std::thread::Builder::new()
                    .name(self.name)
                    .spawn(run)
                    .map(JoinHandle::Real);
            };
            let process = world(|world| world.state(parent).process).expect("inside");
            let process = self.process.unwrap_or(process);
            let end = Arc::new(End {
                result: Mutex::new(None),
                ended: Condvar::new(),
            });
            let tells = Arc::clone(&end);
            let name = self.name;
            let task = shuttle::thread::spawn(move || {
                world(|world| {
                    let state = world.state(world.running);
                    (state.process, state.name) = (process, name);
                });
                let result = run();
                super::end_of_thread();
                trace(|| "ends".to_owned());
                world(|world| world.state(world.running).has_ended = true);
                *tells.result.lock() = Some(result);
                tells.ended.notify_all();
            });
            let task = usize::from(task.thread().id());
            world(|world| world.state(task).process = process);
            Ok(JoinHandle::Simulated(end))
        }
    }

    pub(crate) fn spawn<T: Send + 'static>(
        run: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        Builder::new().spawn(run).expect("a thread")
    }
}
