//! Carrying out a transfer: its operations are posted while there is room, and their outcomes taken.

use std::mem;

use super::{NONE, Piece, Rail, State, Transfer};
use crate::channel_id::ChannelId;
use crate::engine::Engine;
use crate::error::{Queue, RejectReason, TransportError};

impl Transfer {
    /// It is carried out from now on.
    pub(crate) fn begin(&mut self) {
        let rails = self.rails.iter_mut();
        let begun = rails.map(|rail| mem::take(&mut rail.begun));
        if begun.sum::<usize>() > 0 {
            // A layer above has not ended them, and nothing here does.
            self.end_stuck(|state| matches!(state, State::Begun(_) | State::Chained));
        }
    }

    /// Whether a [step](Self::step) would take an outcome, or post a request.
    pub(crate) fn can_step(&self, engine: &Engine) -> bool {
        self.rails.iter().any(|rail| {
            // Requests that wait on a channel that is down are rejected.
            let takes = || {
                engine.credits(rail.channel, rail.queue) > 0
                    || engine.down_reason(rail.channel).is_some()
            };
            let first = self.entries.get(rail.first).map(|entry| &entry.state);
            let is_first_done = match first {
                // It has a slot until its outcome is taken.
                Some(State::InFlight(ticket)) => !engine.is_in_flight(*ticket),
                // It is passed over.
                _ => rail.first != rail.waiting,
            };
            is_first_done || (rail.waiting != NONE && !rail.is_blocked && takes())
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
        while let Some(rail) = self.rails.get_mut(at)
            && rail.first != rail.waiting
            && let Some(entry) = self.entries.get(rail.first)
        {
            let State::InFlight(ticket) = entry.state else {
                // It was taken, or not posted.
                rail.first = entry.next;
                continue;
            };
            if engine.is_in_flight(ticket) {
                return;
            }
            rail.in_flight -= 1;
            rail.is_blocked = false;
            let (first, down) = (rail.first, engine.down_reason(rail.channel));
            let (result, given) = match engine.take(ticket) {
                Ok(Some(completed)) => {
                    let buffer = completed.buffer.unwrap_or_default();
                    (completed.result, (buffer, completed.chain))
                }
                // The set may come from another engine.
                Ok(None) | Err(_) => (Err(TransportError::Stuck), Default::default()),
            };
            self.end(first, result, given, down, each);
        }
    }

    /// Posts requests of one rail, while there is room. Returns whether it still may.
    fn post_waiting(
        &mut self,
        at: usize,
        engine: &mut Engine,
        each: &mut dyn FnMut(usize, bool),
        may_post: &mut dyn FnMut(u16) -> bool,
    ) -> bool {
        while let Some(&Rail { channel, queue, .. }) = self
            .rails
            .get(at)
            .filter(|rail| rail.waiting != NONE && !rail.is_blocked)
        {
            if self.end_behind_failure(at, each) {
                continue;
            }
            let run = self.next_run(at, engine, engine.credits(channel, queue));
            if !may_post(run) {
                return false;
            }
            let Some((first, piece)) = self.take_piece(at, run) else {
                return true;
            };
            let started = match piece {
                Piece::One(mut request) => engine
                    .start(channel, &mut request)
                    .map_err(|reason| (reason, Piece::One(request))),
                Piece::Chain(chain) => engine.start_chain(channel, chain).map_err(|rejected| {
                    let (reason, chain) = rejected.into_parts();
                    (reason, Piece::Chain(chain))
                }),
            };
            let Some(rail) = self.rails.get_mut(at) else {
                return true;
            };
            if run == 1 {
                rail.one_by_one = rail.one_by_one.saturating_sub(1);
            }
            let (reason, piece) = match started {
                Ok(ticket) => {
                    rail.in_flight += 1;
                    if let Some(entry) = self.entries.get_mut(first) {
                        entry.state = State::InFlight(ticket);
                    }
                    continue;
                }
                Err(rejected) => rejected,
            };
            // Room comes with the outcomes of those in flight.
            rail.is_blocked = reason == RejectReason::Untaken && rail.in_flight > 0;
            let waits = rail.is_blocked || reason.is_backpressure();
            let is_posted_again = match &piece {
                Piece::One(_) => waits,
                // Unless the device had some of them, and is done with them or they are lost.
                Piece::Chain(chain) => {
                    let is_half_posted =
                        |reason| matches!(reason, RejectReason::Post(error) if error.posted() > 0);
                    !chain.is_empty() && !is_half_posted(reason)
                }
            };
            if is_posted_again {
                self.put_back(at, first, piece);
            } else {
                self.end(first, Err(reason.into()), piece.into_given(), None, each);
            }
            if waits {
                return true;
            }
        }
        true
    }

    /// Posts nothing more: the requests that wait are rejected.
    pub(crate) fn reject_waiting(&mut self, engine: &Engine) {
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
                    let _untold = self.ended(at);
                }
            }
        }
    }

    /// Takes all outcomes that are there.
    pub(crate) fn take_all_done(&mut self, engine: &mut Engine) {
        for at in 0..self.rails.len() {
            self.take_done(at, engine, &mut |_, _| {});
        }
    }

    /// Ends what is still in flight: the device may access its memory, and the engine has its buffers.
    pub(crate) fn end_in_flight(&mut self) {
        self.end_stuck(|state| matches!(state, State::InFlight(_) | State::Chained));
        for rail in &mut self.rails {
            rail.in_flight = 0;
        }
    }

    /// Ends operations whose memory is not here.
    #[cold]
    fn end_stuck(&mut self, is_left: fn(&State) -> bool) {
        for index in 0..self.entries.len() {
            if let Some(entry) = self.entries.get_mut(index)
                && is_left(&entry.state)
            {
                entry.state = State::STUCK;
                let _untold = self.ended(index);
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
        let rails = self.rails.iter().filter(|rail| rail.in_flight > 0);
        rails.map(|rail| (rail.channel, rail.queue))
    }
}
