//! Why operations do not succeed, and why channels are not closed in order.

use std::io;

use verbs_core::error::Rejected;
use verbs_core::{WorkError, WorkSuccess};

use super::down_reason::{DownReason, failed};
use super::queue::Queue;
use super::reject_reason::RejectReason;

/// Why an operation did not succeed: the same in blocking calls, in scopes, on owned buffers, in transfers and
/// in `verbs-async`.
///
/// Whether its peer left or a timeout passed is in the [`down_reason`](Self::down_reason).
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The request was rejected: it was not posted.
    #[error(transparent)]
    Rejected(#[from] RejectReason),
    /// The device reports that the operation failed. The text has the advice for its opcode, or, for a batch of
    /// several, that for any.
    #[error("{}", failed(*queue, error.status))]
    Work {
        /// The queue that the request was posted to.
        queue: Queue,
        /// How the operation failed.
        #[source]
        error: WorkError,
    },
    /// The channel went down before the operation completed, for this reason. The device does not
    /// access the buffers any more.
    #[error("the operation was aborted")]
    Aborted(#[source] DownReason),
    /// The driver failed to destroy the queue pair: **the device may still access the buffers**
    /// until the process ends. Owned buffers have been leaked.
    ///
    /// Below a layer that [defers closing](crate::engine::Engine::defer_closing), also: that layer has the queue pair,
    /// and has not destroyed it yet. Its buffers come back when it has.
    #[error("the driver failed to destroy the queue pair: the device may still access the buffers")]
    Stuck,
    /// The outcome was taken before.
    #[error("the outcome was taken before")]
    Taken,
}

verbs_core::error_debug!(TransportError { Rejected(reason), Work, Aborted(reason), Stuck, Taken });

impl TransportError {
    /// Whether the same request can be posted once some operations in flight have completed.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Rejected(reason) if reason.is_backpressure())
    }

    /// Why the channel is down, if the operation was aborted or the request was rejected because of that.
    ///
    /// It is `None` for all other errors, even for the failure that took the channel down. A
    /// server uses it to distinguish clients that are gone from other failures:
    ///
    /// ```no_run
    /// use verbs_channel::verbs_core::MemoryRegion;
    /// use verbs_channel::{Channel, DownReason, Error};
    ///
    /// fn serve(channel: &mut Channel, inbox: &mut MemoryRegion<Vec<u8>>) -> Result<(), Error> {
    ///     loop {
    ///         match channel.receive(inbox.scatter_element(..)?) {
    ///             Ok(received) => println!("{} bytes", received.byte_len()),
    ///             Err(error) if error.down_reason().is_some_and(DownReason::is_peer_closed) => {
    ///                 return Ok(());
    ///             }
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Rejected(reason) => reason.down_reason(),
            Self::Aborted(reason) => Some(*reason),
            _ => None,
        }
    }

    /// The error of a message that the driver reports as longer than its buffer.
    #[doc(hidden)]
    pub fn check_message(success: &WorkSuccess, buffer: &[u8]) -> Result<(), Self> {
        let queue = Queue::Receive;
        let checked = success.check_message(buffer);
        checked.map_err(|error| Self::Work { queue, error })
    }

    /// For an operation whose outcome is unknown: the channel is gone.
    pub(crate) const CLOSED: Self = Self::Aborted(DownReason::Closed);
}

impl<T> From<Rejected<T, RejectReason>> for TransportError {
    fn from(rejected: Rejected<T, RejectReason>) -> Self {
        Self::Rejected(rejected.into_error())
    }
}

impl From<TransportError> for io::Error {
    fn from(error: TransportError) -> Self {
        crate::Error::from(error).into()
    }
}

/// Why [`Channel::close`](crate::Channel::close) did not close a channel cleanly.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The channel was down, or went down: operations may have been aborted. The device does not access
    /// their buffers any more.
    #[error("the channel was not closed in order")]
    Down(#[source] DownReason),
    /// The driver failed to destroy the queue pair: **the device may still access the memory of the
    /// channel** until the process ends. Owned buffers in flight have been leaked.
    #[error(
        "the driver failed to destroy the queue pair: the device may still access the channel's memory"
    )]
    Stuck,
    /// This is the child of a fork: the channel is its parent's, and goes on there. Nothing was closed.
    #[error(
        "the channel belongs to the process that made it, of which this one is a forked child: only that process can close it"
    )]
    OtherProcess,
}

verbs_core::error_debug!(CloseError { Down(reason), Stuck, OtherProcess });

impl CloseError {
    /// Why the channel is down; `None` if it is stuck, or another process's.
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Down(reason) => Some(*reason),
            Self::Stuck | Self::OtherProcess => None,
        }
    }

    /// Whether the device may still access memory of the channel.
    #[must_use]
    pub const fn is_stuck(&self) -> bool {
        matches!(self, Self::Stuck)
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::codes::WcStatus;

    use super::*;

    fn text(queue: Queue, status: WcStatus) -> String {
        let mut error = verbs_core::__private::work_error();
        error.status = status;
        let down = DownReason::Work { queue, error }.to_string();
        assert_eq!(TransportError::Work { queue, error }.to_string(), down);
        down
    }

    #[test]
    fn failed_operation_is_named_as_precisely_as_possible() {
        assert_eq!(
            text(Queue::Receive, WcStatus::LOC_PROT_ERR),
            "a receive failed"
        );
        assert_eq!(
            text(Queue::Send, WcStatus::LOC_QP_OP_ERR),
            "a send, write, read or atomic failed"
        );
        assert_eq!(
            text(Queue::Send, WcStatus::REM_ACCESS_ERR),
            "a write, read or atomic failed"
        );
        assert_eq!(
            text(Queue::Send, WcStatus::RNR_RETRY_EXC_ERR),
            "a send or write with immediate data failed"
        );
    }
}
