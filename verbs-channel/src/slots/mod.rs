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
//! One list runs through all slots: first those in use, in the order of their posts, then the free
//! ones. To take a slot is to move the border by one, and so is to free what was taken last; to free
//! all that was taken since a [`Mark`] is to move the border there. A second list, `ready`, runs
//! through the operations that own their buffer and are done, in the order of completion; to name one
//! takes it out of that.
//!
//! Nothing here allocates after [`Slots::grow`], and nothing is unsafe.

use crate::error::{Queue, TransportError};
pub(crate) use claim::{Claim, Keeper};
use list::{ALL, Links, List, NOWHERE, READY};

mod claim;
mod filed;
mod forgone;
mod kept;
mod list;

/// No slot.
const NONE: u32 = u32::MAX;

/// Marks the `wr_id` of a request that is not the last of its batch; and the stamp of a slot, if
/// such a request has failed.
const MEMBER: u64 = 1 << 28;

/// One generation in a stamp.
const GENERATION: u64 = 1 << 29;

/// A slot's number and generation: names one operation, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(u64);

impl Id {
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

/// A moment: what was in use then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// The last slot that was in use.
    last: u32,
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

/// The table: `S` is what a success tells, `B` a buffer.
#[derive(Debug)]
pub(crate) struct Slots<S, B> {
    slots: Vec<Slot<S, B>>,
    // The border: the first free slot of `all`.
    free: u32,
    all: List<ALL>,
    ready: List<READY>,
}

impl<S: Copy, B> Slots<S, B> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            all: List::new(),
            ready: List::new(),
        }
    }

    /// Adds free slots; what is in flight stays.
    pub(crate) fn grow(&mut self, more: u32) {
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
            self.all.push(&mut self.slots, index);
            if self.free == NONE {
                self.free = index;
            }
        }
    }

    /// Takes a free slot; `None` if there is none.
    #[inline(always)]
    pub(crate) fn take(&mut self, claim: Claim) -> Option<Id> {
        let slot = self.slots.get_mut(self.free as usize)?;
        self.free = slot.links[ALL].next;
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

    /// Takes the buffer of an operation that is done.
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
        let is_heard = match claim.keeper {
            Keeper::Lender => heard,
            Keeper::Scope => false,
            Keeper::Slot | Keeper::Named | Keeper::Caller => true,
        };
        let count = if claim.keeper == Keeper::Slot {
            self.file::<true, true, _>(found, claim, wr_id, success)
        } else if is_heard {
            self.file::<true, false, _>(found, claim, wr_id, success)
        } else {
            self.file::<false, false, _>(found, claim, wr_id, success)
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
        slot.claim.credits = 0;
        if claim.keeper == Keeper::Slot {
            self.ready.push(&mut self.slots, id.index());
        }
        Some(claim)
    }

    /// Whether the operation is done; `None` if it is not one of this table's.
    #[inline]
    pub(crate) fn is_done(&self, id: Id) -> Option<bool> {
        Some(!self.find(id)?.is_in_flight())
    }

    /// Takes the result of an operation that is done, and frees its slot; whose it was.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: Id) -> Option<(u32, Result<S, TransportError>)> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.stamp != id.0 || slot.is_in_flight() {
            return None;
        }
        let member = slot.claim.member;
        let result = slot.outcome.take().unwrap_or(Err(TransportError::CLOSED));
        self.free_done(id);
        Some((member, result))
    }

    /// Takes back the slot of an operation that is in flight, and that nobody else knows of: it was
    /// not posted; or it has succeeded, and its result needs no place. Whether it was so.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, id: Id) -> bool {
        let slot = self.slots.get(id.index() as usize);
        let is_posted = slot.is_some_and(|slot| slot.stamp == id.0 && slot.is_in_flight());
        if is_posted {
            self.free(id);
        }
        is_posted
    }

    /// A member with an operation in flight whose buffers are lent.
    pub(crate) fn borrower(&self) -> Option<u32> {
        let is_one = |slot: &&Slot<S, B>| {
            let is_lent = matches!(slot.claim.keeper, Keeper::Lender | Keeper::Scope);
            is_lent && slot.is_in_flight()
        };
        Some(self.slots.iter().find(is_one)?.claim.member)
    }

    /// An operation of this member that is in flight, and whose buffers safe code will have back.
    ///
    /// That of a scope or a call; and one that is to own its buffer, and does not have it yet.
    pub(crate) fn borrowed_in_flight(&self, member: u32) -> Option<Id> {
        self.find_in_flight(member, |keeper, buffer| match keeper {
            Keeper::Lender | Keeper::Scope => true,
            Keeper::Slot => buffer.is_none(),
            Keeper::Named | Keeper::Caller => false,
        })
    }

    fn find_in_flight(
        &self,
        member: u32,
        is_one: impl Fn(Keeper, &Option<B>) -> bool,
    ) -> Option<Id> {
        let found = self
            .slots
            .iter()
            .find(|slot| slot.is_in_flight_of(member) && is_one(slot.claim.keeper, &slot.buffer));
        found.map(Slot::id)
    }

    /// Whether any operation of this member has a slot.
    pub(crate) fn has_any(&self, member: u32) -> bool {
        let mut index = self.all.head;
        while let Some(slot) = self.in_use(index) {
            if slot.claim.member == member {
                return true;
            }
            index = slot.links[ALL].next;
        }
        false
    }

    /// Whether any operation that owns its buffer has a slot.
    pub(crate) fn owns_any(&self) -> bool {
        let mut index = self.all.head;
        while let Some(slot) = self.in_use(index) {
            if slot.claim.keeper == Keeper::Slot {
                return true;
            }
            index = slot.links[ALL].next;
        }
        false
    }

    /// Now.
    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        let last = match self.slots.get(self.free as usize) {
            _ if self.free == self.all.head => NONE,
            Some(first_free) => first_free.links[ALL].prev,
            None => self.all.last(),
        };
        Mark { last }
    }

    /// The oldest operation since then whose result has not been taken. It holds as long as nothing
    /// from before is released.
    #[inline]
    pub(crate) fn first_since(&self, mark: Mark) -> Option<Id> {
        self.in_use(self.index_since(mark)).map(Slot::id)
    }

    /// The oldest operation whose result has not been taken.
    pub(crate) fn first(&self) -> Option<Id> {
        self.in_use(self.all.head).map(Slot::id)
    }

    /// The operation after this one.
    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        let slot = self.slots.get(id.index() as usize)?;
        self.in_use(slot.links[ALL].next).map(Slot::id)
    }

    /// Frees the slots of all operations since then, which have succeeded.
    #[inline]
    pub(crate) fn release_since(&mut self, mark: Mark) {
        self.free = self.index_since(mark);
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

    /// Whether the operation is in flight in the send queue: it ends by itself, or never.
    pub(crate) fn is_outgoing(&self, id: Id) -> bool {
        let slot = self.find(id).filter(|slot| slot.is_in_flight());
        slot.is_some_and(|slot| slot.claim.queue == Queue::Send)
    }

    /// Whose a completion is.
    pub(crate) fn member(&self, wr_id: u64) -> Option<u32> {
        let slot = self.find(Id(wr_id & !MEMBER))?;
        Some(slot.claim.member)
    }

    /// Takes out the buffers of a member's operations that are in flight.
    pub(crate) fn buffers_in_flight(&mut self, member: u32) -> impl Iterator<Item = B> {
        let slots = self.slots.iter_mut();
        slots
            .filter(move |slot| slot.is_in_flight_of(member))
            .filter_map(|slot| slot.buffer.take())
    }

    /// The slot of an operation that has one.
    #[inline]
    fn find(&self, id: Id) -> Option<&Slot<S, B>> {
        let slot = self.slots.get(id.index() as usize)?;
        matches!(slot.stamp ^ id.0, 0 | MEMBER).then_some(slot)
    }

    /// The slot, if it is not free.
    #[inline]
    fn in_use(&self, index: u32) -> Option<&Slot<S, B>> {
        if index == self.free {
            return None;
        }
        self.slots.get(index as usize)
    }

    #[inline]
    fn index_since(&self, mark: Mark) -> u32 {
        let last = self.slots.get(mark.last as usize);
        last.map_or(self.all.head, |slot| slot.links[ALL].next)
    }

    /// Frees a slot that is not in `ready`.
    #[inline(always)]
    pub(crate) fn free(&mut self, id: Id) {
        let index = id.index();
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        // Nobody's: the generation after this one is never given out.
        slot.stamp = id.0.wrapping_add(GENERATION);
        slot.claim.credits = 0;
        if slot.links[ALL].next != self.free {
            self.move_to_border(index);
        }
        self.free = index;
    }

    // Apart: most are freed in one step, since they were taken last.
    #[inline(never)]
    fn move_to_border(&mut self, index: u32) {
        self.all.unlink(&mut self.slots, index);
        self.all.insert(&mut self.slots, index, self.free);
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

    const fn is_in_flight_of(&self, member: u32) -> bool {
        self.is_in_flight() && self.claim.member == member
    }
}

#[cfg(test)]
mod tests;
