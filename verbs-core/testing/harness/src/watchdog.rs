//! Time limits for what must end by itself: a test that hangs fails.

use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::waits;

/// The least limit of [`bounded`] under Miri.
const MIRI_LIMIT: Duration = Duration::from_secs(600);

/// How long it may take to find out what all threads wait for.
const WAITS_LIMIT: Duration = Duration::from_secs(10);

/// If it is not dropped within its limit, says what all threads wait for, and aborts the process.
pub(crate) struct Watchdog {
    _done: Sender<()>,
}

impl Watchdog {
    pub(crate) fn new(name: String, limit: Duration) -> Self {
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not by `eprintln`: libtest captures that until the test has ended.
                let line = format!("\nFAILED {name}: it hangs, {limit:?} were not enough\n");
                drop(std::io::stderr().write_all(line.as_bytes()));
                let (said, all) = mpsc::channel::<()>();
                thread::spawn(move || {
                    drop(std::io::stderr().write_all(waits::of_all().as_bytes()));
                    drop(said);
                });
                let _said = all.recv_timeout(WAITS_LIMIT);
                std::process::abort();
            }
        });
        Self { _done: done }
    }
}

/// Runs a function that must return by itself, on this thread. If it takes longer than `limit`, the
/// process is aborted. Miri, which is slow, has ten minutes at least.
pub fn bounded<T>(limit: Duration, what: impl FnOnce() -> T) -> T {
    let limit = if cfg!(miri) {
        limit.max(MIRI_LIMIT)
    } else {
        limit
    };
    let name = thread::current().name().unwrap_or_default().to_owned();
    let _watchdog = Watchdog::new(name, limit);
    what()
}

/// Runs a function on a thread of its own. Panics if it panics or takes longer than `limit`.
pub fn within<T: Send + 'static>(limit: Duration, what: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    let runner = thread::spawn(move || drop(done.send(what())));
    match ended.recv_timeout(limit) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs, {limit:?} were not enough"),
        // Nothing is sent if it panicked.
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(runner.join().unwrap_err())
        }
    }
}
