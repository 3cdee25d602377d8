//! Where a queue pair's receives come from: a queue of its own, or a shared one.

use std::fmt::Debug;

use crate::shared_receive_queue::SharedReceiveQueue;

/// Where the receives of a [`QueuePair`](crate::QueuePair) come from: [`OwnReceives`] or
/// [`SharedReceives`].
///
/// It cannot be implemented outside of this crate.
pub trait Receives: sealed::Shared + Clone + Debug + Send + Sync + 'static {}

/// The parameter of a [`QueuePair`](crate::QueuePair) whose receives are posted on it: the default.
#[derive(Clone, Debug)]
pub struct OwnReceives {
    // Only kept, for a layer above that posts no receives: see `assume_own_receives`.
    _kept: Option<SharedReceiveQueue>,
}

/// The parameter of a [`QueuePair`](crate::QueuePair) that takes its receives from a
/// [`SharedReceiveQueue`].
///
/// Such a queue pair has no `post_receive`: drivers reject the call, and siw kills the process.
#[derive(Clone, Debug)]
pub struct SharedReceives(SharedReceiveQueue);

impl OwnReceives {
    pub(super) const fn new() -> Self {
        Self { _kept: None }
    }
}

impl SharedReceives {
    pub(super) fn new(srq: &SharedReceiveQueue) -> Self {
        Self(srq.clone())
    }

    pub(super) fn assume_own(self) -> OwnReceives {
        OwnReceives {
            _kept: Some(self.0),
        }
    }

    pub(super) const fn srq(&self) -> &SharedReceiveQueue {
        &self.0
    }
}

impl Receives for OwnReceives {}
impl Receives for SharedReceives {}

pub(super) mod sealed {
    use super::{OwnReceives, SharedReceiveQueue, SharedReceives};

    #[expect(unnameable_types, reason = "seals `Receives`")]
    pub trait Shared {
        /// The shared receive queue, if it is one.
        fn shared(&self) -> Option<&SharedReceiveQueue>;
    }

    impl Shared for OwnReceives {
        fn shared(&self) -> Option<&SharedReceiveQueue> {
            None
        }
    }

    impl Shared for SharedReceives {
        fn shared(&self) -> Option<&SharedReceiveQueue> {
            Some(&self.0)
        }
    }
}
