//! Operations of a transfer that others carry out: each of several rails has a share of them.

use std::mem;

use super::{Ended, NONE, State, Transfer};
use crate::channel_id::ChannelId;
use crate::error::TransportError;
use crate::request::OwnedRequest;

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
            self.ended(index, each);
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
