//! Operations of a transfer that others carry out: a layer above, or rails, each of which has a share of them.

use std::mem;

use verbs_core::WorkSuccess;

use super::pieces::CHAIN;
use super::{Ended, NONE, Piece, Rail, State, Transfer};
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::engine::Engine;
use crate::error::{DownReason, TransportError};
use crate::request::{OwnedChain, OwnedRequest};

/// A layer above begins and awaits the operations in its own way, and has their outcomes stored here. It ends all of them
/// before the set is carried out by a channel or a group, which cannot wait for them: there, those that have not ended are
/// [`Stuck`](TransportError::Stuck).
#[doc(hidden)]
impl Transfer {
    /// Takes out the request of the operation that is to begin next, together with those that begin with it, and its
    /// channel. The operations of one queue begin in the order in which they were [added](Self::add), and writes and
    /// reads that are too long for their channels in parts. `None` if all have begun, or until some have ended: of
    /// each queue, no more begin than it has room for, and a chain.
    ///
    /// The numbers name the queue, counted from 0, and the operation when it [ends](Self::end_piece).
    #[must_use = "the operation ends when its outcome is recorded"]
    pub fn next_piece(&mut self, engine: &Engine) -> Option<((usize, usize), ChannelId, Piece)> {
        let rails = self.rails.iter().enumerate();
        let has_room = |rail: &Rail| {
            let room = engine.capacity(rail.channel, rail.queue) as usize;
            rail.begun < room + usize::from(CHAIN)
        };
        let waiting = rails.filter(|(_, rail)| rail.waiting != NONE && has_room(rail));
        let (at, _) = waiting.min_by_key(|(_, rail)| rail.waiting)?;
        let run = self.next_run(at, engine, u32::MAX);
        let (first, piece) = self.take_piece(at, run)?;
        let rail = self.rails.get_mut(at)?;
        rail.begun += usize::from(run);
        Some(((at, first), rail.channel, piece))
    }

    /// Records how an operation has ended, with its buffer; or how those that began together have, with their chain. A
    /// second call for the same operation only drops the buffer. `down` is why the channel is down, if it is.
    ///
    /// A buffer without capacity was leaked if the operation began with memory. The operation is
    /// then [`Stuck`](TransportError::Stuck).
    pub fn end_piece(
        &mut self,
        (at, first): (usize, usize),
        result: Result<WorkSuccess, TransportError>,
        given: (OwnedBuffer, Option<OwnedChain>),
        down: Option<DownReason>,
    ) {
        let Some(entry) = self.entries.get(first) else {
            return;
        };
        if !matches!(entry.state, State::Begun(_)) {
            return;
        }
        if let Some(rail) = self.rails.get_mut(at) {
            rail.begun -= usize::from(entry.run);
        }
        self.end(first, result, given, down, &mut |_, _| {});
    }

    /// Whether all operations have begun.
    #[must_use]
    pub fn have_begun(&self) -> bool {
        self.rails.iter().all(|rail| rail.waiting == NONE)
    }

    /// Whether operations of the queue with this number have not begun.
    #[must_use]
    pub fn waits(&self, at: usize) -> bool {
        let rail = self.rails.get(at);
        rail.is_some_and(|rail| rail.waiting != NONE)
    }

    /// Whether all operations have ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.left == 0
    }
}

impl Transfer {
    /// The operations that wait, with their channels: others post them from now on.
    pub(crate) fn share_out(&mut self) -> impl Iterator<Item = (usize, ChannelId)> {
        self.begin();
        for rail in &mut self.rails {
            rail.waiting = NONE;
        }
        let entries = self.entries.iter().enumerate();
        let waiting = entries.filter(|(_, entry)| matches!(entry.state, State::Waiting(_)));
        waiting.map(|(index, entry)| (index, entry.channel))
    }

    /// Takes out the request of an operation that waits.
    pub(crate) fn take_request(&mut self, index: usize) -> Option<OwnedRequest> {
        let entry = self.entries.get_mut(index)?;
        match mem::replace(&mut entry.state, State::Chained) {
            State::Waiting(request) => Some(request),
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// Gives the request of an operation back, which waits again.
    pub(crate) fn wait_again(&mut self, index: usize, request: OwnedRequest) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.state = State::Waiting(request);
        }
    }

    /// Records how an operation whose request was taken out has ended on this channel.
    pub(crate) fn end_on(
        &mut self,
        channel: ChannelId,
        index: usize,
        Ended { result, buffer }: Ended,
        each: &mut dyn FnMut(usize, bool),
    ) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.channel = channel;
            entry.state = State::Ended(result, buffer);
            if let Some((number, is_success)) = self.ended(index) {
                each(number, is_success);
            }
        }
    }

    /// Takes out the outcome of the operation at this place.
    pub(crate) fn take_ended(&mut self, place: usize) -> Option<Ended> {
        let entry = self.entries.get_mut(place)?;
        let taken = State::Ended(Err(TransportError::Taken), None);
        match mem::replace(&mut entry.state, taken) {
            State::Ended(Err(TransportError::Taken), _) => None,
            State::Ended(result, buffer) => Some(Ended { result, buffer }),
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// The place of the operation that is added next.
    pub(crate) const fn next_place(&self) -> usize {
        self.entries.len()
    }

    /// Operations that have not ended, parts included.
    pub(crate) const fn left(&self) -> usize {
        self.left
    }
}
