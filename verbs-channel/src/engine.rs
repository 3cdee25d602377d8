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

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, PollError, PollSlot, PolledCompletions, ProtectionDomain,
    ReceiveWorkRequest, WorkCompletion, WorkRequest, WorkSuccess,
};

use crate::error::{DownReason, Refusal, TransportError};
use crate::gate::Limits;
use crate::list::ScatterList;
use crate::member::Member;
use crate::owned::{Kept, Ticket};
use crate::peer::Peers;
use crate::slots::{Claim, Id, Keeper, Mark, Slots};
use crate::teardown::Leak;
use crate::wait::PollStrategy;
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
    // Places of members that were removed, some of which may still have results.
    pub(crate) removed: VecDeque<u32>,
    // An operation of which the device may have a part, and which does not have its buffers yet.
    pub(crate) half_posted: Option<Id>,
    // Members whose queue pair has not been destroyed.
    pub(crate) open: u32,
    pub(crate) cq: CompletionQueue,
    pub(crate) announcer: Option<CompletionChannel>,
    // The member that was probed last.
    pub(crate) probed: usize,
    // The next completion raises an event, or has raised one that no wait has taken.
    pub(crate) is_armed: bool,
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
        Self {
            members: Vec::new(),
            slots: Slots::new(),
            patience,
            peers: Peers::default(),
            stuck: 0,
            leaks: None,
            removed: VecDeque::new(),
            half_posted: None,
            open: 0,
            cq,
            announcer,
            probed: 0,
            is_armed: false,
            pd,
            room: [const { PollSlot::new() }; POLL_ROOM],
        }
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
    ) -> Result<Ticket, Refusal> {
        let Some(member) = self.members.get_mut(claim.member as usize) else {
            return Err(GONE);
        };
        if !W::passes(list, said, &member.limits) {
            W::check(list, said, &member.limits)?;
        }
        let channel = member.id;
        let Some((qp, id)) = member.take(&mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        // SAFETY: the caller's promise: the slot is done when the completion is polled, or the queue
        // pair destroyed.
        let posted = W::request(list, said, id.wr_id(), true, |request| unsafe {
            qp.post(&mut [request])
        });
        match posted {
            Ok(Ok(())) => Ok(Ticket { channel, id }),
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
    ) -> Result<Ticket, Refusal> {
        const { assert!(N > 0, "a batch has work in it") };
        let Some(member) = self.members.get_mut(claim.member as usize) else {
            return Err(GONE);
        };
        // All of it, before any is built: among that it would cost twice as much.
        let mut all_pass = true;
        for work in works.iter_mut() {
            let (list, said) = work.parts();
            all_pass &= W::passes(list, said, &member.limits);
        }
        if !all_pass {
            check_all(works, &member.limits)?;
        }
        let channel = member.id;
        let Some((qp, id)) = member.take(&mut self.slots, claim) else {
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
            Ok(()) => Ok(Ticket { channel, id }),
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
    ) -> Result<Ticket, Refusal> {
        let Some(member) = self.members.get_mut(claim.member as usize) else {
            return Err(GONE);
        };
        member.limits.check_receive(list)?;
        let channel = member.id;
        let Some((qp, id)) = member.take(&mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        let request = ReceiveWorkRequest::new(list.elements()).wr_id(id.wr_id());
        // SAFETY: the caller's promise, as for `post`.
        match unsafe { qp.post_receive(&mut [request]) } {
            Ok(()) => Ok(Ticket { channel, id }),
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
        let member = self.members.get_mut(claim.member as usize)?;
        if !self.slots.take_back(&mut member.slots, id) {
            self.file_found();
            return None;
        }
        member.give_back(claim, 1);
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
            if let Some(member) = self.members.get_mut(claim.member as usize) {
                self.slots.free(&mut member.slots, id);
                member.give_back(claim, 1);
            }
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

    /// Why an operation got no slot and no credits.
    #[cold]
    #[inline(never)]
    pub(crate) fn why_not(&mut self, claim: Claim) -> Refusal {
        let Some(member) = self.members.get(claim.member as usize) else {
            return GONE;
        };
        let max = member.capacity(claim.queue);
        match member.down() {
            Some(reason) => Refusal::Down(reason),
            None if u32::from(claim.credits) > max => Refusal::BatchTooLong {
                asked: claim.credits.into(),
                max,
            },
            None if member.credits(claim.queue) < u32::from(claim.credits) => {
                Refusal::Backpressure(claim.queue)
            }
            None => Refusal::Untaken,
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
            // Whoever has the buffers ends it: see `end_half_posted`.
            Refusal::Post(error)
                if error.posted() > 0 && matches!(claim.keeper, Keeper::Slot | Keeper::Caller) =>
            {
                self.half_posted = Some(id);
            }
            Refusal::Post(error) if error.posted() > 0 => {
                self.destroy(claim.member, DownReason::Post(error));
                let _aborted = self.release(claim.member, id);
            }
            _ => self.not_posted(claim, id),
        }
        refusal
    }

    /// Takes back what an operation took up of which the card has nothing.
    fn not_posted(&mut self, claim: Claim, id: Id) {
        if let Some(member) = self.members.get_mut(claim.member as usize) {
            let _was_posted = self.slots.take_back(&mut member.slots, id);
            member.give_back(claim, 1);
        }
    }

    /// Where a scope begins: the end of a member's list of slots in use.
    #[inline]
    pub(crate) fn begin_scope(&mut self, at: u32) -> Mark {
        self.slots.end_detached();
        let member = self.members.get(at as usize);
        member.map_or(Mark::NONE, |member| self.slots.mark(&member.slots))
    }

    /// The handle of a member's operation was dropped.
    #[inline]
    pub(crate) fn detach(&mut self, at: u32, id: Id) {
        if !self.slots.detach(id)
            && let Some(member) = self.members.get_mut(at as usize)
        {
            self.slots.detach_done(&mut member.slots, id);
        }
    }

    /// Takes the result of a member's operation that is done, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        at: u32,
        id: Id,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        let member = self.members.get_mut(at as usize)?;
        self.slots.release(&mut member.slots, id)
    }

    /// Gives back the credits of an operation that has ended.
    pub(crate) fn ended(&mut self, claim: Claim) {
        give_back(&mut self.members, claim, 1);
    }
}

/// Why a batch does not pass the gate, if it does not.
#[cold]
#[inline(never)]
fn check_all<W: Work>(works: &mut [W], limits: &Limits) -> Result<(), Refusal> {
    works.iter_mut().try_for_each(|work| {
        let (list, said) = work.parts();
        W::check(list, said, limits)
    })
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

/// Nothing is posted on a member that is not there.
pub(crate) const GONE: Refusal = Refusal::Down(DownReason::Closed);

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
            // A number that belongs to nobody ends nothing.
            slots.owner(wr_id).and_then(|(at, queue)| {
                let member = members.get_mut(at as usize)?;
                slots.fail(wr_id, member.failed(queue, error))
            })
        }
    };
    if let Some(claim) = ended {
        give_back(members, claim, 1);
    }
}

/// Polls that find something before a search ends: more than any queue needs to be emptied.
pub(crate) const MAX_POLLS: u32 = 1 << 18;

/// Completions to take at once.
const POLL_ROOM: usize = 16;
