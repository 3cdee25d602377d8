//! Successes, filed as many at once as took up the same.

use super::{Claim, Id, READY, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// Files the successes at the front of `found` whose operations took up what `claim` says; how
    /// many. What they tell is `KEPT`, if somebody may ask; `OWNED` work is ready then.
    #[inline(always)]
    pub(super) fn file<const KEPT: bool, const OWNED: bool, C>(
        &mut self,
        found: &[C],
        claim: Claim,
        wr_id: impl Fn(&C) -> u64,
        success: impl Fn(&C) -> Option<&S>,
    ) -> usize {
        let slots = &mut *self.slots;
        let ready = &mut self.ready;
        let mut last = ready.last();
        let other = found.iter().position(|completion| {
            let wr_id = wr_id(completion);
            let index = Id(wr_id).index();
            if let Some(slot) = slots.get_mut(index as usize)
                && slot.stamp == wr_id
                && slot.claim == claim
                && let Some(success) = success(completion)
            {
                if KEPT {
                    slot.outcome = Some(Ok(*success));
                }
                slot.claim.credits = 0;
                if OWNED {
                    slot.links[READY].prev = last;
                    match slots.get_mut(last as usize) {
                        Some(before) => before.links[READY].next = index,
                        None => ready.head = index,
                    }
                    last = index;
                }
                return false;
            }
            true
        });
        if OWNED {
            ready.end(slots, last);
        }
        other.unwrap_or(found.len())
    }
}
