//! Requests of a transfer that begin together, and those that are split.

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

impl Transfer {
    /// How many of the requests that wait on a rail begin together next, for which there are `credits`.
    pub(super) fn run_length(&self, at: usize, engine: &Engine, credits: u32) -> u16 {
        let Some(rail) = self.rails.get(at) else {
            return 0;
        };
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

    /// Moves the requests of this many operations, from this one on, to a chain. Returns the operation behind them.
    pub(super) fn take_run(&mut self, first: usize, run: u16) -> (OwnedChain, usize) {
        let chain = self.chains.pop();
        let mut chain = chain.unwrap_or_else(|| OwnedChain::blank(CHAIN));
        let (mut index, mut count) = (first, 0);
        while count < run
            && let Some(entry) = self.entries.get_mut(index)
            && let State::Waiting(request) = mem::replace(&mut entry.state, State::Chained)
        {
            if let Err(rejected) = chain.set(count.into(), request) {
                // It was admitted before.
                entry.state = State::Waiting(rejected.into_given());
                break;
            }
            (count, index) = (count + 1, entry.next);
        }
        if let Some(entry) = self.entries.get_mut(first) {
            entry.run = count.max(1);
        }
        // A chain has room for all.
        let _is_within = chain.set_range(..usize::from(count));
        (chain, index)
    }

    /// Makes the requests of a run wait again, which were not posted.
    pub(super) fn put_back(&mut self, first: usize, mut chain: OwnedChain) {
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
        if let Some(entry) = self.entries.get_mut(first) {
            entry.run = 1;
        }
        self.chains.push(chain);
    }

    /// A run has ended, and its requests are back, unless they are stuck.
    pub(super) fn end_run(
        &mut self,
        first: usize,
        result: Result<WorkSuccess, TransportError>,
        mut chain: OwnedChain,
        down: Option<DownReason>,
        each: &mut dyn FnMut(usize, bool),
    ) {
        let (run, done) = (self.run_of(first), chain.done());
        let mut index = first;
        let (mut ended, mut count) = ([(0, false); CHAIN as usize], 0);
        for place in 0..run {
            let Some(entry) = self.entries.get_mut(index) else {
                break;
            };
            let at = usize::from(place);
            let result = match result {
                Ok(success) => Ok((place + 1 == run).then_some(success)),
                Err(_) if at < done => Ok(None),
                // Those behind the one that has failed are flushed.
                Err(TransportError::Work { .. }) if at > done && down.is_some() => {
                    down.map_or(Ok(None), |reason| Err(TransportError::Aborted(reason)))
                }
                Err(error) => Err(error),
            };
            entry.state = match chain.take(at).map(OwnedRequest::into_buffer) {
                Some(buffer) => State::Ended(result, Some(buffer)),
                None => State::Ended(Err(TransportError::Stuck), None),
            };
            let next = entry.next;
            self.ended(index, &mut |index, is_success| {
                if let Some(place) = ended.get_mut(count) {
                    *place = (index, is_success);
                    count += 1;
                }
            });
            index = next;
        }
        if !chain.is_empty() {
            self.chains.push(chain);
        }
        // A panic of it leaves none behind that has not ended.
        for (index, is_success) in ended.into_iter().take(count) {
            each(index, is_success);
        }
    }

    pub(super) fn run_of(&self, first: usize) -> u16 {
        self.entries.get(first).map_or(1, |entry| entry.run)
    }

    /// Splits a write or a read that waits, if it is too long for its channel.
    pub(crate) fn split(&mut self, index: usize, engine: &Engine) {
        if let Some(entry) = self.entries.get(index)
            && let State::Waiting(request) = &entry.state
            && let Some(max) = engine.max_message(entry.channel)
            && request.buffer().range().len() > max
        {
            self.split_one(index, max);
        }
    }

    /// Splits an operation, if that can be: its parts come behind it on its rail.
    #[cold]
    fn split_one(&mut self, index: usize, max: usize) {
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
        let Some(failure) = whole.and_then(|whole| whole.split.as_ref()?.failure) else {
            return false;
        };
        let next = self.next_of(index);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.state = State::Ended(Err(failure), None);
        }
        if let Some(rail) = self.rails.get_mut(at) {
            rail.waiting = next;
        }
        self.unlink(at, index);
        self.ended(index, each);
        true
    }

    /// A part has ended. Returns the operation and its result if it was the last of them: the buffer is whole again
    /// then, unless the device may have a part of it.
    pub(super) fn part_ended(&mut self, index: usize) -> Option<usize> {
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
            (None, _) => State::Ended(Err(TransportError::Stuck), None),
            (buffer, Some(error)) => State::Ended(Err(error), buffer),
            (buffer, None) => State::Ended(Ok(None), buffer),
        };
        Some(of)
    }
}
