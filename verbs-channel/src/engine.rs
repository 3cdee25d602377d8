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

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, PollError, PollSlot, PolledCompletions, ProtectionDomain,
    QueuePair, ReceiveWorkRequest, WorkCompletion, WorkRequest, WorkSuccess,
};

use crate::builder::Config;
use crate::error::{DownReason, Refusal, TransportError};
use crate::list::ScatterList;
use crate::member::Member;
use crate::owned::Kept;
use crate::peer::Peers;
use crate::slots::{Claim, Id, Slots};
use crate::teardown::Leak;
use crate::wait::{Pause, Paused, PollStrategy};
use crate::work::Work;

/// What waits and how long: settable at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) strategy: PollStrategy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
    pub(crate) peer_timeout: Option<Duration>,
}

/// A completion queue, its queue pairs, and what is in flight on them.
#[derive(Debug)]
pub(crate) struct Engine {
    // First: no queue pair may outlive what `slots` keeps for it.
    pub(crate) members: Vec<Member>,
    pub(crate) slots: Table,
    pub(crate) patience: Patience,
    pub(crate) peers: Peers,
    // Queue pairs that could not be destroyed: they may still complete work on the queue.
    pub(crate) stuck: u32,
    // What of that nobody has said yet, if it is not said at once.
    pub(crate) leaks: Option<Vec<Leak>>,
    id: u32,
    cq: CompletionQueue,
    announcer: Option<CompletionChannel>,
    pd: ProtectionDomain,
    // Made once: to make it costs more than a poll.
    room: [PollSlot; POLL_ROOM],
}

pub(crate) type Table = Slots<WorkSuccess, Kept>;

impl Engine {
    pub(crate) fn new(
        pd: ProtectionDomain,
        cq: CompletionQueue,
        announcer: Option<CompletionChannel>,
        patience: Patience,
    ) -> Self {
        static IDS: AtomicU32 = AtomicU32::new(0);
        Self {
            members: Vec::new(),
            slots: Slots::new(),
            patience,
            peers: Peers::default(),
            stuck: 0,
            leaks: None,
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
        let member = Member::new(qp, send, recv);
        // The place of one that was removed, with nothing of it left, or a new one.
        let gone = |(at, member): &(usize, &Member)| {
            member.is_removed && !self.slots.has_any(u32::try_from(*at).unwrap_or(u32::MAX))
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

    pub(crate) const fn id(&self) -> u32 {
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
        let posted = W::request(list, said, id.wr_id(), true, |request| unsafe {
            qp.post(&mut [request])
        });
        match posted {
            Ok(Ok(())) => Ok(id),
            Ok(Err(error)) => Err(self.refused(claim, id, Refusal::Post(error))),
            Err(refusal) => Err(self.refused(claim, id, refusal)),
        }
    }

    /// Posts a batch to a member's send queue: one doorbell, and a completion for the last only. The
    /// claim is for as many.
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
        let Some((qp, id)) = take(&mut self.members, &mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        let mut requests = [const { MaybeUninit::<WorkRequest<'_>>::uninit() }; N];
        let mut places = requests.iter_mut().zip(works.iter_mut());
        // The last is apart, so that what all others have in common is looked at once.
        let last = places.next_back();
        let built = build(places, id.member_wr_id(), false)
            .and_then(|()| build(last.into_iter(), id.wr_id(), true));
        if let Err(refusal) = built {
            return Err(self.refused(claim, id, refusal));
        }
        let requests = ptr::from_mut(&mut requests).cast::<[WorkRequest<'_>; N]>();
        // SAFETY: the loop has written to every place.
        let requests = unsafe { &mut *requests };
        // SAFETY: the caller's promise; when the last of a chain is done, so are the others.
        match unsafe { qp.post(requests) } {
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

    /// Polls once, and files what was found; how many that was. What work on borrowed buffers was
    /// told is kept if it is to be `heard`.
    #[inline(always)]
    pub(crate) fn poll(&mut self, heard: bool) -> Result<usize, PollError> {
        let found = self.cq.poll(&mut self.room)?;
        file_all(&mut self.members, &mut self.slots, found, heard);
        Ok(found.len())
    }

    /// Polls once for an operation that a call waits for: its success, if that is all there is.
    /// Then it has ended, and its slot is free. Else what was found is filed.
    #[inline(always)]
    pub(crate) fn poll_for(&mut self, claim: Claim, id: Id) -> Option<WorkSuccess> {
        if !self.finds(id) {
            return None;
        }
        if !self.slots.take_back(id) {
            self.file_found();
            return None;
        }
        give_back(&mut self.members, claim, 1);
        self.told().copied()
    }

    /// The same for an operation that keeps what `take` takes: that. What it was told is
    /// [`told`](Self::told).
    #[inline(always)]
    pub(crate) fn poll_for_kept<T>(
        &mut self,
        id: Id,
        take: impl FnOnce(&mut Option<Kept>) -> Option<T>,
    ) -> Option<T> {
        if !self.finds(id) {
            return None;
        }
        if let Some((claim, place)) = self.slots.in_flight(id)
            && let Some(kept) = take(place)
        {
            self.slots.free(id);
            give_back(&mut self.members, claim, 1);
            return Some(kept);
        }
        self.file_found();
        None
    }

    /// Polls once: whether this success is all there is. Else what was found is filed.
    #[inline(always)]
    fn finds(&mut self, id: Id) -> bool {
        let found = match self.cq.poll(&mut self.room) {
            Ok(found) => found,
            Err(error) => {
                self.not_polled(error);
                return false;
            }
        };
        if let [only] = &*found
            && only.wr_id() == id.wr_id()
            && only.success().is_some()
        {
            return true;
        }
        file_all(&mut self.members, &mut self.slots, found, true);
        false
    }

    /// What the success was told that was [found](Self::finds): it stands there still.
    #[inline(always)]
    pub(crate) fn told(&self) -> Option<&WorkSuccess> {
        let found = PollSlot::completions(&self.room).as_slice();
        found.first()?.success()
    }

    /// Files what was [found](Self::finds) after all: it was not what it seemed.
    #[cold]
    #[inline(never)]
    fn file_found(&mut self) {
        let found = PollSlot::completions(self.room.get(..1).unwrap_or_default());
        file_all(&mut self.members, &mut self.slots, found, true);
    }

    /// Polls once; a queue that cannot be polled ends everything on it.
    #[inline(always)]
    pub(crate) fn drive(&mut self) -> usize {
        self.poll(true)
            .unwrap_or_else(|error| self.not_polled(error))
    }

    /// The same as a scope ends: nobody can ask any more what its work was told.
    #[inline(always)]
    pub(crate) fn drive_unheard(&mut self) -> usize {
        self.poll(false)
            .unwrap_or_else(|error| self.not_polled(error))
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
        self.glance_at_peers();
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
            let answer = match member.qp() {
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
        let max = member.capacity(claim.queue);
        match member.down() {
            Some(reason) => Refusal::Down(reason),
            None if u32::from(claim.credits) > max => Refusal::BatchTooLong {
                asked: claim.credits.into(),
                max,
            },
            None => Refusal::Backpressure(claim.queue),
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
        give_back(&mut self.members, claim, 1);
    }
}

/// Builds requests in the places they are posted from.
#[inline(always)]
fn build<'l, 'p, W: Work + 'l>(
    places: impl Iterator<Item = (&'p mut MaybeUninit<WorkRequest<'l>>, &'l mut W)>,
    wr_id: u64,
    signaled: bool,
) -> Result<(), Refusal>
where
    'l: 'p,
{
    for (place, work) in places {
        let (list, said) = work.parts();
        W::request(list, said, wr_id, signaled, |request| {
            place.write(request);
        })?;
    }
    Ok(())
}

/// Takes a slot and credits, if the member is up and has them.
#[inline(always)]
pub(crate) fn take<'m>(
    members: &'m mut [Member],
    slots: &mut Table,
    claim: Claim,
) -> Option<(&'m QueuePair, Id)> {
    members.get_mut(claim.member as usize)?.take(slots, claim)
}

/// Gives back the credits of as many operations that took up the same.
#[inline(always)]
fn give_back(members: &mut [Member], claim: Claim, times: usize) {
    if let Some(member) = members.get_mut(claim.member as usize) {
        member.give_back(claim, times);
    }
}

/// Files what a poll found.
// In a place of its own: inlined it has too few registers.
#[inline(never)]
fn file_all(members: &mut [Member], slots: &mut Table, found: PolledCompletions<'_>, heard: bool) {
    let mut left = found.as_slice();
    while let Some((first, rest)) = left.split_first() {
        match slots.complete(left, heard, WorkCompletion::wr_id, WorkCompletion::success) {
            Some((claim, count, rest)) => {
                give_back(members, claim, count);
                left = rest;
            }
            None => {
                file(members, slots, first);
                left = rest;
            }
        }
    }
}

/// Files a completion that is not just the success of an operation.
#[cold]
#[inline(never)]
fn file(members: &mut [Member], slots: &mut Table, completion: &WorkCompletion) {
    let ended = match completion.result() {
        Ok(success) => slots.succeed(completion.wr_id(), success),
        Err(error) => {
            let wr_id = error.wr_id;
            let member = slots.member(wr_id);
            let member = member.and_then(|at| members.get_mut(at as usize));
            let error = member.map_or(TransportError::Work(error), |member| member.failed(error));
            slots.fail(wr_id, error)
        }
    };
    if let Some(claim) = ended {
        give_back(members, claim, 1);
    }
}

/// Completions to take at once.
const POLL_ROOM: usize = 16;
