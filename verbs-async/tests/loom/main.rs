//! Every interleaving of the driver with its tasks and its device: no task stays asleep.
//!
//! The driver's own files are compiled here with loom's lock. A task is polled a few times and then
//! not again, so each model also covers a task that is never polled again. When all threads have
//! ended, and every event that the device raised has been delivered, every task that still waits
//! must have been woken.
#![cfg(test)]

#[path = "../../src/engine/destroying.rs"]
mod destroying;
mod destroys;
#[path = "../../src/driver/mod.rs"]
#[expect(dead_code, reason = "the models do not use all of it")]
mod driver;
mod events;
mod lines;
#[path = "../../src/events/queues.rs"]
mod queues;
mod races;
#[path = "../driver/ring.rs"]
#[expect(dead_code, reason = "tests of one thread use all of it")]
mod ring;
#[path = "../../src/datagrams/wait_queue.rs"]
mod wait_queue;

/// The modules that the driver imports, with loom's types.
#[path = "../../src/task"]
mod task {
    #[expect(dead_code, reason = "datagram endpoints use all of it")]
    pub(crate) mod deferred;

    pub(crate) mod sync {
        use std::sync::PoisonError;

        pub(crate) use loom::sync::{Arc, MutexGuard};

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
        }
    }

    /// Waking. Wakers of models do not panic, and panics of loom must not be caught.
    pub(crate) mod wake {
        use std::task::Waker;

        pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
            wakers.into_iter().for_each(Waker::wake);
        }

        pub(crate) const fn log_error(_line: std::fmt::Arguments<'_>) {}

        pub(crate) const fn are_held() -> bool {
            false
        }

        pub(crate) fn drop_guarded<T>(what: T) {
            drop(what);
        }
    }
}
