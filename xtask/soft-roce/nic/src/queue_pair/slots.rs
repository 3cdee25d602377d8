//! Slots of a queue whose requests have completed, and are not free yet (10.8).

/// Slots that wait for a completion to be polled, on a device that counts like that.
#[derive(Debug)]
pub(super) struct Slots {
    is_counting: bool,
    /// Slots that are not free yet.
    pub(super) held: u32,
    /// Those of them that no completion stands for yet.
    unclaimed: u32,
}

impl Slots {
    pub(super) const fn new(is_counting: bool) -> Self {
        Self {
            is_counting,
            held: 0,
            unclaimed: 0,
        }
    }

    /// A request has completed.
    pub(super) fn retire(&mut self) {
        self.held += u32::from(self.is_counting);
        self.unclaimed += u32::from(self.is_counting);
    }

    /// A completion stands for all before it.
    pub(super) const fn claim(&mut self) -> u32 {
        std::mem::replace(&mut self.unclaimed, 0)
    }

    /// A completion was polled.
    pub(super) const fn release(&mut self, slots: u32) {
        self.held = self.held.saturating_sub(slots);
    }

    /// The queue was emptied.
    pub(super) const fn reset(&mut self) {
        self.held = 0;
        self.unclaimed = 0;
    }
}
