//! Leaks: buffers that a device may touch for good.

use std::fmt;
use std::process;

use verbs_core::{Error, ErrorChain};

use crate::contained::log_error;

/// A report of buffers that had to be leaked, because the driver failed to destroy their queue pair.
///
/// Its `Display` is a line for the log. See [`Engine::next_leak`](super::Engine::next_leak).
#[derive(Debug)]
pub struct Leak {
    pub(crate) buffers: usize,
    pub(crate) error: Error,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, error } = self;
        let error = ErrorChain::new(error);
        write!(
            f,
            "leaked {buffers} buffers that the device may still touch: {error}"
        )
    }
}

impl From<Leak> for crate::error::Error {
    fn from(leak: Leak) -> Self {
        leak.error.into()
    }
}

/// Where leaks are reported.
#[derive(Debug)]
pub(super) enum Leaks {
    /// In the log, at once.
    Logged,
    /// Here, until they are taken: the layer above may hold a lock that its logger needs.
    Queued(Vec<Leak>),
}

impl Leaks {
    pub(super) fn add(&mut self, leak: Leak) {
        match self {
            Self::Queued(queued) => queued.push(leak),
            Self::Logged => log_error(format_args!("{leak}")),
        }
    }

    /// The next that is queued.
    pub(super) fn next(&mut self) -> Option<Leak> {
        match self {
            Self::Queued(queued) => queued.pop(),
            Self::Logged => None,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        match self {
            Self::Queued(queued) => queued.is_empty(),
            Self::Logged => true,
        }
    }
}

/// Aborts the process, and writes the reason to stderr and to the log.
#[cold]
pub(crate) fn abort_with(why: fmt::Arguments<'_>) -> ! {
    // First to stderr, and past the lock of `std`: the log may go nowhere, or block.
    let line = format!("verbs-channel: {why}\n");
    // There is nothing left to do if that fails.
    let _written = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    log_error(why);
    process::abort();
}
