//! Carrying out a transfer: its operations are posted while there is room, and their outcomes taken.

use std::mem;

use super::{NONE, Rail, State, Transfer};
use crate::channel_id::ChannelId;
use crate::engine::Engine;
use crate::error::{Queue, RejectReason, TransportError};

const STUCK: TransportError = TransportError::Stuck;

impl Transfer {
    /// It is carried out from now on.
    pub(crate) fn begin(&mut self) {
        let rails = self.rails.iter_mut();
        let begun = rails.map(|rail| {
            rail.is_full = false;
            mem::take(&mut rail.begun)
        });
        if begun.sum::<usize>() > 0 {
            // A layer above has not ended them, and nothing here does.
            self.end_stuck(|state| matches!(state, State::Begun(_) | State::Chained));
        }
    }

    /// Whether all operations have ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.left == 0
    }

    /// Whether a [step](Self::step) would take an outcome, or post a request.
    pub(crate) fn can_step(&self, engine: &Engine) -> bool {
        self.rails.iter().any(|rail| {
            // Requests that wait on a channel that is down are rejected.
            let takes = || {
                engine.credits(rail.channel, rail.queue) > 0
                    || engine.down_reason(rail.channel).is_some()
            };
            self.is_first_done(rail, engine)
                || (rail.waiting != NONE && !rail.is_blocked && takes())
        })
    }

    /// Takes outcomes that are there, and posts what there is room for, while `may_post`, which gets how many are next. `each` gets those
    /// that ended.
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        each: &mut dyn FnMut(usize, bool),
        may_post: &mut dyn FnMut(u16) -> bool,
    ) {
        for at in 0..self.rails.len() {
            self.take_done(at, engine, each);
            if !self.post_waiting(at, engine, each, may_post) {
                return;
            }
        }
    }

    /// Takes the outcomes of one rail from the first on, while they are there.
    fn take_done(&mut self, at: usize, engine: &mut Engine, each: &mut dyn FnMut(usize, bool)) {
        while let Some(rail) = self.rails.get(at).copied()
            && self.is_first_done(&rail, engine)
            && let Some(entry) = self.entries.get_mut(rail.in_flight)
            && let State::InFlight(ticket) = entry.state
        {
            // The set may come from another engine: the slot is another operation's here.
            let is_its = engine.place(ticket.channel()).is_some();
            let completed = is_its.then(|| engine.take_completed(ticket)).flatten();
            let (result, buffer, chain) = match completed {
                Some(completed) => (completed.result, completed.buffer, completed.chain),
                None => (Err(STUCK), None, None),
            };
            let (index, run) = (rail.in_flight, entry.run);
            let last = (1..run).fold(index, |at, _| self.next_of(at));
            // Behind the last in flight is one that waits, or was rejected at the deadline.
            let next = self.next_of(last);
            let next = match self.entries.get(next) {
                Some(entry) if matches!(entry.state, State::InFlight(_)) => next,
                _ => NONE,
            };
            if let Some(rail) = self.rails.get_mut(at) {
                rail.in_flight = next;
                rail.is_blocked = false;
            }
            if chain.is_some() || run > 1 {
                let down = engine.down_reason(rail.channel);
                self.end_run(index, result, chain.unwrap_or_default(), down, each);
            } else if let Some(entry) = self.entries.get_mut(index) {
                entry.state = State::Ended(result.map(Some), buffer);
                self.ended(index, each);
            }
        }
    }

    pub(super) fn next_of(&self, index: usize) -> usize {
        self.entries.get(index).map_or(NONE, |entry| entry.next)
    }

    /// Posts several requests of a rail as a chain. Returns whether it still may post on the rail.
    fn post_chain(
        &mut self,
        at: usize,
        run: u16,
        engine: &mut Engine,
        each: &mut dyn FnMut(usize, bool),
    ) -> bool {
        let Some(Rail {
            waiting: first,
            channel,
            ..
        }) = self.rails.get(at).copied()
        else {
            return false;
        };
        let (chain, next) = self.take_run(first, run);
        let started = engine.start_chain(channel, chain);
        let Some(rail) = self.rails.get_mut(at) else {
            return false;
        };
        let (reason, chain) = match started {
            Ok(ticket) => {
                if rail.in_flight == NONE {
                    rail.in_flight = first;
                }
                rail.waiting = next;
                if let Some(entry) = self.entries.get_mut(first) {
                    entry.state = State::InFlight(ticket);
                }
                return true;
            }
            Err(rejected) => rejected.into_parts(),
        };
        let is_lost = chain.is_empty();
        if is_lost || matches!(reason, RejectReason::Post(error) if error.posted() > 0) {
            // The device had some of them, and is done with them unless they are lost.
            rail.waiting = next;
            self.unlink(at, first);
            self.end_run(first, Err(reason.into()), chain, None, each);
            return true;
        }
        let is_blocked = reason == RejectReason::Untaken && rail.in_flight != NONE;
        rail.is_blocked = is_blocked;
        rail.one_by_one = run;
        self.put_back(first, chain);
        !is_blocked && !reason.is_backpressure()
    }

    /// Posts requests of one rail, while there is room. Returns whether it still may.
    fn post_waiting(
        &mut self,
        at: usize,
        engine: &mut Engine,
        each: &mut dyn FnMut(usize, bool),
        may_post: &mut dyn FnMut(u16) -> bool,
    ) -> bool {
        while let Some(rail) = self.rails.get_mut(at)
            && !rail.is_blocked
            && let Some(entry) = self.entries.get(rail.waiting)
            && let State::Waiting(_) = entry.state
        {
            let (channel, queue, first) = (rail.channel, rail.queue, rail.waiting);
            if self.end_behind_failure(at, each) {
                continue;
            }
            self.split(first, engine);
            let run = self.run_length(at, engine, engine.credits(channel, queue));
            if !may_post(run) {
                return false;
            }
            if run > 1 {
                if self.post_chain(at, run, engine, each) {
                    continue;
                }
                return true;
            }
            let Some(rail) = self.rails.get_mut(at) else {
                return true;
            };
            rail.one_by_one = rail.one_by_one.saturating_sub(1);
            let Some(entry) = self.entries.get_mut(rail.waiting) else {
                return true;
            };
            let State::Waiting(request) = &mut entry.state else {
                return true;
            };
            let had_memory = request.buffer().capacity() > 0;
            let index = rail.waiting;
            let reason = match engine.start(rail.channel, request) {
                Ok(ticket) => {
                    if rail.in_flight == NONE {
                        rail.in_flight = index;
                    }
                    rail.waiting = entry.next;
                    entry.state = State::InFlight(ticket);
                    continue;
                }
                Err(reason) if reason.is_backpressure() => return true,
                Err(RejectReason::Untaken) if rail.in_flight != NONE => {
                    // Room comes with the outcomes of those in flight.
                    rail.is_blocked = true;
                    return true;
                }
                Err(reason) => reason,
            };
            let buffer = mem::take(request.buffer_mut());
            entry.state = State::ended(had_memory, Err(reason.into()), buffer);
            rail.waiting = entry.next;
            self.unlink(at, index);
            self.ended(index, each);
        }
        true
    }

    /// Takes a request that was not posted here out of its rail, with those of its run: those in flight before it are
    /// followed by those that wait behind it.
    pub(super) fn unlink(&mut self, at: usize, index: usize) {
        let last = (1..self.run_of(index)).fold(index, |at, _| self.next_of(at));
        let Some(rail) = self.rails.get(at).copied() else {
            return;
        };
        let mut before = rail.in_flight;
        while let Some(entry) = self.entries.get_mut(before) {
            if entry.next == index {
                entry.next = rail.waiting;
                break;
            }
            before = entry.next;
        }
        if rail.last == last
            && let Some(rail) = self.rails.get_mut(at)
        {
            rail.last = before;
        }
    }

    pub(super) fn ended(&mut self, index: usize, each: &mut dyn FnMut(usize, bool)) {
        self.left -= 1;
        let index = self.part_ended(index);
        let Some(entry) = index.and_then(|index| self.entries.get(index)) else {
            return;
        };
        let is_success = matches!(entry.state, State::Ended(Ok(_), _));
        each(entry.number, is_success);
    }

    /// Posts nothing more: the requests that wait are rejected.
    pub(crate) fn reject_waiting(&mut self, engine: &Engine) {
        let ignore = &mut |_, _| {};
        for at in 0..self.rails.len() {
            let Some(rail) = self.rails.get_mut(at) else {
                return;
            };
            let reason = match engine.down_reason(rail.channel) {
                Some(reason) => RejectReason::Down(reason),
                None if engine.credits(rail.channel, rail.queue) > 0 => RejectReason::TimedOut,
                None => RejectReason::Backpressure(rail.queue),
            };
            let mut index = mem::replace(&mut rail.waiting, NONE);
            while let Some(entry) = self.entries.get_mut(index) {
                let at = mem::replace(&mut index, entry.next);
                if let State::Waiting(request) = &mut entry.state {
                    let buffer = mem::take(request.buffer_mut());
                    entry.state = State::Ended(Err(reason.into()), Some(buffer));
                    self.ended(at, ignore);
                }
            }
        }
    }

    /// Takes all outcomes that are there.
    pub(crate) fn take_all_done(&mut self, engine: &mut Engine, each: &mut dyn FnMut(usize, bool)) {
        for at in 0..self.rails.len() {
            self.take_done(at, engine, each);
        }
    }

    /// Ends what is still in flight: the device may access its memory, and the engine has its buffers.
    pub(crate) fn end_in_flight(&mut self) {
        self.end_stuck(|state| matches!(state, State::InFlight(_) | State::Chained));
        for rail in &mut self.rails {
            rail.in_flight = NONE;
        }
    }

    /// Ends operations whose memory is not here.
    #[cold]
    fn end_stuck(&mut self, is_left: fn(&State) -> bool) {
        for index in 0..self.entries.len() {
            if let Some(entry) = self.entries.get_mut(index)
                && is_left(&entry.state)
            {
                entry.state = State::Ended(Err(STUCK), None);
                self.ended(index, &mut |_, _| {});
            }
        }
    }

    /// Whether nothing is in flight on the channels that have operations of the set in flight.
    pub(crate) fn is_quiesced(&self, engine: &Engine) -> bool {
        let mut channels = self.in_flight();
        channels.all(|(channel, _)| {
            let queues = [Queue::Send, Queue::Receive];
            queues
                .iter()
                .all(|&queue| engine.in_flight(channel, queue) == 0)
        })
    }

    /// The channels that have operations in flight, and the queue of these. A channel may come twice.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (ChannelId, Queue)> {
        let rails = self.rails.iter().filter(|rail| rail.in_flight != NONE);
        rails.map(|rail| (rail.channel, rail.queue))
    }

    fn is_first_done(&self, rail: &Rail, engine: &Engine) -> bool {
        match self.entries.get(rail.in_flight) {
            Some(entry) => match entry.state {
                // It has a slot until its outcome is taken.
                State::InFlight(ticket) => {
                    engine.place(ticket.channel()).is_none() || !engine.is_pending(ticket.id)
                }
                _ => true,
            },
            None => false,
        }
    }
}
