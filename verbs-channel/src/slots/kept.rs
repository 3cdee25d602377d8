//! Operations that keep their buffers, and give them back as they end.

use super::{Claim, Id, Keeper, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// [`take_back`](Self::take_back) for an operation that keeps what `take` takes: what it took up,
    /// and that.
    #[inline(always)]
    pub(crate) fn take_back_kept<T>(
        &mut self,
        id: Id,
        take: impl FnOnce(&mut Option<B>) -> Option<T>,
    ) -> Option<(Claim, T)> {
        let slot = self.slots.get(id.index() as usize)?;
        if slot.stamp != id.0 || !slot.is_in_flight() {
            return None;
        }
        let claim = slot.claim;
        let kept = take(self.buffers.get_mut(id.index() as usize)?)?;
        self.free(id);
        Some((claim, kept))
    }

    /// [`release`](Self::release) for an operation that has succeeded and keeps what `take` takes.
    #[inline]
    pub(crate) fn release_kept<T>(
        &mut self,
        id: Id,
        take: impl FnOnce(&mut Option<B>) -> Option<T>,
    ) -> Option<(S, T)> {
        let slot = self.slots.get(id.index() as usize)?;
        if slot.stamp != id.0 || slot.is_in_flight() || slot.failure.is_some() {
            return None;
        }
        let success = slot.success?;
        let kept = take(self.buffers.get_mut(id.index() as usize)?)?;
        if slot.claim.keeper == Keeper::Slot {
            self.ready.unlink(&mut self.slots, id.index());
        }
        self.free(id);
        Some((success, kept))
    }
}
