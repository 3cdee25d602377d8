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
//! Two lists run through the slots, by links of their own: `scoped`, the operations of the scope that
//! is open, in the order of their posts, from post to release; and `ready`, the operations that own
//! their buffer and are done, in the order of completion.
//!
//! Nothing here allocates after [`Slots::grow`], and nothing is unsafe.

use crate::error::{Queue, TransportError};

/// No slot.
const NONE: u32 = u32::MAX;

/// Marks the `wr_id` of a request that is not the last of its batch.
const MEMBER: u64 = 1 << 31;

/// A slot's number and generation: names one operation, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    index: u32,
    generation: u32,
}

impl Id {
    /// The `wr_id` of the operation's last, or only, work request.
    #[inline]
    pub(crate) const fn wr_id(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The `wr_id` of the batch's other work requests, which complete only if they fail.
    #[inline]
    pub(crate) const fn member_wr_id(self) -> u64 {
        self.wr_id() | MEMBER
    }

    #[inline]
    const fn of(wr_id: u64) -> Self {
        Self {
            index: (wr_id & (MEMBER - 1)) as u32,
            generation: (wr_id >> 32) as u32,
        }
    }
}

/// Who keeps the buffers of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// A scope: the operation must end before it does.
    Scope,
    /// A blocking call: as for a scope, and nobody has to look for the operation.
    Call,
    /// The slot itself.
    Slot,
    /// An `unsafe` caller.
    Caller,
}

/// What an operation takes up while it is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Whose it is.
    pub(crate) member: u32,
    /// Places in its queue.
    pub(crate) credits: u32,
    /// Which queue it is in.
    pub(crate) queue: Queue,
    /// Who keeps its buffers.
    pub(crate) keeper: Keeper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Posted,
    /// Posted, and a request of its batch has failed: `error` says how.
    Failing,
    /// Done: `success` says how.
    Done,
    /// Done: `error` says how.
    Failed,
}

/// A slot, `S` being what a success tells.
#[derive(Debug)]
struct Slot<S> {
    generation: u32,
    next: u32,
    prev: u32,
    state: State,
    claim: Claim,
    success: Option<S>,
    error: TransportError,
}

/// A doubly linked list through the slots.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List {
    head: NONE,
    tail: NONE,
};

/// The table: `S` is what a success tells, `B` a buffer.
#[derive(Debug)]
pub(crate) struct Slots<S, B> {
    slots: Vec<Slot<S>>,
    // Beside the slots, and as long: most operations own none.
    buffers: Vec<Option<B>>,
    // The free slot to take next; each names the one after it.
    free: u32,
    scoped: List,
    ready: List,
}

impl<S: Copy, B> Slots<S, B> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            buffers: Vec::new(),
            free: NONE,
            scoped: EMPTY,
            ready: EMPTY,
        }
    }

    /// Adds free slots; what is in flight stays.
    pub(crate) fn grow(&mut self, more: u32) {
        for _ in 0..more {
            let Ok(index) = u32::try_from(self.slots.len()) else {
                return;
            };
            self.slots.push(Slot {
                generation: 0,
                next: self.free,
                prev: NONE,
                state: State::Free,
                claim: Claim {
                    member: 0,
                    credits: 0,
                    queue: Queue::Send,
                    keeper: Keeper::Caller,
                },
                success: None,
                error: TransportError::CLOSED,
            });
            self.buffers.push(None);
            self.free = index;
        }
    }

    /// Takes a free slot; `None` if there is none.
    #[inline]
    pub(crate) fn take(&mut self, claim: Claim) -> Option<Id> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        slot.claim = claim;
        slot.state = State::Posted;
        let generation = slot.generation;
        if claim.keeper == Keeper::Scope {
            push(&mut self.slots, &mut self.scoped, index);
        }
        Some(Id { index, generation })
    }

    /// Gives an operation its buffer to keep.
    #[inline]
    pub(crate) fn keep(&mut self, id: Id, buffer: B) {
        if let Some(place) = self.buffers.get_mut(id.index as usize) {
            *place = Some(buffer);
        }
    }

    /// Takes the buffer of an operation that is done.
    #[inline]
    pub(crate) fn take_buffer(&mut self, id: Id) -> Option<B> {
        if self.is_done(id) != Some(true) {
            return None;
        }
        self.buffers.get_mut(id.index as usize)?.take()
    }

    /// A work request has succeeded: if it ends its operation, what that took up.
    ///
    /// `None` for a number that belongs to nobody.
    #[inline]
    pub(crate) fn complete(&mut self, wr_id: u64, success: S) -> Option<Claim> {
        // With `MEMBER`, which no table is long enough for: a success that was not asked for ends
        // nothing.
        let id = Id {
            index: (wr_id & 0xffff_ffff) as u32,
            generation: (wr_id >> 32) as u32,
        };
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        slot.state = match slot.state {
            State::Posted => State::Done,
            State::Failing => State::Failed,
            _ => return None,
        };
        slot.success = Some(success);
        Some(self.ended(id.index))
    }

    /// A work request has failed: if it ends its operation, what that took up.
    ///
    /// `None` for a request of a batch that goes on, and for a number that belongs to nobody.
    #[cold]
    pub(crate) fn fail(&mut self, wr_id: u64, error: TransportError) -> Option<Claim> {
        let id = Id::of(wr_id);
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        match slot.state {
            State::Posted => slot.error = error,
            // The first failure of a batch is the batch's.
            State::Failing => {}
            _ => return None,
        }
        if wr_id & MEMBER != 0 {
            slot.state = State::Failing;
            return None;
        }
        slot.state = State::Failed;
        Some(self.ended(id.index))
    }

    /// Whether the operation is done; `None` if it is not one of this table's.
    #[inline]
    pub(crate) fn is_done(&self, id: Id) -> Option<bool> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        match slot.state {
            State::Free => None,
            State::Posted | State::Failing => Some(false),
            State::Done | State::Failed => Some(true),
        }
    }

    /// Takes the result of an operation that is done, and frees its slot.
    #[inline]
    pub(crate) fn release(&mut self, id: Id) -> Option<(Claim, Result<S, TransportError>)> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let result = match (slot.state, slot.success) {
            (State::Done, Some(success)) => Ok(success),
            (State::Failed, _) => Err(slot.error),
            _ => return None,
        };
        let claim = slot.claim;
        match claim.keeper {
            Keeper::Scope => unlink(&mut self.slots, &mut self.scoped, id.index),
            Keeper::Slot => unlink(&mut self.slots, &mut self.ready, id.index),
            Keeper::Call | Keeper::Caller => {}
        }
        self.free(id.index);
        Some((claim, result))
    }

    /// Takes back a slot whose operation was not posted.
    #[cold]
    pub(crate) fn cancel(&mut self, id: Id) {
        if self.is_done(id) == Some(false) {
            if self.slots[id.index as usize].claim.keeper == Keeper::Scope {
                unlink(&mut self.slots, &mut self.scoped, id.index);
            }
            self.free(id.index);
        }
    }

    /// An operation of this member that is in flight.
    pub(crate) fn in_flight(&self, member: u32) -> Option<Id> {
        self.find_in_flight(member, |_, _| true)
    }

    /// An operation of this member that is in flight, and whose buffers safe code will have back.
    ///
    /// That of a scope or a call; and one that is to own its buffer, and does not have it yet.
    pub(crate) fn borrowed_in_flight(&self, member: u32) -> Option<Id> {
        self.find_in_flight(member, |keeper, buffer| match keeper {
            Keeper::Scope | Keeper::Call => true,
            Keeper::Slot => buffer.is_none(),
            Keeper::Caller => false,
        })
    }

    fn find_in_flight(
        &self,
        member: u32,
        is_one: impl Fn(Keeper, &Option<B>) -> bool,
    ) -> Option<Id> {
        let is_one = |(slot, buffer): (&Slot<S>, &Option<B>)| {
            let in_flight = matches!(slot.state, State::Posted | State::Failing);
            in_flight && slot.claim.member == member && is_one(slot.claim.keeper, buffer)
        };
        let index = self.slots.iter().zip(&self.buffers).position(is_one)?;
        self.id_at(u32::try_from(index).ok()?)
    }

    /// Whether any operation of this member has a slot.
    pub(crate) fn has_any(&self, member: u32) -> bool {
        let is_one = |slot: &Slot<S>| slot.state != State::Free && slot.claim.member == member;
        self.slots.iter().any(is_one)
    }

    /// The oldest operation of the scope whose result has not been taken.
    #[inline]
    pub(crate) fn first_scoped(&self) -> Option<Id> {
        self.id_at(self.scoped.head)
    }

    /// The operation of the scope after this one, and whether this one is a send in flight.
    pub(crate) fn after_scoped(&self, id: Id) -> (Option<Id>, bool) {
        let Some(slot) = self.slots.get(id.index as usize) else {
            return (None, false);
        };
        let in_flight = matches!(slot.state, State::Posted | State::Failing);
        let waits = in_flight && slot.claim.queue == Queue::Send;
        (self.id_at(slot.next), waits)
    }

    /// The operation that owns its buffer and has been done for longest.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<Id> {
        self.id_at(self.ready.head)
    }

    /// Whose a completion is.
    pub(crate) fn member(&self, wr_id: u64) -> Option<u32> {
        let id = Id::of(wr_id);
        self.is_done(id)?;
        Some(self.slots.get(id.index as usize)?.claim.member)
    }

    /// Takes out the buffers of a member's operations that are in flight.
    pub(crate) fn buffers_in_flight(&mut self, member: u32) -> impl Iterator<Item = B> {
        let both = self.slots.iter().zip(&mut self.buffers);
        let in_flight = move |(slot, _): &(&Slot<S>, &mut Option<B>)| {
            let in_flight = matches!(slot.state, State::Posted | State::Failing);
            in_flight && slot.claim.member == member
        };
        both.filter(in_flight)
            .filter_map(|(_, buffer)| buffer.take())
    }

    fn id_at(&self, index: u32) -> Option<Id> {
        let slot = self.slots.get(index as usize)?;
        let generation = slot.generation;
        Some(Id { index, generation })
    }

    /// An operation has ended: if it owns its buffer, somebody may come for that.
    #[inline]
    fn ended(&mut self, index: u32) -> Claim {
        let claim = self.slots[index as usize].claim;
        if claim.keeper == Keeper::Slot {
            push(&mut self.slots, &mut self.ready, index);
        }
        claim
    }

    /// Frees a slot that is in no list.
    #[inline]
    fn free(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        slot.next = self.free;
        self.free = index;
    }
}

/// Appends a slot to a list.
#[inline]
fn push<S>(slots: &mut [Slot<S>], list: &mut List, index: u32) {
    let slot = &mut slots[index as usize];
    slot.next = NONE;
    slot.prev = list.tail;
    match slots.get_mut(list.tail as usize) {
        Some(tail) => tail.next = index,
        None => list.head = index,
    }
    list.tail = index;
}

/// Takes a slot out of the list it is in.
#[inline]
fn unlink<S>(slots: &mut [Slot<S>], list: &mut List, index: u32) {
    let Slot { next, prev, .. } = slots[index as usize];
    match slots.get_mut(prev as usize) {
        Some(slot) => slot.next = next,
        None => list.head = next,
    }
    match slots.get_mut(next as usize) {
        Some(slot) => slot.prev = prev,
        None => list.tail = prev,
    }
}

#[cfg(test)]
mod tests;
