//! Queue pairs that are destroyed before what belonged to them is dropped.

use super::settings::Config;
use super::{OwnReceives, Qp, QueuePair};
use crate::completion::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::error::Result;

/// The rest of a queue pair after [`QueuePair::destroy`]: memory, and clones of its queues and its domain.
#[derive(Debug)]
#[must_use = "it is to be dropped where other code may run"]
pub struct DestroyedQueuePair<R = OwnReceives> {
    _receives: R,
    _queues: [CompletionQueue; 2],
    _pd: ProtectionDomain,
    _config: Box<Config>,
}

impl<R> QueuePair<R> {
    /// As [`close`](Self::close), with the memory of the queue pair and its clones of other objects, to be dropped
    /// later.
    ///
    /// Dropping those frees memory. It may also destroy the protection domain, which logs a failure. So a caller that
    /// must run no logger and no allocator keeps them until it may.
    ///
    /// # Errors
    ///
    /// The errno. Unlike `close`, it returns the errno of a device that was [removed](crate::Context::is_removed), too.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> (Result<()>, DestroyedQueuePair<R>) {
        self.qp.destroy(self.receives)
    }
}

impl Qp {
    pub(super) fn destroy<R>(self, receives: R) -> (Result<()>, DestroyedQueuePair<R>) {
        let Self {
            qp,
            config,
            send_cq,
            recv_cq,
            pd,
            ..
        } = self;
        let destroyed = qp.close();
        let left = DestroyedQueuePair {
            _receives: receives,
            _queues: [send_cq, recv_cq],
            _pd: pd,
            _config: config,
        };
        (destroyed, left)
    }
}
