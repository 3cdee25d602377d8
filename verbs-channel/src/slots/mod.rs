//! The slot table: what is in flight, by number.
//!
//! A slot is what an operation has from its post until its result has been taken. Its number and
//! generation make the `wr_id`, so a completion finds its slot in one step, and one that belongs to
//! nobody any more is recognised. Each slot is in at most one list, through its own links:
//!
//! ```text
//! free ── take ──► posted (in `scoped` if its buffers are borrowed) ── complete ──► done ── release ──► free
//!                                                                        (in `ready` if it owns its buffer)
//! ```
//!
//! Nothing here allocates after [`Slots::new`], and nothing is unsafe.

use verbs_core::WorkSuccess;

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
    fn of(wr_id: u64) -> (Self, bool) {
        let [index, generation] = [wr_id & (MEMBER - 1), wr_id >> 32];
        let id = Self {
            index: u32::try_from(index).unwrap_or(NONE),
            generation: u32::try_from(generation).unwrap_or(0),
        };
        (id, wr_id & MEMBER == 0)
    }
}

/// Who keeps the buffers of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// A scope, or a blocking call: the operation must end before it does.
    Scope,
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
    /// Which queue it is in.
    pub(crate) queue: Queue,
    /// Places in that queue.
    pub(crate) credits: u32,
    /// Who keeps its buffers.
    pub(crate) keeper: Keeper,
}

/// How an operation ended.
pub(crate) type Outcome = Result<WorkSuccess, TransportError>;

#[derive(Debug)]
enum State {
    Free,
    /// With the first failure of a request of its batch.
    Posted(Option<TransportError>),
    Done(Outcome),
}

#[derive(Debug)]
struct Slot<B> {
    generation: u32,
    next: u32,
    prev: u32,
    claim: Claim,
    state: State,
    buffer: Option<B>,
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

/// The table.
#[derive(Debug)]
pub(crate) struct Slots<B> {
    slots: Vec<Slot<B>>,
    // The free slot to take next; each names the one after it.
    free: u32,
    scoped: List,
    ready: List,
}

impl<B> Slots<B> {
    /// A table of free slots.
    pub(crate) fn new(capacity: u32) -> Self {
        let mut slots = Self {
            slots: Vec::new(),
            free: NONE,
            scoped: EMPTY,
            ready: EMPTY,
        };
        slots.grow(capacity);
        slots
    }

    /// Adds free slots; what is in flight stays.
    pub(crate) fn grow(&mut self, more: u32) {
        let claim = Claim {
            member: 0,
            queue: Queue::Send,
            credits: 0,
            keeper: Keeper::Slot,
        };
        for _ in 0..more {
            let Ok(index) = u32::try_from(self.slots.len()) else {
                return;
            };
            self.slots.push(Slot {
                generation: 0,
                next: self.free,
                prev: NONE,
                claim,
                state: State::Free,
                buffer: None,
            });
            self.free = index;
        }
    }

    /// Takes a free slot; `None` if there is none.
    #[inline]
    pub(crate) fn take(&mut self, claim: Claim) -> Option<Id> {
        let index = self.free;
        self.free = self.slots.get(index as usize)?.next;
        if claim.keeper == Keeper::Scope {
            push(&mut self.slots, &mut self.scoped, index);
        }
        let slot = &mut self.slots[index as usize];
        slot.claim = claim;
        slot.state = State::Posted(None);
        let generation = slot.generation;
        Some(Id { index, generation })
    }

    /// Gives an operation its buffer to keep.
    #[inline]
    pub(crate) fn keep(&mut self, id: Id, buffer: B) {
        if let Some(slot) = self.slots.get_mut(id.index as usize) {
            slot.buffer = Some(buffer);
        }
    }

    /// The completion of a work request: if it ends its operation, what that took up.
    ///
    /// `None` for a request of a batch that goes on, and for a number that belongs to nobody.
    #[inline]
    pub(crate) fn complete(&mut self, wr_id: u64, outcome: Outcome) -> Option<Claim> {
        let (id, is_last) = Id::of(wr_id);
        let slot = self.slots.get_mut(id.index as usize)?;
        let State::Posted(earlier) = &mut slot.state else {
            return None;
        };
        if slot.generation != id.generation {
            return None;
        }
        if !is_last {
            if let (Err(error), None) = (outcome, &earlier) {
                *earlier = Some(error);
            }
            return None;
        }
        let outcome = earlier.map_or(outcome, Err);
        slot.state = State::Done(outcome);
        let claim = slot.claim;
        if claim.keeper == Keeper::Slot {
            push(&mut self.slots, &mut self.ready, id.index);
        }
        Some(claim)
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
            State::Posted(_) => Some(false),
            State::Done(_) => Some(true),
        }
    }

    /// Takes the result of an operation that is done, and frees its slot.
    #[inline]
    pub(crate) fn release(&mut self, id: Id) -> Option<(Claim, Outcome, Option<B>)> {
        if self.is_done(id) != Some(true) {
            return None;
        }
        let index = id.index;
        let claim = self.slots[index as usize].claim;
        match claim.keeper {
            Keeper::Scope => unlink(&mut self.slots, &mut self.scoped, index),
            Keeper::Slot => unlink(&mut self.slots, &mut self.ready, index),
            Keeper::Caller => {}
        }
        match self.free(index) {
            (State::Done(outcome), buffer) => Some((claim, outcome, buffer)),
            _ => None,
        }
    }

    /// Takes back a slot whose operation was not posted.
    pub(crate) fn cancel(&mut self, id: Id) {
        if self.is_done(id) == Some(false) {
            if self.slots[id.index as usize].claim.keeper == Keeper::Scope {
                unlink(&mut self.slots, &mut self.scoped, id.index);
            }
            drop(self.free(id.index));
        }
    }

    /// Ends every operation of a member that is in flight, and tells what each took up.
    pub(crate) fn abort(
        &mut self,
        member: u32,
        error: TransportError,
        mut ended: impl FnMut(Claim),
    ) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.claim.member == member && matches!(slot.state, State::Posted(_)) {
                let generation = slot.generation;
                let index = u32::try_from(index).unwrap_or(NONE);
                let wr_id = Id { index, generation }.wr_id();
                if let Some(claim) = self.complete(wr_id, Err(error)) {
                    ended(claim);
                }
            }
        }
    }

    /// The oldest operation of the scope whose result has not been taken.
    #[inline]
    pub(crate) fn first_scoped(&self) -> Option<Id> {
        self.id_at(self.scoped.head)
    }

    /// The operation that owns its buffer and has been done for longest.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<Id> {
        self.id_at(self.ready.head)
    }

    /// Whose a completion is.
    pub(crate) fn member(&self, wr_id: u64) -> Option<u32> {
        let (id, _) = Id::of(wr_id);
        self.is_done(id)?;
        Some(self.slots.get(id.index as usize)?.claim.member)
    }

    /// Takes out the buffers of a member's operations that are in flight.
    pub(crate) fn buffers_in_flight(&mut self, member: u32) -> impl Iterator<Item = B> {
        let in_flight = move |slot: &&mut Slot<B>| {
            slot.claim.member == member && matches!(slot.state, State::Posted(_))
        };
        let slots = self.slots.iter_mut().filter(in_flight);
        slots.filter_map(|slot| slot.buffer.take())
    }

    fn id_at(&self, index: u32) -> Option<Id> {
        let slot = self.slots.get(index as usize)?;
        let generation = slot.generation;
        Some(Id { index, generation })
    }

    /// Frees a slot that is in no list; what it was in, and its buffer.
    #[inline]
    fn free(&mut self, index: u32) -> (State, Option<B>) {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = self.free;
        self.free = index;
        let state = std::mem::replace(&mut slot.state, State::Free);
        (state, slot.buffer.take())
    }
}

/// Appends a slot to a list.
#[inline]
fn push<B>(slots: &mut [Slot<B>], list: &mut List, index: u32) {
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
fn unlink<B>(slots: &mut [Slot<B>], list: &mut List, index: u32) {
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
