//! Completions that a poll has found, and that are not dispatched yet.
//!
//! A poll for one operation finds those of others, too. They stay where they were polled to: the next
//! operation that is polled for is usually the one at the front, and takes its success from there. So
//! that is not copied to its slot and back.
//!
//! For everything else they are still in the completion queue. Code that polls the queue, or needs
//! their room, [settles](super::Engine::settle) them first.

use verbs_core::{PollSlot, PolledCompletions, WorkCompletion, WorkSuccess};

use super::slots::Id;

/// Where the held completions are, among the slots of the last poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    // The first that is held, and the one after the last: equal if none is.
    front: u32,
    end: u32,
    // Whether there are any, or were: `false` if there is nothing to settle.
    is_open: bool,
    // The channel of a scope whose handles have taken those before the front, and whose slots are not
    // free yet; `NO_CHANNEL` if there is none.
    taken_on: u32,
}

impl Held {
    pub(super) const NONE: Self = Self {
        front: EMPTY,
        end: EMPTY,
        is_open: false,
        taken_on: NO_CHANNEL,
    };

    /// All `found` completions of a poll. Those at the front are for handles of a scope on this
    /// channel, if there is one.
    #[inline(always)]
    pub(super) fn all(found: usize, taken_on: Option<u32>) -> Self {
        Self {
            front: 0,
            // At most the number of poll slots.
            end: u32::try_from(found).unwrap_or(0),
            is_open: true,
            taken_on: match taken_on {
                Some(at) => at,
                None => NO_CHANNEL,
            },
        }
    }

    /// Whether there may be anything to settle.
    #[inline(always)]
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether none is held.
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.front == self.end
    }

    /// The place after the last.
    pub(super) const fn end(&self) -> usize {
        self.end as usize
    }

    /// The first that is held. If none is, a completion that is no operation's, or was dispatched.
    #[inline(always)]
    pub(super) fn front<'s>(&self, slots: &'s [PollSlot]) -> Option<&'s WorkCompletion> {
        let all = PollSlot::completions(slots).as_slice();
        all.get(self.front as usize)
    }

    /// The front was taken.
    #[inline(always)]
    pub(super) const fn pop(&mut self) {
        self.front += 1;
    }

    /// Those that handles have taken, and their channel.
    #[inline(always)]
    pub(super) fn taken(self, slots: &[PollSlot]) -> Option<(u32, &[WorkCompletion])> {
        let all = PollSlot::completions(slots).as_slice();
        let taken = all.get(..self.front as usize)?;
        (self.taken_on != NO_CHANNEL).then_some((self.taken_on, taken))
    }

    /// Those that are held.
    #[inline(always)]
    pub(super) fn rest(self, slots: &[PollSlot]) -> PolledCompletions<'_> {
        let rest = slots.get(self.front as usize..self.end as usize);
        PollSlot::completions(rest.unwrap_or_default())
    }

    /// How many there were for a scope, or are held.
    #[inline(always)]
    pub(super) const fn count(&self) -> usize {
        let first = if self.taken_on == NO_CHANNEL {
            self.front
        } else {
            0
        };
        self.end.wrapping_sub(first) as usize
    }
}

/// No channel's place.
const NO_CHANNEL: u32 = u32::MAX;

/// The place of the poll slot that is always empty: behind all that a poll takes.
const EMPTY: u32 = 16;

/// How many completions a poll takes at most.
pub(super) const MAX_POLLED: usize = EMPTY as usize;

/// The success of this operation, if the completion is its.
#[inline(always)]
pub(super) fn success_of(completion: &WorkCompletion, id: Id) -> Option<&WorkSuccess> {
    if completion.wr_id() != id.wr_id() {
        return None;
    }
    completion.success()
}
