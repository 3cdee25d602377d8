//! The operations of a transfer whose layer begins and awaits them in its own way.

use std::mem;

use verbs_core::WorkSuccess;

use super::{State, Transfer, TransferError};
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::error::TransportError;
use crate::request::OwnedRequest;

/// The operations of a [`Transfer`] that a layer above begins and awaits in its own way.
///
/// It stores their outcomes, for [`Transfer::drain`] and for the [result](Self::result) of the
/// transfer. End all of them before the set is carried out by a channel or a group, which cannot wait for
/// them: there, those that have not ended are [`Stuck`](crate::TransportError::Stuck).
#[derive(Debug)]
pub struct TransferEntries<'t>(&'t mut Transfer);

impl<'t> TransferEntries<'t> {
    /// The operations of this transfer.
    pub const fn of(transfer: &'t mut Transfer) -> Self {
        Self(transfer)
    }

    /// Takes out the request of an operation that is about to begin, and its channel. The operations of one
    /// queue begin in the order in which they were [added](Transfer::add): `None` for one that has begun, or
    /// whose predecessor has not.
    #[must_use = "the operation ends when its outcome is recorded"]
    pub fn begin(&mut self, index: usize) -> Option<(ChannelId, OwnedRequest)> {
        let rails = self.0.rails.iter();
        let at = rails.enumerate().find(|(_, rail)| rail.waiting == index)?.0;
        let entry = self.0.entries.get_mut(index)?;
        let State::Waiting(request) = &mut entry.state else {
            return None;
        };
        let has_memory = request.buffer().capacity() > 0;
        let begun = mem::replace(&mut entry.state, State::Begun(has_memory));
        self.0.rails.get_mut(at)?.waiting = entry.next;
        let channel = entry.channel;
        self.0.begun += 1;
        self.0.unlink(at, index);
        match begun {
            State::Waiting(request) => Some((channel, request)),
            _ => None,
        }
    }

    /// Records how an operation has ended, with its buffer. A second call for the same operation
    /// only drops the buffer.
    ///
    /// A buffer without capacity was leaked if the operation began with memory. The operation is
    /// then [`Stuck`](crate::TransportError::Stuck).
    pub fn end(
        &mut self,
        index: usize,
        result: Result<WorkSuccess, TransportError>,
        buffer: OwnedBuffer,
    ) {
        if let Some(entry) = self.0.entries.get_mut(index)
            && let State::Begun(had_memory) = entry.state
        {
            entry.state = State::ended(had_memory, result, buffer);
            self.0.left -= 1;
            self.0.begun -= 1;
        }
    }

    /// The result of the transfer, once all operations have ended.
    ///
    /// # Errors
    ///
    /// [`TransferError::Failed`] or [`TransferError::Stuck`].
    pub fn result(&self) -> Result<(), TransferError> {
        self.0.result()
    }
}
