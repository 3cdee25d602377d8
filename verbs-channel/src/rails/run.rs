//! Carrying out a transfer over rails: spread, handed over when a rail goes down, and quiesced.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, thread};

use super::Rails;
use super::rail::Rail;
use crate::channel::Channel;
use crate::channel_id::ChannelId;
use crate::engine::{Ended, Transfer, TransferError};
use crate::error::{RejectReason, TransportError};
use crate::request::OwnedRequest;
use crate::waiting::{Deadline, Pause, Poller, Steps as _};

/// The longest sleep: completions of other rails may come meanwhile.
const SLEEP: Duration = Duration::from_millis(1);

/// How often it is checked whether the devices answer, and whether rails that are down were flushed in time.
const PROBE: Duration = Duration::from_millis(100);

impl Rails {
    /// Carries out a [`Transfer`], and returns when the devices are done with all of its memory: as
    /// [`Channel::transfer`], over all rails.
    ///
    /// The timeout and the strategy of waits are those of the first channel. With
    /// [`PollStrategy::Notify`](crate::PollStrategy::Notify), it sleeps for 1 ms at most. At the deadline, all rails are
    /// aborted together that have operations of the transfer in flight. So this returns by the deadline, plus the sum of 16
    /// posts, the longest drain timeout, and the time that `ibv_destroy_qp` takes for each rail that is not flushed; plus the
    /// longest drain timeout once more if the driver refuses that since the device is being removed.
    ///
    /// # Errors
    ///
    /// As [`Channel::transfer`]. It succeeds if other rails have carried out what a rail could not.
    pub fn transfer(
        &mut self,
        transfer: &mut Transfer,
        deadline: Option<Instant>,
    ) -> Result<(), TransferError> {
        self.transfer_with(transfer, deadline, |_, _| {})
    }

    /// Like [`transfer`](Self::transfer), and calls `each` as [`Channel::transfer_with`] does.
    ///
    /// # Errors
    ///
    /// As [`transfer`](Self::transfer).
    pub fn transfer_with(
        &mut self,
        transfer: &mut Transfer,
        deadline: Option<Instant>,
        mut each: impl FnMut(usize, bool),
    ) -> Result<(), TransferError> {
        Running::new(self, transfer, deadline).run(&mut each);
        self.rejoin();
        let result = transfer.result();
        if result.is_err() {
            for rail in &mut self.rails {
                rail.poller().engine.end_failed_leases();
                // From now on, each device has its drain timeout to be removed.
                rail.poller().run_afterwards();
            }
            let pollers = self.rails.iter_mut().map(Rail::poller);
            pollers.for_each(Poller::finish_destroying);
        }
        result
    }
}

/// A transfer that is being carried out: quiesced when this is dropped, by a panic too.
struct Running<'r> {
    rails: &'r mut Rails,
    transfer: &'r mut Transfer,
    /// The operations that no rail has.
    waiting: VecDeque<usize>,
    /// Those of one channel, while no rail has them.
    tied: Vec<(usize, ChannelId)>,
    /// How operations have ended on the rail that they were moved from, unless it was down before.
    moved: HashMap<usize, TransportError>,
    timeout: Option<Duration>,
    deadline: Deadline,
}

impl<'r> Running<'r> {
    fn new(rails: &'r mut Rails, transfer: &'r mut Transfer, deadline: Option<Instant>) -> Self {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        rails.rails.iter_mut().for_each(|rail| rail.refuses = false);
        let first = rails.rails.first_mut();
        let timeout = left.or_else(|| first?.poller().config.timeout);
        Self {
            rails,
            transfer,
            waiting: VecDeque::new(),
            tied: Vec::new(),
            moved: HashMap::new(),
            timeout,
            deadline: Deadline::after(timeout),
        }
    }

    fn run(mut self, each: &mut dyn FnMut(usize, bool)) {
        self.share_out(each);
        let (mut posts, mut pause) = (0, None);
        let aborts = Arc::clone(&self.rails.aborts);
        let mut next_probe = Instant::now() + PROBE;
        loop {
            let now = Instant::now();
            if self.rails.end_if_aborted() || self.deadline.is_over(now) {
                return;
            }
            self.rails.rejoin();
            let mut has_moved = self.assign(each);
            for at in 0..self.rails.rails.len() {
                if let Some(rail) = self.rails.rails.get_mut(at) {
                    has_moved |= rail.step(now, self.deadline, &mut posts, &aborts);
                    self.take_ended(at, each);
                }
            }
            if self.transfer.has_ended() || !self.can_go_on() {
                return;
            }
            if now >= next_probe {
                next_probe = now + PROBE;
                let rails = self.rails.rails.iter_mut();
                rails.for_each(|rail| rail.poller().engine.probe(now));
            }
            if has_moved {
                pause = None;
                continue;
            }
            if !self.pause(&mut pause) {
                return;
            }
        }
    }

    /// Gives the operations of one channel to that rail. Those of any rail wait.
    fn share_out(&mut self, each: &mut dyn FnMut(usize, bool)) {
        for (index, channel) in self.transfer.share_out() {
            match channel == self.rails.id {
                true => self.waiting.push_back(index),
                false => self.tied.push((index, channel)),
            }
        }
        // Those of a rail stay in their order.
        self.tied.reverse();
        while let Some((index, channel)) = self.tied.pop() {
            let mut rails = self.rails.rails.iter_mut();
            let rail = rails.find(|rail| rail.channel.id() == channel);
            match (rail, self.transfer.take_request(index)) {
                (Some(rail), Some(request)) => rail.give(index, request.op, request, true),
                (None, Some(request)) => {
                    let ended = Ended::rejected(RejectReason::UnknownChannel, request);
                    self.transfer.end_on(channel, index, ended, each);
                }
                _ => {}
            }
        }
    }

    /// Gives operations that wait to rails that have room, the one with the fewest bytes first. Returns whether it has.
    fn assign(&mut self, each: &mut dyn FnMut(usize, bool)) -> bool {
        let mut has_given = false;
        let rails = &mut self.rails.rails;
        if !rails.iter().any(Rail::is_usable) {
            // The operations may be the cause. None is refused more than twice.
            rails.iter_mut().for_each(|rail| rail.refuses = false);
        }
        while let Some(&index) = self.waiting.front() {
            let rails = self.rails.rails.iter().enumerate();
            let free = rails.filter(|(_, rail)| rail.has_room());
            let Some((at, _)) = free.min_by_key(|(_, rail)| rail.bytes) else {
                break;
            };
            self.waiting.pop_front();
            let Some(mut request) = self.transfer.take_request(index) else {
                continue;
            };
            has_given = true;
            let op = request.op;
            if let Some(remote) = request.op.remote_mut() {
                let Some(its) = self.rails.remote_on(at, *remote) else {
                    let ended = Ended::rejected(RejectReason::UnknownRemote, request);
                    self.transfer.end_on(self.rails.id, index, ended, each);
                    continue;
                };
                *remote = its;
            }
            if let Some(rail) = self.rails.rails.get_mut(at) {
                rail.give(index, op, request, false);
            }
        }
        has_given
    }

    /// Takes the outcomes of a rail. Operations that it could not carry out wait for another one.
    fn take_ended(&mut self, at: usize, each: &mut dyn FnMut(usize, bool)) {
        while let Some(rail) = self.rails.rails.get_mut(at)
            && let Some((given, mut ended)) = rail.next_ended()
        {
            let channel = rail.channel.id();
            let is_again = ended.is_refused() && self.moved.contains_key(&given.index);
            if given.can_move(&ended)
                && !is_again
                && self.is_expected()
                && let Some(buffer) = ended.buffer.take()
            {
                if let Err(error) = ended.result
                    && !matches!(error, TransportError::Rejected(RejectReason::Down(_)))
                {
                    self.moved.insert(given.index, error);
                }
                let request = OwnedRequest {
                    buffer,
                    op: given.op,
                };
                self.transfer.wait_again(given.index, request);
                self.waiting.push_back(given.index);
                continue;
            }
            self.end(channel, given.index, ended, each);
        }
    }

    /// Ends an operation. Another rail may have posted it, though this one has not: so its outcome is the one there.
    fn end(
        &mut self,
        channel: ChannelId,
        index: usize,
        mut ended: Ended,
        each: &mut dyn FnMut(usize, bool),
    ) {
        if let Err(TransportError::Rejected(_)) = ended.result
            && let Some(before) = self.moved.get(&index)
        {
            ended.result = Err(*before);
        }
        self.transfer.end_on(channel, index, ended, each);
    }

    /// Whether a rail is up, or will be.
    fn is_expected(&self) -> bool {
        let mut channels = self.rails.channels();
        self.rails.connector.is_some() || channels.any(|channel| !channel.is_down())
    }

    /// Whether operations are in flight, or can be.
    fn can_go_on(&self) -> bool {
        self.is_expected() || self.rails.rails.iter().any(|rail| !rail.is_idle())
    }

    /// Pauses after a round in which nothing has happened. Returns whether the wait goes on.
    fn pause(&mut self, pause: &mut Option<Pause>) -> bool {
        let rails = &mut self.rails.rails;
        rails
            .iter_mut()
            .for_each(|rail| rail.poller().finish_closing());
        let first = rails.first_mut().map(Rail::poller);
        let strategy = first.map(|poller| poller.config.strategy);
        let pause =
            pause.get_or_insert_with(|| Pause::new(strategy.unwrap_or_default(), self.deadline));
        let busiest = rails.iter_mut().max_by_key(|rail| rail.bytes);
        let Some(poller) = busiest.map(Rail::poller) else {
            return false;
        };
        let now = pause.read_clock();
        poller.sleep(now, pause, SLEEP)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let after = self.timeout.unwrap_or_default();
        let ignore = &mut |_, _| {};
        if self.transfer.has_ended() && !thread::panicking() {
            return;
        }
        let is_late = self.deadline.is_over(Instant::now());
        let rails = &mut self.rails.rails;
        let timeouts = rails
            .iter_mut()
            .map(|rail| rail.poller().config.drain_timeout);
        let drained_by = Deadline::after(timeouts.max());
        // Each of these is done for all before the next.
        rails.iter_mut().for_each(|rail| rail.shut_down(after));
        rails
            .iter_mut()
            .for_each(|rail| rail.drain(after, drained_by));
        rails.iter_mut().for_each(Rail::quiesce);
        for at in 0..rails.len() {
            while let Some(rail) = self.rails.rails.get_mut(at)
                && let Some((given, ended)) = rail.next_ended()
            {
                let channel = rail.channel.id();
                self.end(channel, given.index, ended, ignore);
            }
        }
        let downs = self.rails.channels().map(Channel::down_reason);
        let is_late = is_late && self.rails.connector.is_some();
        let reason = match downs.reduce(Option::and) {
            Some(Some(reason)) if !is_late => RejectReason::Down(reason),
            Some(_) => RejectReason::TimedOut,
            None => RejectReason::UnknownChannel,
        };
        let waiting = mem::take(&mut self.waiting).into_iter();
        let waiting = waiting.map(|index| (index, self.rails.id));
        let left: Vec<_> = waiting.chain(mem::take(&mut self.tied)).collect();
        for (index, channel) in left {
            if let Some(request) = self.transfer.take_request(index) {
                self.end(channel, index, Ended::rejected(reason, request), ignore);
            }
        }
        // A panic leaves it to this to end the leases, if an operation has failed.
        let _failed = self.transfer.result();
    }
}
