//! The two queues of a channel.

use std::fmt;

/// One of a channel's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Queue {
    /// The queue of sends, writes, reads and atomics.
    Send,
    /// The queue of receives.
    Receive,
}

impl Queue {
    /// C's name of its capacity.
    pub(super) const fn capacity(self) -> &'static str {
        match self {
            Self::Send => "max_send_wr",
            Self::Receive => "max_recv_wr",
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Receive => "receive",
        })
    }
}
