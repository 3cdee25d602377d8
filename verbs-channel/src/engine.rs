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
    CompletionChannel, CompletionQueue, GatherElement, PollError, PollSlot, PolledCompletions,
    ProtectionDomain, QueuePair, ReceiveWorkRequest, SendWorkRequest, WcStatus, WorkCompletion,
    WorkError, WorkRequest, WorkSuccess,
};

use crate::builder::Config;
use crate::error::{DownReason, Queue, Refusal, TransportError};
use crate::list::ScatterList;
use crate::owned::Kept;
use crate::slots::{Claim, Id, Slots};
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
    pub(crate) slots: Table,
    pub(crate) patience: Patience,
    // Queue pairs that could not be destroyed: they may still complete work on the queue.
    pub(crate) stuck: u32,
    id: u64,
    cq: CompletionQueue,
    announcer: Option<CompletionChannel>,
    pd: ProtectionDomain,
    // Made once: to make it costs more than a poll.
    room: [PollSlot; POLL_ROOM],
}

pub(crate) type Table = Slots<WorkSuccess, Kept>;

/// A queue pair and its accounts.
#[derive(Debug)]
pub(crate) struct Member {
    // `None` when it has been destroyed.
    pub(crate) qp: Option<QueuePair>,
    pub(crate) down: Option<DownReason>,
    // Places in its send queue and its receive queue that are free, and how many there are.
    left: [u32; 2],
    max: [u32; 2],
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
            slots: Slots::new(),
            patience,
            stuck: 0,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            cq,
            announcer,
            pd,
            room: [const { PollSlot::new() }; POLL_ROOM],
        }
    }

    /// Takes in a queue pair; its number here. What its queues were asked to hold are the credits.
    pub(crate) fn add(&mut self, qp: QueuePair, config: &Config) -> u32 {
        let (send, recv) = (config.max_send_wr, config.max_recv_wr);
        let member = Member {
            qp: Some(qp),
            down: None,
            left: [send, recv],
            max: [send, recv],
        };
        // The place of one that is gone, with nothing of it left, or a new one.
        let gone = |(at, member): &(usize, &Member)| {
            member.qp.is_none() && !self.slots.has_any(u32::try_from(*at).unwrap_or(u32::MAX))
        };
        let gone = self.members.iter().enumerate().find(gone);
        let at = if let Some((at, _)) = gone {
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

    pub(crate) const fn announcer(&self) -> Option<&CompletionChannel> {
        self.announcer.as_ref()
    }

    /// Posts work to a member's send queue, with a completion.
    ///
    /// # Safety
    ///
    /// - The buffers that the work names stay as [`QueuePair::post`] wants them until the slot is
    ///   done.
    #[inline(always)]
    pub(crate) unsafe fn post<W: Work>(
        &mut self,
        claim: Claim,
        list: &mut W::List,
        said: W::Said,
    ) -> Result<Id, Refusal> {
        let Some((qp, id)) = take(&mut self.members, &mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        // SAFETY: the caller's promise: the slot is done when the completion is polled, or the queue
        // pair destroyed.
        let posted = W::submit(list, said, id.wr_id(), |request| unsafe {
            qp.post(request)
        });
        match posted {
            Ok(()) => Ok(id),
            Err(refusal) => Err(self.refused(claim, id, refusal)),
        }
    }

    /// Posts a batch to a member's send queue: one doorbell, and a completion for the last only.
    ///
    /// # Safety
    ///
    /// - As for [`post`](Self::post).
    #[inline]
    pub(crate) unsafe fn post_batch<W: Work, const N: usize>(
        &mut self,
        claim: Claim,
        works: &mut [W; N],
    ) -> Result<Id, Refusal> {
        const { assert!(N > 0, "a batch has work in it") };
        if usize::from(claim.credits) < N {
            let (asked, max) = (u32::try_from(N).unwrap_or(u32::MAX), claim.credits.into());
            return Err(Refusal::BatchTooLong { asked, max });
        }
        let Some((qp, id)) = take(&mut self.members, &mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        let mut refused = None;
        let mut number = 0;
        let mut requests = works.each_mut().map(|work| {
            let (list, said) = work.parts();
            number += 1;
            let request = if number == N {
                W::request(list, said, id.wr_id(), true)
            } else {
                W::request(list, said, id.member_wr_id(), false)
            };
            request.unwrap_or_else(|refusal| {
                refused = Some(refusal);
                WorkRequest::from(SendWorkRequest::new::<GatherElement<'_>>(&mut []))
            })
        });
        let posted = match refused {
            // SAFETY: the caller's promise; when the last of a chain is done, so are the others.
            None => unsafe { qp.post(&mut requests) },
            Some(refusal) => return Err(self.refused(claim, id, refusal)),
        };
        match posted {
            Ok(()) => Ok(id),
            Err(error) => Err(self.refused(claim, id, Refusal::Post(error))),
        }
    }

    /// Posts a receive to a member's receive queue.
    ///
    /// # Safety
    ///
    /// - The buffers that the list names stay as [`QueuePair::post_receive`] wants them until the
    ///   slot is done.
    #[inline(always)]
    pub(crate) unsafe fn post_receive<L: ScatterList>(
        &mut self,
        claim: Claim,
        list: &mut L,
    ) -> Result<Id, Refusal> {
        let Some((qp, id)) = take(&mut self.members, &mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        let request = ReceiveWorkRequest::new(list.elements()).wr_id(id.wr_id());
        // SAFETY: the caller's promise, as for `post`.
        match unsafe { qp.post_receive(&mut [request]) } {
            Ok(()) => Ok(id),
            Err(error) => Err(self.refused(claim, id, Refusal::Post(error))),
        }
    }

    /// Polls once, and files what was found; how many that was.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Result<usize, PollError> {
        let found = self.cq.poll(&mut self.room)?;
        file_all(&mut self.members, &mut self.slots, found);
        Ok(found.len())
    }

    /// Polls once for an operation that a call waits for: its success, if that is all there is.
    /// Then it has ended, and its slot is free. Else what was found is filed.
    #[inline(always)]
    pub(crate) fn poll_for(&mut self, claim: Claim, id: Id) -> Option<WorkSuccess> {
        let end = |members: &mut [Member], slots: &mut Table| {
            let ended = slots.take_back(id);
            if ended {
                give_back(members, &claim);
            }
            ended.then_some(())
        };
        self.poll_and(id, end).map(|(success, ())| success)
    }

    /// The same for an operation that keeps its buffer.
    #[inline(always)]
    pub(crate) fn poll_for_kept(&mut self, id: Id) -> Option<(WorkSuccess, Claim, Option<Kept>)> {
        let end = |members: &mut [Member], slots: &mut Table| {
            let (claim, buffer) = slots.take_back_kept(id)?;
            give_back(members, &claim);
            Some((claim, buffer))
        };
        let (success, (claim, buffer)) = self.poll_and(id, end)?;
        Some((success, claim, buffer))
    }

    #[inline(always)]
    fn poll_and<T>(
        &mut self,
        id: Id,
        end: impl FnOnce(&mut [Member], &mut Table) -> Option<T>,
    ) -> Option<(WorkSuccess, T)> {
        let found = match self.cq.poll(&mut self.room) {
            Ok(found) => found,
            Err(error) => {
                self.not_polled(error);
                return None;
            }
        };
        if let [only] = *found
            && only.wr_id() == id.wr_id()
            && let Ok(success) = only.result()
            && let Some(ended) = end(&mut self.members, &mut self.slots)
        {
            return Some((success, ended));
        }
        file_all(&mut self.members, &mut self.slots, found);
        None
    }

    /// Polls once; a queue that cannot be polled ends everything on it.
    #[inline(always)]
    pub(crate) fn drive(&mut self) -> usize {
        match self.poll() {
            Ok(count) => count,
            Err(error) => self.not_polled(error),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_polled(&mut self, error: PollError) -> usize {
        self.destroy_all(DownReason::Poll(error));
        0
    }

    /// Waits until `done` says so; `false` if `timeout` passes first. It ends in bounded time if the
    /// device is gone.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Self) -> bool,
    ) -> bool {
        let mut pause = Pause::new(self.patience.strategy, timeout);
        while !done(self) {
            if self.drive() == 0 && !self.pause(&mut pause) {
                return done(self);
            }
        }
        true
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
        let mut closed = false;
        for at in 0..self.members.len() {
            let Some(member) = self.members.get(at) else {
                break;
            };
            let answer = match &member.qp {
                Some(qp) if !member.is_idle() => qp.query().map(|_attr| ()),
                _ => Ok(()),
            };
            if let Err(error) = answer {
                let reason = DownReason::Device(error.errno().unwrap_or(0));
                self.close(u32::try_from(at).unwrap_or(u32::MAX), reason);
                closed = true;
            }
        }
        if closed {
            self.end_what_is_closed();
        }
    }

    /// Why an operation got no slot and no credits. The next may get a slot that nobody needs.
    #[cold]
    #[inline(never)]
    pub(crate) fn why_not(&mut self, claim: Claim) -> Refusal {
        self.slots.reclaim();
        let Some(member) = self.members.get(claim.member as usize) else {
            return Refusal::Down(DownReason::Closed);
        };
        let max = member.max[claim.queue as usize];
        match (&member.qp, member.down) {
            (_, Some(reason)) => Refusal::Down(reason),
            (None, None) => Refusal::Down(DownReason::Closed),
            _ if u32::from(claim.credits) > max => Refusal::BatchTooLong {
                asked: claim.credits.into(),
                max,
            },
            _ => Refusal::Backpressure(claim.queue),
        }
    }

    /// Takes back what a refused operation took up.
    ///
    /// If the card has, or may have, a part of it, it will not say when it is done with that: then
    /// only destroying the queue pair makes the buffers safe to give back.
    #[cold]
    #[inline(never)]
    pub(crate) fn refused(&mut self, claim: Claim, id: Id, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::Post(error) if error.posted() > 0 => {
                self.destroy(claim.member, DownReason::Post(error));
                let _aborted = self.slots.release(id);
            }
            _ => {
                let _was_posted = self.slots.take_back(id);
                self.ended(claim);
            }
        }
        refusal
    }

    /// Gives back the credits of an operation that has ended.
    pub(crate) fn ended(&mut self, claim: Claim) {
        give_back(&mut self.members, &claim);
    }
}

/// Takes a slot and credits, if the member is up and has them.
#[inline(always)]
pub(crate) fn take<'m>(
    members: &'m mut [Member],
    slots: &mut Table,
    claim: Claim,
) -> Option<(&'m QueuePair, Id)> {
    let member = members.get_mut(claim.member as usize)?;
    let (Some(qp), None) = (&member.qp, &member.down) else {
        return None;
    };
    let left = &mut member.left[claim.queue as usize];
    let rest = left.checked_sub(claim.credits.into())?;
    let id = slots.take(claim)?;
    *left = rest;
    Some((qp, id))
}

#[inline(always)]
fn give_back(members: &mut [Member], claim: &Claim) {
    if let Some(member) = members.get_mut(claim.member as usize) {
        member.left[claim.queue as usize] += u32::from(claim.credits);
    }
}

/// Files what a poll found.
// In a place of its own: inlined it has too few registers.
#[inline(never)]
fn file_all(members: &mut [Member], slots: &mut Table, found: PolledCompletions<'_>) {
    for completion in found {
        // The copy is made where it goes, which a second look at the status would prevent.
        let success = || completion.result().ok();
        let ended = |claim: &Claim| give_back(members, claim);
        if completion.status() != WcStatus::SUCCESS
            || !slots.complete(completion.wr_id(), success, ended)
        {
            file(members, slots, completion);
        }
    }
}

/// Files a completion that is not just the success of an operation.
#[cold]
#[inline(never)]
fn file(members: &mut [Member], slots: &mut Table, completion: &WorkCompletion) {
    let ended = match completion.result() {
        Ok(_success) => slots.complete_failed(completion.wr_id()),
        Err(error) => {
            let wr_id = error.wr_id;
            let member = slots.member(wr_id);
            let member = member.and_then(|at| members.get_mut(at as usize));
            let error = member.map_or(TransportError::Work(error), |member| member.failed(error));
            slots.fail(wr_id, error)
        }
    };
    if let Some(claim) = ended {
        give_back(members, &claim);
    }
}

impl Member {
    /// Whether nothing is in flight on it.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.left == self.max
    }

    /// Places in one of its queues that are free.
    pub(crate) const fn credits(&self, queue: Queue) -> u32 {
        self.left[queue as usize]
    }

    /// A failed request has taken its queue pair to ERROR; or it is flushed since this side did.
    fn failed(&mut self, error: WorkError) -> TransportError {
        match *self.down.get_or_insert(DownReason::Work(error)) {
            DownReason::Work(_) => TransportError::Work(error),
            reason if error.status == WcStatus::WR_FLUSH_ERR => TransportError::Aborted(reason),
            _ => TransportError::Work(error),
        }
    }
}

/// Completions to take at once.
const POLL_ROOM: usize = 16;
