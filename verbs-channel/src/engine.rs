//! The engine under every channel: posts, polls, counts.
//!
//! One engine drives one completion queue and the queue pairs on it: one for a
//! [`Channel`](crate::Channel), many for a [`ChannelGroup`](crate::ChannelGroup). Each post takes a
//! slot and credits, each completion gives the credits back, so neither queue nor the completion
//! queue can overrun.
#![expect(
    unsafe_code,
    reason = "hands buffers to the card, and knows when it gets them back"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, GatherElement, PollError, PollSlot, ProtectionDomain,
    QueuePair, ReceiveWorkRequest, SendWorkRequest, WorkCompletion, WorkError, WorkRequest,
};

use crate::builder::Config;
use crate::error::{DownReason, Queue, Refusal, TransportError};
use crate::list::ScatterList;
use crate::owned::OwnedBuffer;
use crate::slots::{Claim, Id, Keeper, Outcome, Slots};
use crate::wait::{Pause, Paused, PollStrategy};
use crate::work::Work;

/// What waits and how long: settable at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) strategy: PollStrategy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
}

/// A completion queue, its queue pairs, and what is in flight on them.
#[derive(Debug)]
pub(crate) struct Engine {
    // First: no queue pair may outlive what `slots` keeps for it.
    pub(crate) members: Vec<Member>,
    pub(crate) slots: Slots<OwnedBuffer>,
    pub(crate) patience: Patience,
    // Operations in flight whose buffers are borrowed, and those of them that are no receives.
    pub(crate) scoped: u32,
    pub(crate) scoped_sends: u32,
    id: u64,
    cq: CompletionQueue,
    announcer: Option<CompletionChannel>,
    pd: ProtectionDomain,
}

/// A queue pair and its accounts.
#[derive(Debug)]
pub(crate) struct Member {
    // `None` when it has been destroyed.
    pub(crate) qp: Option<QueuePair>,
    pub(crate) down: Option<DownReason>,
    /// Operations in flight.
    pub(crate) posted: u32,
    /// Those of them whose buffers are borrowed.
    pub(crate) scoped: u32,
    /// Operations whose result has not been taken.
    held: u32,
    send_left: u32,
    recv_left: u32,
    max_send_wr: u32,
}

impl Engine {
    pub(crate) fn new(
        pd: ProtectionDomain,
        cq: CompletionQueue,
        announcer: Option<CompletionChannel>,
        patience: Patience,
    ) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            members: Vec::new(),
            slots: Slots::new(0),
            patience,
            scoped: 0,
            scoped_sends: 0,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            cq,
            announcer,
            pd,
        }
    }

    /// Takes in a queue pair; its number here. What its queues were asked to hold are the credits.
    pub(crate) fn add(&mut self, qp: QueuePair, config: &Config) -> u32 {
        let (send, recv) = (config.max_send_wr, config.max_recv_wr);
        let member = Member {
            qp: Some(qp),
            down: None,
            posted: 0,
            scoped: 0,
            held: 0,
            send_left: send,
            recv_left: recv,
            max_send_wr: send,
        };
        // The place of one that is gone, with nothing of it left, or a new one.
        let gone = |member: &Member| member.qp.is_none() && member.held == 0;
        let at = if let Some(at) = self.members.iter().position(gone) {
            self.members[at] = member;
            at
        } else {
            self.slots.grow(send.saturating_add(recv));
            self.members.push(member);
            self.members.len() - 1
        };
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) const fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Posts work to a member's send queue, with a completion.
    ///
    /// # Safety
    ///
    /// - The buffers that the work names stay as [`QueuePair::post`] wants them until the slot is
    ///   done.
    #[inline]
    pub(crate) unsafe fn post<W: Work>(
        &mut self,
        at: u32,
        keeper: Keeper,
        work: &mut W,
    ) -> Result<Id, Refusal> {
        let claim = Claim {
            member: at,
            queue: Queue::Send,
            credits: 1,
            keeper,
        };
        let (qp, id) = self.claim(claim)?;
        let posted = match work.request(id.wr_id(), true) {
            // SAFETY: the caller's promise: the slot is done when the completion is polled, or the
            // queue pair destroyed.
            Ok(request) => unsafe { qp.post(&mut [request]) }.map_err(Refusal::Post),
            Err(refusal) => Err(refusal),
        };
        match posted {
            Ok(()) => {
                self.count(claim);
                Ok(id)
            }
            Err(refusal) => {
                self.slots.cancel(id);
                Err(refusal)
            }
        }
    }

    /// Posts a batch to a member's send queue: one doorbell, and a completion for the last only.
    ///
    /// # Safety
    ///
    /// - As for [`post`](Self::post).
    pub(crate) unsafe fn post_batch<W: Work, const N: usize>(
        &mut self,
        at: u32,
        keeper: Keeper,
        works: &mut [W; N],
    ) -> Result<Id, Refusal> {
        const { assert!(N > 0, "a batch has work in it") };
        let claim = Claim {
            member: at,
            queue: Queue::Send,
            credits: u32::try_from(N).unwrap_or(u32::MAX),
            keeper,
        };
        let (qp, id) = self.claim(claim)?;
        let mut refused = None;
        let mut number = 0;
        let mut requests = works.each_mut().map(|work| {
            number += 1;
            let request = if number == N {
                work.request(id.wr_id(), true)
            } else {
                work.request(id.member_wr_id(), false)
            };
            request.unwrap_or_else(|refusal| {
                refused = Some(refusal);
                WorkRequest::from(SendWorkRequest::new::<GatherElement<'_>>(&mut []))
            })
        });
        let posted = match refused {
            // SAFETY: the caller's promise; when the last of a chain is done, so are the others.
            None => unsafe { qp.post(&mut requests) },
            Some(refusal) => {
                self.slots.cancel(id);
                return Err(refusal);
            }
        };
        match posted {
            Ok(()) => {
                self.count(claim);
                Ok(id)
            }
            Err(error) if error.posted() == 0 => {
                self.slots.cancel(id);
                Err(Refusal::Post(error))
            }
            // The card has a part of the batch, and will not say when it is done with that.
            Err(error) => {
                self.count(claim);
                self.destroy(at, DownReason::Post(error));
                drop(self.release(id));
                Err(Refusal::Post(error))
            }
        }
    }

    /// Posts a receive to a member's receive queue.
    ///
    /// # Safety
    ///
    /// - The buffers that the list names stay as [`QueuePair::post_receive`] wants them until the
    ///   slot is done.
    #[inline]
    pub(crate) unsafe fn post_receive<L: ScatterList>(
        &mut self,
        at: u32,
        keeper: Keeper,
        list: &mut L,
    ) -> Result<Id, Refusal> {
        let claim = Claim {
            member: at,
            queue: Queue::Receive,
            credits: 1,
            keeper,
        };
        let (qp, id) = self.claim(claim)?;
        let request = ReceiveWorkRequest::new(list.elements()).wr_id(id.wr_id());
        // SAFETY: the caller's promise, as for `post`.
        match unsafe { qp.post_receive(&mut [request]) } {
            Ok(()) => {
                self.count(claim);
                Ok(id)
            }
            Err(error) => {
                self.slots.cancel(id);
                Err(Refusal::Post(error))
            }
        }
    }

    /// Polls once, and files what was found; how many that was.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<usize, PollError> {
        let mut room = [const { PollSlot::new() }; POLL_ROOM];
        let found = self.cq.poll(&mut room)?;
        let count = found.len();
        for completion in found {
            self.file(completion);
        }
        Ok(count)
    }

    /// Polls once; a queue that cannot be polled ends everything on it.
    #[inline]
    pub(crate) fn drive(&mut self) -> usize {
        match self.poll() {
            Ok(count) => count,
            Err(error) => {
                self.destroy_all(DownReason::Poll(error));
                0
            }
        }
    }

    /// Waits until `done` says so; `false` if the pause timed out first. The members in question
    /// end in bounded time if the device is gone.
    #[inline]
    pub(crate) fn wait_until(
        &mut self,
        pause: &mut Pause,
        mut done: impl FnMut(&Self) -> bool,
    ) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.drive() == 0 && !done(self) && !self.pause(pause) {
                return false;
            }
        }
    }

    /// A pause whose time runs from its first empty poll.
    #[inline]
    pub(crate) fn patience(&self, timeout: Option<Duration>) -> Pause {
        Pause::new(self.patience.strategy, timeout)
    }

    #[cold]
    fn pause(&mut self, pause: &mut Pause) -> bool {
        match pause.after_empty(&self.cq, self.announcer.as_ref()) {
            Ok(Paused::Poll) => true,
            Ok(Paused::Probe) => {
                self.probe();
                true
            }
            Ok(Paused::TimedOut) => false,
            Err(error) => {
                self.destroy_all(DownReason::Device(error.errno().unwrap_or(0)));
                true
            }
        }
    }

    /// Ends the members whose device does not answer any more: their completions will not come.
    fn probe(&mut self) {
        for at in 0..self.members.len() {
            let Some(member) = self.members.get(at) else {
                return;
            };
            let answer = match &member.qp {
                Some(qp) if member.posted > 0 => qp.query().map(|_attr| ()),
                _ => Ok(()),
            };
            if let Err(error) = answer {
                let reason = DownReason::Device(error.errno().unwrap_or(0));
                self.destroy(u32::try_from(at).unwrap_or(u32::MAX), reason);
            }
        }
    }

    /// Takes a slot, if the member is up and has credits for it.
    #[inline]
    fn claim(&mut self, claim: Claim) -> Result<(&QueuePair, Id), Refusal> {
        let Some(member) = self.members.get(claim.member as usize) else {
            return Err(Refusal::Down(DownReason::Closed));
        };
        let (Some(qp), None) = (&member.qp, member.down) else {
            return Err(Refusal::Down(member.down.unwrap_or(DownReason::Closed)));
        };
        let left = match claim.queue {
            Queue::Send => member.send_left,
            Queue::Receive => member.recv_left,
        };
        if claim.credits > left {
            return Err(member.too_much(claim));
        }
        match self.slots.take(claim) {
            Some(id) => Ok((qp, id)),
            None => Err(Refusal::Backpressure(claim.queue)),
        }
    }

    /// Counts an operation that was posted.
    #[inline]
    fn count(&mut self, claim: Claim) {
        if let Some(member) = self.members.get_mut(claim.member as usize) {
            member.posted += 1;
            member.held += 1;
            match claim.queue {
                Queue::Send => member.send_left -= claim.credits,
                Queue::Receive => member.recv_left -= claim.credits,
            }
            if claim.keeper == Keeper::Scope {
                member.scoped += 1;
                self.scoped += 1;
                self.scoped_sends += u32::from(claim.queue == Queue::Send);
            }
        }
    }

    /// Counts an operation that has ended.
    #[inline]
    pub(crate) fn uncount(&mut self, claim: Claim) {
        if let Some(member) = self.members.get_mut(claim.member as usize) {
            member.posted -= 1;
            match claim.queue {
                Queue::Send => member.send_left += claim.credits,
                Queue::Receive => member.recv_left += claim.credits,
            }
            if claim.keeper == Keeper::Scope {
                member.scoped -= 1;
                self.scoped -= 1;
                self.scoped_sends -= u32::from(claim.queue == Queue::Send);
            }
        }
    }

    /// Takes the result of an operation that is done.
    #[inline]
    pub(crate) fn release(&mut self, id: Id) -> Option<(Claim, Outcome, Option<OwnedBuffer>)> {
        let released = self.slots.release(id)?;
        if let Some(member) = self.members.get_mut(released.0.member as usize) {
            member.held -= 1;
        }
        Some(released)
    }

    #[inline]
    fn file(&mut self, completion: &WorkCompletion) {
        let outcome = completion.result().map_err(|error| {
            self.failed(error);
            TransportError::Work(error)
        });
        if let Some(claim) = self.slots.complete(completion.wr_id(), outcome) {
            self.uncount(claim);
        }
    }

    /// A failed request has taken its queue pair to ERROR.
    #[cold]
    fn failed(&mut self, error: WorkError) {
        let member = self.slots.member(error.wr_id);
        if let Some(member) = member.and_then(|at| self.members.get_mut(at as usize)) {
            member.down.get_or_insert(DownReason::Work(error));
        }
    }
}

impl Member {
    #[cold]
    fn too_much(&self, claim: Claim) -> Refusal {
        if claim.queue == Queue::Send && claim.credits > self.max_send_wr {
            Refusal::BatchTooLong {
                asked: claim.credits,
                max: self.max_send_wr,
            }
        } else {
            Refusal::Backpressure(claim.queue)
        }
    }
}

/// Completions to take at once.
const POLL_ROOM: usize = 16;
