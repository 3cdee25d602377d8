//! Slots of a queue whose requests have completed, and are not free yet (10.8).

/// Slots that wait for a completion to be polled, on a device that counts like that.
#[derive(Default)]
pub(super) struct Slots {
    /// Slots that are not free yet.
    pub(super) held: u32,
    /// Those of them that no completion stands for yet.
    unclaimed: u32,
}

impl Slots {
    /// A request has completed.
    pub(super) fn retire(&mut self) {
        self.held += 1;
        self.unclaimed += 1;
    }

    /// A completion stands for all before it.
    pub(super) const fn claim(&mut self) -> u32 {
        std::mem::replace(&mut self.unclaimed, 0)
    }

    /// A completion was polled.
    pub(super) const fn release(&mut self, slots: u32) {
        self.held = self.held.saturating_sub(slots);
    }
}
