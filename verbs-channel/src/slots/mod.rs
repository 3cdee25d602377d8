//! The slot table: what is in flight, by number.
//!
//! A slot is what an operation has from its post until its result has been taken. Its number and
//! generation make the `wr_id`, so a completion finds its slot in one step, and one that belongs to
//! nobody any more is recognised.
//!
//! ```text
//! free ── take ──► posted ── complete, fail ──► done ── release ──► free
//! ```
//!
//! Each channel has slots of its own, in a [`SlotList`]: first those in use, in the order of their
//! posts, then the free ones. To take a slot is to move the border by one, and so is to free what was
//! taken last; to free all that was taken since a [`Mark`] is to move the border there. So what one
//! channel does costs the same however much the others have in flight.
//!
//! Two more lists run through slots of all channels, by a second pair of links: `ready`, of the
//! completed operations that own their buffer, in the order of completion; and `detached`, of the
//! operations of a scope that have succeeded and whose handles were dropped: their slots are free as
//! soon as one is needed.
//!
//! Nothing here allocates after [`Slots::grow`], and nothing is unsafe.

use crate::error::{Queue, TransportError};
pub(crate) use claim::{Claim, Keeper};
use filed::file;
use list::{ALL, Links, List, NOWHERE, READY};

mod claim;
mod detached;
mod filed;
mod kept;
mod list;

/// No slot.
const NONE: u32 = u32::MAX;

/// Marks the `wr_id` of a request that is not the last of its batch; and the stamp of a slot, if
/// such a request has failed.
const MEMBER: u64 = 1 << 28;

/// One generation in a stamp.
const GENERATION: u64 = 1 << 29;

/// A slot's number and generation: names one operation.
///
/// A generation has 35 bits, and an operation uses two of them up: an `Id` comes again after 17
/// thousand million operations in one slot. One that old could be taken for another operation's, of
/// which it could take the outcome. So a handle forgets its `Id` when its outcome is taken; a ticket,
/// which can be kept, reaches nothing but an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(u64);

impl Id {
    /// Names no operation: its slot is past the end of every table.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// The `wr_id` of the operation's last, or only, work request.
    #[inline]
    pub(crate) const fn wr_id(self) -> u64 {
        self.0
    }

    /// The `wr_id` of the batch's other work requests, which complete only if they fail.
    #[inline]
    pub(crate) const fn member_wr_id(self) -> u64 {
        self.0 | MEMBER
    }

    /// Its slot.
    #[inline]
    pub(crate) const fn index(self) -> u32 {
        // With a mark it is past the end of every table.
        (self.0 & (GENERATION - 1)) as u32
    }
}

/// A position in a channel's list of slots in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// The slot before it.
    last: u32,
}

impl Mark {
    /// The beginning of the list.
    pub(crate) const NONE: Self = Self { last: NONE };
}

/// A slot, `S` being what a success tells and `B` a buffer: two cache lines, as the channels have it.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<S, B> {
    /// The `wr_id` of its operation, with a mark if a request of it has failed.
    stamp: u64,
    /// Without credits once the operation is done, and in a free slot.
    claim: Claim,
    links: [Links; 2],
    /// What the success told, if somebody may ask; or how it failed, or a request of its batch has.
    /// A free slot may have a success here, and no failure.
    outcome: Option<Result<S, TransportError>>,
    /// What it keeps for its operation.
    buffer: Option<B>,
}

/// The slots of one channel.
#[derive(Debug)]
pub(crate) struct SlotList {
    // The border: the first free slot of `all`.
    free: u32,
    all: List<ALL>,
}

impl SlotList {
    pub(crate) const fn new() -> Self {
        Self {
            free: NONE,
            all: List::new(),
        }
    }

    /// Whether any operation of the channel has a slot.
    pub(crate) const fn has_any(&self) -> bool {
        self.all.head != self.free
    }
}

/// The table: `S` is what a success tells, `B` a buffer.
#[derive(Debug)]
pub(crate) struct Slots<S, B> {
    slots: Vec<Slot<S, B>>,
    ready: List<READY>,
    // Of the one scope that can be open.
    detached: List<READY>,
}

impl<S: Copy, B> Slots<S, B> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            ready: List::new(),
            detached: List::new(),
        }
    }

    /// Adds free slots to a channel's; what is in flight stays.
    pub(crate) fn grow(&mut self, own: &mut SlotList, more: u32) {
        for _ in 0..more {
            let index = match u32::try_from(self.slots.len()) {
                Ok(index) if u64::from(index) < MEMBER => index,
                _ => return,
            };
            self.slots.push(Slot {
                stamp: u64::from(index),
                claim: Claim::NOTHING,
                links: [NOWHERE; 2],
                outcome: None,
                buffer: None,
            });
            own.all.push(&mut self.slots, index);
            if own.free == NONE {
                own.free = index;
            }
        }
    }

    /// Takes a free slot of the channel's; `None` if there is none.
    #[inline(always)]
    pub(crate) fn take(&mut self, own: &mut SlotList, claim: Claim) -> Option<Id> {
        let slot = self.slots.get_mut(own.free as usize)?;
        own.free = slot.links[ALL].next;
        slot.stamp = slot.stamp.wrapping_add(GENERATION);
        slot.claim = claim;
        Some(Id(slot.stamp))
    }

    /// Gives an operation its buffer to keep.
    #[inline]
    pub(crate) fn keep(&mut self, id: Id, buffer: B) {
        if let Some(slot) = self.slots.get_mut(id.index() as usize) {
            slot.buffer = Some(buffer);
        }
    }

    /// Takes the buffer of an operation that has completed.
    #[inline]
    pub(crate) fn take_buffer(&mut self, id: Id) -> Option<B> {
        if self.is_done(id) != Some(true) {
            return None;
        }
        self.slots.get_mut(id.index() as usize)?.buffer.take()
    }

    /// Files successes from the front of `found`, those of operations that take up the same: what
    /// that is, and how many they were. What they tell is kept, except for lent work that nobody
    /// will ask about: if `heard` is false, all of it.
    ///
    /// `None` if the first is no success, is nobody's, or needs a closer look: see
    /// [`succeed`](Self::succeed).
    #[inline(always)]
    pub(crate) fn complete<'c, C>(
        &mut self,
        found: &'c [C],
        heard: bool,
        wr_id: impl Fn(&C) -> u64,
        success: impl Fn(&C) -> Option<&S>,
    ) -> Option<(Claim, usize, &'c [C])> {
        let first = Id(wr_id(found.first()?)).index();
        let claim = self.slots.get(first as usize)?.claim;
        if claim.credits == 0 {
            return None;
        }
        let (slots, ready) = (&mut *self.slots, &mut self.ready);
        let count = match claim.keeper {
            Keeper::Slot => file::<true, true, _, _, _>(slots, ready, found, claim, wr_id, success),
            Keeper::Detached => {
                let detached = &mut self.detached;
                file::<false, true, _, _, _>(slots, detached, found, claim, wr_id, success)
            }
            Keeper::Lender if !heard => {
                file::<false, false, _, _, _>(slots, ready, found, claim, wr_id, success)
            }
            Keeper::Lender | Keeper::Named | Keeper::Caller => {
                file::<true, false, _, _, _>(slots, ready, found, claim, wr_id, success)
            }
        };
        let (run, rest) = found.split_at_checked(count)?;
        (!run.is_empty()).then_some((claim, count, rest))
    }

    /// A work request has succeeded: if it ends its operation, what that took up. An operation of
    /// which another request has failed before ends in that failure.
    ///
    /// `None` for a number that belongs to nobody.
    #[cold]
    pub(crate) fn succeed(&mut self, wr_id: u64, success: S) -> Option<Claim> {
        let id = Id(wr_id);
        if self.is_done(id)? {
            return None;
        }
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.stamp == wr_id {
            slot.outcome = Some(Ok(success));
        }
        self.end(id)
    }

    /// A work request has failed: if it ends its operation, what that took up.
    ///
    /// `None` for a request of a batch that goes on, and for a number that belongs to nobody.
    #[cold]
    pub(crate) fn fail(&mut self, wr_id: u64, error: TransportError) -> Option<Claim> {
        let id = Id(wr_id & !MEMBER);
        if self.is_done(id) != Some(false) {
            return None;
        }
        let slot = self.slots.get_mut(id.index() as usize)?;
        // The first failure of a batch is the batch's.
        if slot.failure().is_none() {
            slot.outcome = Some(Err(error));
        }
        if wr_id & MEMBER != 0 {
            slot.stamp = id.0 | MEMBER;
            return None;
        }
        self.end(id)
    }

    /// Ends an operation that is posted.
    fn end(&mut self, id: Id) -> Option<Claim> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        slot.stamp = id.0;
        let claim = slot.claim;
        let has_failed = slot.failure().is_some();
        slot.claim.credits = 0;
        match claim.keeper {
            Keeper::Slot => self.ready.push(&mut self.slots, id.index()),
            // A failure stays, for the scope to find.
            Keeper::Detached if !has_failed => self.detached.push(&mut self.slots, id.index()),
            _ => {}
        }
        Some(claim)
    }

    /// Whether the operation is done; `None` if it is not one of this table's.
    #[inline]
    pub(crate) fn is_done(&self, id: Id) -> Option<bool> {
        Some(!self.find(id)?.is_in_flight())
    }

    /// Takes the result of an operation of this channel that is done, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        own: &mut SlotList,
        id: Id,
    ) -> Option<Result<S, TransportError>> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.stamp != id.0 || slot.is_in_flight() {
            return None;
        }
        let result = slot.outcome.take().unwrap_or(Err(TransportError::CLOSED));
        self.free_done(own, id);
        Some(result)
    }

    /// Takes back the slot of an operation that is in flight, and that nobody else knows of: it was
    /// not posted; or it has succeeded, and its result needs no place. Whether it was so.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, own: &mut SlotList, id: Id) -> bool {
        let slot = self.slots.get(id.index() as usize);
        let is_posted = slot.is_some_and(|slot| slot.stamp == id.0 && slot.is_in_flight());
        if is_posted {
            self.free(own, id);
        }
        is_posted
    }

    /// Whether buffers that safe code will have back are in flight on a channel: those of a scope or
    /// a call; and those of an operation that is to own its buffer, and does not have it yet.
    pub(crate) fn has_borrowed_in_flight(&self, own: &SlotList) -> bool {
        self.in_flight_of(own).any(|slot| match slot.claim.keeper {
            Keeper::Lender | Keeper::Detached => true,
            Keeper::Slot => slot.buffer.is_none(),
            Keeper::Named | Keeper::Caller => false,
        })
    }

    /// Whether any operation of a channel that owns its buffer has a slot.
    pub(crate) fn owns_any(&self, own: &SlotList) -> bool {
        let mut slots = self.slots_of(own);
        slots.any(|slot| slot.claim.keeper == Keeper::Slot)
    }

    fn in_flight_of(&self, own: &SlotList) -> impl Iterator<Item = &Slot<S, B>> {
        self.slots_of(own).filter(|slot| slot.is_in_flight())
    }

    /// The slots of a channel that are in use, the oldest first.
    fn slots_of(&self, own: &SlotList) -> impl Iterator<Item = &Slot<S, B>> {
        let border = own.free;
        let first = self.in_use(border, own.all.head);
        std::iter::successors(first, move |slot| self.in_use(border, slot.links[ALL].next))
    }

    /// The end of a channel's list of slots in use.
    #[inline]
    pub(crate) fn mark(&self, own: &SlotList) -> Mark {
        let last = match self.slots.get(own.free as usize) {
            _ if own.free == own.all.head => NONE,
            Some(first_free) => first_free.links[ALL].prev,
            None => own.all.last(),
        };
        Mark { last }
    }

    /// The oldest operation since the mark whose result has not been taken. It holds as long as
    /// nothing from before is released.
    #[inline]
    pub(crate) fn first_since(&self, own: &SlotList, mark: Mark) -> Option<Id> {
        let index = self.index_since(own, mark);
        self.in_use(own.free, index).map(Slot::id)
    }

    /// The oldest operation of a channel whose result has not been taken.
    pub(crate) fn first(&self, own: &SlotList) -> Option<Id> {
        self.in_use(own.free, own.all.head).map(Slot::id)
    }

    /// The operation after this one, on its channel.
    pub(crate) fn after(&self, own: &SlotList, id: Id) -> Option<Id> {
        let slot = self.slots.get(id.index() as usize)?;
        self.in_use(own.free, slot.links[ALL].next).map(Slot::id)
    }

    /// Frees the slots of all operations since the mark, which have succeeded.
    #[inline]
    pub(crate) fn release_since(&mut self, own: &mut SlotList, mark: Mark) {
        own.free = self.index_since(own, mark);
        self.detached = List::new();
    }

    /// The operation that owns its buffer and has been done for longest.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<Id> {
        self.slots.get(self.ready.head as usize).map(Slot::id)
    }

    /// How the operation has failed, or a request of it.
    pub(crate) fn failure(&self, id: Id) -> Option<TransportError> {
        self.find(id)?.failure()
    }

    /// The queue in which the operation is in flight. What is in the send queue ends by itself, or
    /// never; a receive waits for the peer.
    pub(crate) fn queue_in_flight(&self, id: Id) -> Option<Queue> {
        let slot = self.find(id).filter(|slot| slot.is_in_flight())?;
        Some(slot.claim.queue)
    }

    /// The channel that a completion belongs to, and the queue.
    pub(crate) fn owner(&self, wr_id: u64) -> Option<(u32, Queue)> {
        let Claim { member, queue, .. } = self.find(Id(wr_id & !MEMBER))?.claim;
        Some((member, queue))
    }

    /// Takes the buffer of an operation that is in flight.
    pub(crate) fn take_buffer_in_flight(&mut self, id: Id) -> Option<B> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        let is_its = slot.id() == id && slot.is_in_flight();
        is_its.then(|| slot.buffer.take()).flatten()
    }

    /// The slot of an operation that has one.
    #[inline]
    fn find(&self, id: Id) -> Option<&Slot<S, B>> {
        let slot = self.slots.get(id.index() as usize)?;
        matches!(slot.stamp ^ id.0, 0 | MEMBER).then_some(slot)
    }

    /// The slot, if it is before the border.
    #[inline]
    fn in_use(&self, border: u32, index: u32) -> Option<&Slot<S, B>> {
        if index == border {
            return None;
        }
        self.slots.get(index as usize)
    }

    #[inline]
    fn index_since(&self, own: &SlotList, mark: Mark) -> u32 {
        let last = self.slots.get(mark.last as usize);
        last.map_or(own.all.head, |slot| slot.links[ALL].next)
    }

    /// Frees a slot that is in no other list.
    #[inline(always)]
    pub(crate) fn free(&mut self, own: &mut SlotList, id: Id) {
        let index = id.index();
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        // Nobody's: the generation after this one is never given out.
        slot.stamp = id.0.wrapping_add(GENERATION);
        slot.claim.credits = 0;
        if slot.links[ALL].next != own.free {
            self.move_to_border(own, index);
        }
        own.free = index;
    }

    // Apart: most are freed in one step, since they were taken last.
    #[inline(never)]
    fn move_to_border(&mut self, own: &mut SlotList, index: u32) {
        own.all.unlink(&mut self.slots, index);
        own.all.insert(&mut self.slots, index, own.free);
    }
}

impl<S, B> Slot<S, B> {
    #[inline]
    const fn id(&self) -> Id {
        Id(self.stamp & !MEMBER)
    }

    #[inline]
    const fn is_in_flight(&self) -> bool {
        self.claim.credits > 0
    }

    #[inline]
    const fn failure(&self) -> Option<TransportError> {
        match self.outcome {
            Some(Err(error)) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
