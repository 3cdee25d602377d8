//! Polling: the half of the data path that brings completions back.
//!
//! Nothing here allocates, locks, logs or formats.
#![expect(
    unsafe_code,
    reason = "lets the device's completions be copied into slots"
)]

use std::fmt;
use std::iter::FusedIterator;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;

use verbs_sys::{ibv_poll_cq, ibv_wc};

use super::{CompletionQueue, WorkCompletion};
use crate::codes::macros::man;
use crate::error::PollError;

/// Room for one completion, for [`CompletionQueue::poll`] to fill.
#[repr(transparent)]
pub struct PollSlot {
    wc: MaybeUninit<ibv_wc>,
}

impl PollSlot {
    /// An empty slot. `[const { PollSlot::new() }; 16]` makes sixteen.
    ///
    /// Slots can be polled into any number of times, so make them once.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            // Not uninitialised: drivers fill in only what an opcode has, and `WorkSuccess` shows
            // all of it.
            wc: MaybeUninit::zeroed(),
        }
    }

    /// Fills the slot with a completion that was polled before, for layers that store completions.
    #[inline]
    pub const fn set(&mut self, completion: WorkCompletion) {
        self.wc = MaybeUninit::new(completion.wc);
    }

    /// The completions in these slots, for layers that store completions.
    ///
    /// A slot that was never filled is a completion whose fields are all 0.
    #[inline]
    #[must_use]
    pub const fn completions(slots: &[Self]) -> PolledCompletions<'_> {
        let filled =
            ptr::slice_from_raw_parts(slots.as_ptr().cast::<WorkCompletion>(), slots.len());
        // SAFETY: a slot is initialised since it was made, and a `WorkCompletion` is an `ibv_wc`.
        let completions = unsafe { &*filled };
        PolledCompletions { completions }
    }
}

impl Default for PollSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PollSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PollSlot")
    }
}

/// The completions that a poll took, in the slots that were passed to it.
#[derive(Clone, Copy, Debug)]
pub struct PolledCompletions<'a> {
    completions: &'a [WorkCompletion],
}

impl<'a> PolledCompletions<'a> {
    /// The completions as a slice, which lives as long as the slots.
    #[inline]
    #[must_use]
    pub const fn as_slice(self) -> &'a [WorkCompletion] {
        self.completions
    }
}

impl Deref for PolledCompletions<'_> {
    type Target = [WorkCompletion];

    #[inline]
    fn deref(&self) -> &[WorkCompletion] {
        self.completions
    }
}

impl<'a> IntoIterator for PolledCompletions<'a> {
    type Item = &'a WorkCompletion;
    type IntoIter = Completions<'a>;

    #[inline]
    fn into_iter(self) -> Completions<'a> {
        Completions {
            left: self.completions,
        }
    }
}

/// An iterator over the completions that a poll took, in their order.
// Not a slice's iterator: that computes its end first, by a multiplication by 48.
#[derive(Clone, Debug)]
pub struct Completions<'a> {
    left: &'a [WorkCompletion],
}

impl<'a> Iterator for Completions<'a> {
    type Item = &'a WorkCompletion;

    #[inline]
    fn next(&mut self) -> Option<&'a WorkCompletion> {
        let (first, left) = self.left.split_first()?;
        self.left = left;
        Some(first)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.len(), Some(self.left.len()))
    }
}

impl ExactSizeIterator for Completions<'_> {}
impl FusedIterator for Completions<'_> {}

const _: () = assert!(size_of::<PollSlot>() == size_of::<ibv_wc>());
const _: () = assert!(size_of::<WorkCompletion>() == size_of::<ibv_wc>());

impl CompletionQueue {
    /// Takes completions from the queue, at most one for each slot, and returns at once.
    ///
    /// An empty result means that nothing has completed. A failed work request is not an error of
    /// `poll`: the outcome of each request is its completion's [`result`](WorkCompletion::result).
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// # use verbs_core::{CompletionQueue, Context, PollSlot};
    /// # let cq = CompletionQueue::create(&Context::first_active()?, 16)?;
    /// let mut slots = [const { PollSlot::new() }; 16];
    /// for completion in cq.poll(&mut slots)? {
    ///     let success = completion.result()?;
    ///     println!("{} is done", success.wr_id());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`PollError`] if the driver could not poll. Completions that it took during this call are lost,
    /// and it is unknown which requests have completed.
    #[doc = man!("ibv_poll_cq")]
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'a>(&self, slots: &'a mut [PollSlot]) -> Result<PolledCompletions<'a>, PollError> {
        let room = i32::try_from(slots.len()).unwrap_or(i32::MAX);
        let first = slots.as_mut_ptr().cast::<ibv_wc>();
        // SAFETY: the queue is alive, and there is room for `room` completions.
        let found = unsafe { ibv_poll_cq(self.as_ptr(), room, first) };
        let Ok(found) = usize::try_from(found) else {
            return Err(PollError::new(found));
        };
        let filled = ptr::slice_from_raw_parts(first.cast::<WorkCompletion>(), found);
        // SAFETY: "returns a non-negative value equal to the number of completions found", at most
        // the number asked for (ibv_poll_cq(3)); slots are initialised since they were made, and a
        // `WorkCompletion` is an `ibv_wc`.
        let completions = unsafe { &*filled };
        Ok(PolledCompletions { completions })
    }
}
