//! Packet sequence numbers: 24 bits, which wrap.

/// A packet sequence number (PSN): 24 bits, which wrap (9.7.1).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// The number in the lower 24 bits of `number`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & Self::MASK)
    }

    /// The 24 bits.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the packet that is `packets` later.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number of the packet before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// How many packets this one is after `other`; negative if it is before.
    ///
    /// Numbers less than 2<sup>23</sup> apart are ordered, which is why at most that many packets may be
    /// unacknowledged.
    #[must_use]
    pub const fn since(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::Psn;

    #[test]
    fn numbers_wrap_and_stay_ordered() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), -3);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x1234_5678).get(), 0x34_5678);
    }
}
