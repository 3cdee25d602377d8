//! Pieces of a transfer: requests that begin and end together, and the parts of long ones.

use std::mem;

use verbs_core::WorkSuccess;

use super::{Entry, NONE, Split, State, Transfer};
use crate::buffer::OwnedBuffer;
use crate::engine::Engine;
use crate::error::{DownReason, Queue, RejectReason, TransportError};
use crate::request::{OwnedChain, OwnedRequest};

/// The most requests that share a doorbell and a completion.
pub(super) const CHAIN: u16 = 16;

/// Chains that a send queue has room for, at least: it is not empty while one of them completes.
const CHAINS: u32 = 4;

/// Requests that begin together.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "for the layer above")]
pub enum Piece {
    /// A request.
    One(OwnedRequest),
    /// Requests with one doorbell and one completion.
    Chain(OwnedChain),
}

impl Piece {
    /// The buffer, or the chain, of a piece that is not posted: see [`Transfer::end_piece`].
    #[must_use]
    pub fn into_given(self) -> (OwnedBuffer, Option<OwnedChain>) {
        match self {
            Self::One(request) => (request.into_buffer(), None),
            Self::Chain(chain) => (OwnedBuffer::empty(), Some(chain)),
        }
    }
}

impl Transfer {
    /// How many of the requests that wait on a rail begin together next, for which there are `credits`. Splits the first
    /// if it is too long for its channel.
    pub(super) fn next_run(&mut self, at: usize, engine: &Engine, credits: u32) -> u16 {
        let Some(rail) = self.rails.get(at).copied() else {
            return 0;
        };
        if let Some(entry) = self.entries.get(rail.waiting)
            && let State::Waiting(request) = &entry.state
            && let Some(max) = engine.max_message(rail.channel)
            && request.buffer().range().len() > max
        {
            self.split(rail.waiting, max);
        }
        if rail.queue == Queue::Receive || rail.one_by_one > 0 {
            return 1;
        }
        let room = engine.capacity(rail.channel, Queue::Send) / CHAINS;
        let most = u16::try_from(room.min(credits)).map_or(CHAIN, |room| room.min(CHAIN));
        let (mut run, mut index) = (0, rail.waiting);
        while run < most
            && let Some(entry) = self.entries.get(index)
            && let State::Waiting(request) = &entry.state
            && engine.admits(rail.channel, request)
        {
            (run, index) = (run + 1, entry.next);
        }
        run.max(1)
    }

    /// Takes out this many of the requests that wait on a rail, which begin. Returns the first of their operations, too.
    pub(super) fn take_piece(&mut self, at: usize, run: u16) -> Option<(usize, Piece)> {
        let rail = self.rails.get_mut(at)?;
        let first = rail.waiting;
        let mut chain = (run > 1).then(|| {
            let chain = self.chains.pop();
            chain.unwrap_or_else(|| OwnedChain::blank(CHAIN))
        });
        let (mut one, mut has_memory) = (None, false);
        for place in 0..run {
            let entry = self.entries.get_mut(rail.waiting)?;
            let State::Waiting(request) = mem::replace(&mut entry.state, State::Chained) else {
                return None;
            };
            rail.waiting = entry.next;
            match &mut chain {
                // The channel admits it.
                Some(chain) => drop(chain.set(place.into(), request)),
                None => {
                    has_memory = request.buffer().capacity() > 0;
                    one = Some(request);
                }
            }
        }
        let entry = self.entries.get_mut(first)?;
        (entry.state, entry.run) = (State::Begun(has_memory), run);
        let Some(mut chain) = chain else {
            return Some((first, Piece::One(one?)));
        };
        // A chain has room for all.
        let _is_within = chain.set_range(..usize::from(run));
        Some((first, Piece::Chain(chain)))
    }

    /// Has the requests of a piece wait again, which was not posted: those of a chain one by one.
    pub(super) fn put_back(&mut self, at: usize, first: usize, piece: Piece) {
        let Some(rail) = self.rails.get_mut(at) else {
            return;
        };
        rail.waiting = first;
        let Some(entry) = self.entries.get_mut(first) else {
            return;
        };
        let mut chain = match piece {
            Piece::One(request) => {
                entry.state = State::Waiting(request);
                return;
            }
            Piece::Chain(chain) => chain,
        };
        rail.one_by_one = mem::replace(&mut entry.run, 1);
        let mut index = first;
        for place in chain.range() {
            let Some(entry) = self.entries.get_mut(index) else {
                break;
            };
            if let Some(request) = chain.take(place) {
                entry.state = State::Waiting(request);
            }
            index = entry.next;
        }
        self.chains.push(chain);
    }

    /// The operations of a piece have ended, and its buffer or chain is back, unless it is stuck. `down` is why the channel
    /// is down, if it is.
    pub(super) fn end(
        &mut self,
        first: usize,
        result: Result<WorkSuccess, TransportError>,
        (buffer, chain): (OwnedBuffer, Option<OwnedChain>),
        down: Option<DownReason>,
        each: &mut dyn FnMut(usize, bool),
    ) {
        let Some(entry) = self.entries.get_mut(first) else {
            return;
        };
        let run = entry.run;
        if chain.is_none() && run == 1 {
            // A buffer that had memory and has none any more was leaked.
            let is_leaked = matches!(entry.state, State::Begun(true)) && buffer.capacity() == 0;
            entry.state = match result {
                Err(TransportError::Stuck) => State::STUCK,
                Err(_) if is_leaked => State::STUCK,
                result => State::Ended(result.map(Some), Some(buffer)),
            };
            if let Some((number, is_success)) = self.ended(first) {
                each(number, is_success);
            }
            return;
        }
        let mut chain = chain.unwrap_or_default();
        let (done, mut index) = (chain.done(), first);
        let mut ended = [None; CHAIN as usize];
        for (at, ended) in ended.iter_mut().enumerate().take(run.into()) {
            let Some(entry) = self.entries.get_mut(index) else {
                break;
            };
            let result = match result {
                Ok(success) => Ok((at + 1 == run.into()).then_some(success)),
                Err(_) if at < done => Ok(None),
                // Those behind the one that has failed are flushed.
                Err(TransportError::Work { .. }) if at > done && down.is_some() => {
                    down.map_or(Ok(None), |reason| Err(TransportError::Aborted(reason)))
                }
                Err(error) => Err(error),
            };
            entry.state = match chain.take(at).map(OwnedRequest::into_buffer) {
                Some(buffer) => State::Ended(result, Some(buffer)),
                None => State::STUCK,
            };
            let next = entry.next;
            *ended = self.ended(index);
            index = next;
        }
        if !chain.is_empty() {
            self.chains.push(chain);
        }
        // A panic of it leaves none behind that has not ended.
        for (number, is_success) in ended.into_iter().flatten() {
            each(number, is_success);
        }
    }

    /// Splits a write or a read that waits, if that can be: its parts come behind it on its rail.
    #[cold]
    fn split(&mut self, index: usize, max: usize) {
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        let State::Waiting(request) = &mut entry.state else {
            return;
        };
        let (range, op) = (request.buffer().range(), request.op);
        let starts = (0..range.len()).step_by(max);
        let len = |start: usize| max.min(range.len() - start);
        let part = |start| {
            let (is_last, len) = (start + max >= range.len(), len(start));
            op.part(start as u64, len as u64, is_last)
        };
        let Some(ops) = starts.clone().map(part).collect::<Option<Vec<_>>>() else {
            return;
        };
        let Some(whole) = mem::take(request.buffer_mut()).into_shares() else {
            return;
        };
        let parts = starts.zip(ops).map(|(start, op)| {
            let start = range.start + start;
            let len = len(start - range.start);
            let buffer = OwnedBuffer::part(&whole, start..start + len);
            OwnedRequest { buffer, op }
        });
        let mut parts: Vec<_> = parts.collect();
        let (channel, number) = (entry.channel, entry.number);
        let (behind, left) = (entry.next, parts.len());
        *request = parts.remove(0);
        entry.split = Some(Box::new(Split {
            whole,
            left,
            is_posted: false,
            failure: None,
        }));
        let mut last = index;
        for part in parts {
            let at = self.entries.len();
            self.entries.push(Entry::new(channel, part, index, number));
            self.left += 1;
            if let Some(entry) = self.entries.get_mut(last) {
                entry.next = at;
            }
            last = at;
        }
        if let Some(entry) = self.entries.get_mut(last) {
            entry.next = behind;
        }
        if behind == NONE
            && let Some(rail) = self.rails.iter_mut().find(|rail| rail.last == index)
        {
            rail.last = last;
        }
    }

    /// Ends the next of a rail without a post if it is a part of an operation that has failed: an immediate behind a part
    /// that was rejected would tell the peer that all has arrived. Returns whether it is one.
    pub(super) fn end_behind_failure(
        &mut self,
        at: usize,
        each: &mut dyn FnMut(usize, bool),
    ) -> bool {
        let index = self.rails.get(at).map_or(NONE, |rail| rail.waiting);
        let of = self.entries.get(index).map_or(NONE, |entry| entry.of);
        let whole = self.entries.get(of);
        let failure = whole.and_then(|whole| whole.split.as_ref()?.failure);
        let (Some(failure), Some(rail)) = (failure, self.rails.get_mut(at)) else {
            return false;
        };
        if let Some(entry) = self.entries.get_mut(index) {
            entry.state = State::Ended(Err(failure), None);
            rail.waiting = entry.next;
        }
        if let Some((number, is_success)) = self.ended(index) {
            each(number, is_success);
        }
        true
    }

    /// The operation at this place has ended. Returns its number, and whether it has succeeded, unless it is a part of one
    /// that has not.
    pub(super) fn ended(&mut self, index: usize) -> Option<(usize, bool)> {
        self.left -= 1;
        let index = self.part_ended(index)?;
        let entry = self.entries.get(index)?;
        Some((entry.number, matches!(entry.state, State::Ended(Ok(_), _))))
    }

    /// A part has ended. Returns the operation and its result if it was the last of them: the buffer is whole again
    /// then, unless the device may have a part of it.
    fn part_ended(&mut self, index: usize) -> Option<usize> {
        let entry = self.entries.get_mut(index)?;
        let of = entry.of;
        if entry.split.is_none() && of == index {
            return Some(index);
        }
        let ended = mem::replace(&mut entry.state, State::Ended(Ok(None), None));
        let whole = self.entries.get_mut(of)?;
        let split = whole.split.as_mut()?;
        if let State::Ended(result, _) = &ended {
            let is_posted = !matches!(result, Err(TransportError::Rejected(_)));
            let is_rejected = matches!(split.failure, Some(TransportError::Rejected(_)));
            split.is_posted |= is_posted;
            if let Err(error) = result
                && (split.failure.is_none() || is_rejected && is_posted)
            {
                split.failure = Some(*error);
            }
        }
        // Its buffer.
        drop(ended);
        split.left -= 1;
        if split.left > 0 {
            return None;
        }
        let Split {
            whole: memory,
            is_posted,
            failure,
            ..
        } = *whole.split.take()?;
        let failure = match failure {
            // Others had the end of the channel before them.
            Some(TransportError::Rejected(RejectReason::Down(reason))) if is_posted => {
                Some(TransportError::Aborted(reason))
            }
            failure => failure,
        };
        whole.state = match (OwnedBuffer::from_shares(memory), failure) {
            (None, _) => State::STUCK,
            (buffer, Some(error)) => State::Ended(Err(error), buffer),
            (buffer, None) => State::Ended(Ok(None), buffer),
        };
        Some(of)
    }
}
