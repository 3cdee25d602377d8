//! Time limits for what must end by itself: a test that hangs fails.

use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::stacks;

/// The least limit of [`bounded`] under Miri.
const MIRI_LIMIT: Duration = Duration::from_secs(600);

/// How long the process may take to write its stacks before it is aborted.
const STACKS_LIMIT: Duration = Duration::from_secs(10);

/// Aborts the process if it is not dropped within its limit. First, the name of the test and the kernel stacks of all
/// threads are written to standard error.
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
                let _written = try_within(STACKS_LIMIT, || {
                    std::io::stderr().write_all(stacks::of_all_threads().as_bytes())
                });
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
    match try_within(limit, what) {
        Some(Ok(value)) => value,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => panic!("it hangs, {limit:?} were not enough"),
    }
}

/// Runs a function on a thread of its own. Returns its value or its panic; `None` if it takes longer than `limit`.
fn try_within<T: Send + 'static>(
    limit: Duration,
    what: impl FnOnce() -> T + Send + 'static,
) -> Option<thread::Result<T>> {
    let (done, ended) = mpsc::channel();
    let runner = thread::spawn(move || drop(done.send(what())));
    match ended.recv_timeout(limit) {
        Ok(value) => Some(Ok(value)),
        Err(RecvTimeoutError::Timeout) => None,
        // Nothing is sent if it panicked.
        Err(RecvTimeoutError::Disconnected) => Some(Err(runner.join().unwrap_err())),
    }
}
