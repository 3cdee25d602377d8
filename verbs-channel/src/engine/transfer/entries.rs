//! The operations of a transfer whose layer begins and awaits them in its own way.

use std::mem;

use verbs_core::WorkSuccess;

use super::chains::CHAIN;
use super::{NONE, State, Transfer, TransferError};
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::engine::Engine;
use crate::error::{DownReason, TransportError};
use crate::request::{OwnedChain, OwnedRequest};

/// The operations of a [`Transfer`] that a layer above begins and awaits in its own way.
///
/// It stores their outcomes, for [`Transfer::drain`] and for the [result](Self::result) of the
/// transfer. End all of them before the set is carried out by a channel or a group, which cannot wait for
/// them: there, those that have not ended are [`Stuck`](crate::TransportError::Stuck).
#[derive(Debug)]
pub struct TransferEntries<'t>(&'t mut Transfer);

/// Requests that begin together.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "for the layer above")]
pub enum Piece {
    /// A request.
    One(OwnedRequest),
    /// Requests with one doorbell and one completion.
    Chain(OwnedChain),
}

impl<'t> TransferEntries<'t> {
    /// The operations of this transfer.
    pub const fn of(transfer: &'t mut Transfer) -> Self {
        Self(transfer)
    }

    /// Takes out the request of the operation that is to begin next, together with those that begin with it, and its
    /// channel. The operations of one queue begin in the order in which they were [added](Transfer::add), and writes and
    /// reads that are too long for their channels in parts. `None` if all have begun, or until some have ended: of
    /// each queue, no more begin than it has room for, and a chain.
    ///
    /// The numbers name the queue, counted from 0, and the operation when it [ends](Self::end).
    #[must_use = "the operation ends when its outcome is recorded"]
    pub fn begin(&mut self, engine: &Engine) -> Option<((usize, usize), ChannelId, Piece)> {
        let rails = self.0.rails.iter().enumerate();
        let waiting = rails.filter(|(_, rail)| rail.waiting != NONE && !rail.is_full);
        let (at, index) = waiting
            .map(|(at, rail)| (at, rail.waiting))
            .min_by_key(|(_, index)| *index)?;
        self.0.split(index, engine);
        let run = self.0.run_length(at, engine, u32::MAX);
        let channel = self.0.entries.get(index)?.channel;
        let chain = (run > 1).then(|| self.0.take_run(index, run));
        let entry = self.0.entries.get_mut(index)?;
        let (piece, next) = match chain {
            Some((chain, next)) if !chain.range().is_empty() => {
                entry.state = State::Begun(true);
                (Piece::Chain(chain), next)
            }
            _ => {
                let State::Waiting(request) = &entry.state else {
                    return None;
                };
                let begun = State::Begun(request.buffer().capacity() > 0);
                let State::Waiting(request) = mem::replace(&mut entry.state, begun) else {
                    return None;
                };
                (Piece::One(request), entry.next)
            }
        };
        let run = entry.run;
        let rail = self.0.rails.get_mut(at)?;
        rail.waiting = next;
        rail.begun += usize::from(run);
        let room = engine.capacity(channel, rail.queue) as usize;
        rail.is_full = rail.begun >= room + usize::from(CHAIN);
        self.0.unlink(at, index);
        Some(((at, index), channel, piece))
    }

    /// Records how an operation has ended, with its buffer; or how those that began together have, with their chain. A
    /// second call for the same operation only drops the buffer. `down` is why the channel is down, if it is.
    ///
    /// A buffer without capacity was leaked if the operation began with memory. The operation is
    /// then [`Stuck`](crate::TransportError::Stuck).
    pub fn end(
        &mut self,
        (at, index): (usize, usize),
        result: Result<WorkSuccess, TransportError>,
        (buffer, chain): (OwnedBuffer, Option<OwnedChain>),
        down: Option<DownReason>,
    ) {
        let Some(entry) = self.0.entries.get_mut(index) else {
            return;
        };
        let State::Begun(had_memory) = entry.state else {
            return;
        };
        if let Some(rail) = self.0.rails.get_mut(at) {
            rail.begun -= usize::from(entry.run);
            rail.is_full = false;
        }
        let ignore = &mut |_, _| {};
        if chain.is_some() || entry.run > 1 {
            let chain = chain.unwrap_or_default();
            self.0.end_run(index, result, chain, down, ignore);
        } else {
            entry.state = State::ended(had_memory, result.map(Some), buffer);
            self.0.ended(index, ignore);
        }
    }

    /// Whether all operations of this transfer have begun.
    #[must_use]
    pub fn have_begun(transfer: &Transfer) -> bool {
        transfer.rails.iter().all(|rail| rail.waiting == NONE)
    }

    /// Whether operations of the queue with this number have not begun.
    #[must_use]
    pub fn waits(transfer: &Transfer, at: usize) -> bool {
        let rail = transfer.rails.get(at);
        rail.is_some_and(|rail| rail.waiting != NONE)
    }

    /// Whether all operations of this transfer have ended.
    #[must_use]
    pub const fn have_ended(transfer: &Transfer) -> bool {
        transfer.has_ended()
    }

    /// The result of the transfer, once all operations have ended. A failure ends its leases, by system calls.
    ///
    /// # Errors
    ///
    /// [`TransferError::Failed`] or [`TransferError::Stuck`].
    pub fn result(&mut self) -> Result<(), TransferError> {
        self.0.result()
    }
}
