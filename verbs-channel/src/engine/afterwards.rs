//! The queue of what may run code of others, and so waits until nothing borrows the engine.
//!
//! A logger, a destructor and an allocator are the program's own code. From there it may reach what uses the
//! engine: a scope, by a thread-local of its thread. So the engine calls none of them: it queues what does, and the
//! layer that holds the engine runs that between two borrows.

use std::sync::Arc;

use verbs_core::queue_pair::DestroyedQueuePair;

use super::Lender;
use super::leak::Leak;
use super::peer::Link;
use crate::buffer::{Leaked, OwnedBuffer};
use crate::panics::{log_error, panics};

/// Something that may run code of others.
#[derive(Debug)]
pub(crate) enum Afterwards {
    /// To be logged.
    Leak(Leak),
    /// Its memory never ends: those who wait for that are to be woken.
    Leaked(Leaked),
    /// The buffers of prepared receives that were not posted.
    #[expect(dead_code, reason = "only dropped")]
    Receives(Vec<OwnedBuffer>),
    /// Memory of leases that were dropped is to be freed.
    DroppedLeases(Arc<Lender>),
    /// Its memory, and the domain that it may have had to itself.
    #[expect(dead_code, reason = "only dropped")]
    QueuePair(DestroyedQueuePair),
    /// The socket of a peer, whose close takes as long as the user has it linger; or a connection, whose end blocks.
    Link(Link),
}

/// The queue of an engine, of those that were not run yet.
#[derive(Debug)]
pub(super) struct Queued {
    items: Vec<Afterwards>,
    /// The engine may be under a lock: the layer above destroys queue pairs and closes sockets without it.
    pub(super) is_deferred: bool,
}

impl Afterwards {
    /// The most that one channel queues.
    const OF_A_CHANNEL: usize = 8;

    /// Whether it may take seconds.
    pub(crate) const fn is_slow(&self) -> bool {
        matches!(self, Self::Link(link) if link.is_of_manager())
    }

    /// Runs it. A panic of the code of others goes no further.
    pub(crate) fn run(self) {
        match self {
            Self::Leak(leak) => log_error(format_args!("{leak}")),
            Self::Leaked(leaked) => leaked.wake(),
            Self::DroppedLeases(lender) => lender.free_dropped(),
            // Destructors log what has failed.
            other => {
                let _panicked = panics(|| drop(other));
            }
        }
    }
}

impl Queued {
    pub(super) const fn new() -> Self {
        Self {
            items: Vec::new(),
            is_deferred: false,
        }
    }

    /// Gets room for what this many channels queue: there is no allocation later.
    pub(super) fn reserve(&mut self, channels: u32) {
        let channels = channels as usize;
        self.items.reserve(channels * Afterwards::OF_A_CHANNEL);
    }

    pub(super) fn push(&mut self, item: Afterwards) {
        self.items.push(item);
    }

    /// Wakes those who wait for the end of memory that is leaked, if there is any.
    pub(super) fn wake(&mut self, leaked: Leaked) {
        if !leaked.is_empty() {
            self.push(Afterwards::Leaked(leaked));
        }
    }

    /// Closes what shows the end of a peer: a socket at once, unless the engine may be under a lock.
    pub(super) fn close(&mut self, link: Option<Link>) {
        if let Some(link) = link
            && (self.is_deferred || link.is_of_manager())
        {
            self.push(Afterwards::Link(link));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Afterwards> {
        self.items.pop()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
