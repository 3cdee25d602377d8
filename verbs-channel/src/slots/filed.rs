//! Successes, filed as many at once as took up the same.

use super::{Claim, Id, List, READY, Slot};

/// Files the successes at the front of `found` whose operations took up what `claim` says; how many.
/// What they tell is `KEPT`, if somebody may ask; the operations are `LISTED`, if others look for
/// them.
#[inline(always)]
pub(super) fn file<const KEPT: bool, const LISTED: bool, S: Copy, B, C>(
    slots: &mut [Slot<S, B>],
    list: &mut List<READY>,
    found: &[C],
    claim: Claim,
    wr_id: impl Fn(&C) -> u64,
    success: impl Fn(&C) -> Option<&S>,
) -> usize {
    let mut last = list.last();
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
            if LISTED {
                slot.links[READY].prev = last;
                match slots.get_mut(last as usize) {
                    Some(before) => before.links[READY].next = index,
                    None => list.head = index,
                }
                last = index;
            }
            return false;
        }
        true
    });
    if LISTED {
        list.end(slots, last);
    }
    other.unwrap_or(found.len())
}
