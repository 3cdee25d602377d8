//! Every interleaving of locks, deferred wake-ups and events: no task stays asleep.
//!
//! The crate's own files are compiled here with loom's lock. A task is polled a few times and then
//! not again, so each model also covers a task that is never polled again. When all threads have
//! ended, and every event that the device raised has been delivered, every task that still waits
//! must have been woken.
#![cfg(test)]

#[path = "../../src/engine/destroying.rs"]
mod destroying;
mod destroys;
mod events;
mod lines;
#[path = "../../src/events/queues.rs"]
mod queues;
#[path = "../../src/datagrams/wait_queue.rs"]
#[expect(dead_code, reason = "an endpoint uses all of it")]
mod wait_queue;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::task::Wake;

/// Explores every schedule with at most this many preemptions: more find nothing new, and take hours.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Not one of loom's: it is read only after all threads have ended.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The modules that they import, with loom's types.
#[path = "../../src/task"]
mod task {
    #[expect(dead_code, reason = "the crate uses all of it")]
    pub(crate) mod deferred;
    pub(crate) mod line;

    pub(crate) mod sync {
        use std::sync::PoisonError;

        pub(crate) use loom::sync::{Arc, MutexGuard};

        macro_rules! loom_local {
            ($($(#[$doc:meta])* static $name:ident: $type:ty = const { $value:expr };)*) => {
                $(loom::thread_local! { static $name: $type = $value; })*
            };
        }
        pub(crate) use loom_local as thread_local;

        /// As the crate's mutex, which has no poisoning.
        #[derive(Default)]
        pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

        impl<T> Mutex<T> {
            pub(crate) fn new(value: T) -> Self {
                Self(loom::sync::Mutex::new(value))
            }

            pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
                self.0.lock().unwrap_or_else(PoisonError::into_inner)
            }

            pub(crate) fn get_mut(&mut self) -> &mut T {
                self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Waking. Wakers of models do not panic, and panics of loom must not be caught.
    pub(crate) mod wake {
        use std::task::Waker;

        pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
            wakers.into_iter().for_each(Waker::wake);
        }

        pub(crate) fn panics(what: impl FnOnce()) -> bool {
            what();
            false
        }

        pub(crate) fn drop_guarded<T>(what: T) {
            drop(what);
        }
    }
}
