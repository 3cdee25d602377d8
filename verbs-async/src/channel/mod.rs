//! Channels: the operations of one connection.

// The first: rustdoc lists methods in the order of the modules.
mod operations;

mod incoming;
mod leases;
mod operation;
mod rails;
mod transfer;

use std::fmt;
use std::sync::Arc;

use verbs_channel::ChannelId;

use crate::engine::SharedEngine;
use crate::task::sync::Mutex;
pub use incoming::{IncomingMessage, IncomingMessages};
pub use operation::{Operation, OperationResult, Payload};
pub use rails::{RailsTransfer, transfer_over};
pub use transfer::AsyncTransfer;

/// A connected endpoint for async code.
///
/// Each call begins an operation at once and returns an [`Operation`], a future of the outcome and
/// the buffer. If its queue has room, the operation is posted. If not, it waits in the queue's
/// backlog. If the [backlog](Self::ready) is full too, the operation is rejected. Operations of one
/// queue are posted in the order in which they were begun.
///
/// Dropping the channel closes it without waiting: a helper thread destroys its queue pair, and then
/// the operations in flight are aborted. [`close`](Self::close) lets them finish first.
pub struct AsyncChannel {
    shared: Arc<SharedEngine>,
    at: ChannelId,
    // The longest backlog of each queue.
    backlog: usize,
    // Receives that were posted when it joined, until they are taken.
    prepared: Mutex<Vec<Operation>>,
}

impl Drop for AsyncChannel {
    fn drop(&mut self) {
        self.shared.remove(self.at);
    }
}

impl fmt::Debug for AsyncChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncChannel").field(&self.at).finish()
    }
}
