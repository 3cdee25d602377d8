//! Leaks: buffers that a device may touch for good.

use std::fmt;

use verbs_core::{Error, ErrorChain};

/// Buffers that had to be leaked, since the driver did not let go of their queue pair.
#[derive(Debug)]
pub struct Leak {
    pub(super) buffers: usize,
    pub(super) error: Error,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, error } = self;
        let error = ErrorChain::new(error);
        write!(
            f,
            "leaked {buffers} buffers that the card may still touch: {error}"
        )
    }
}
