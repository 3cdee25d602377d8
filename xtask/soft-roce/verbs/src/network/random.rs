//! Numbers from a seed: `SplitMix64`.

/// A generator of numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        usize::try_from(self.number() % end).unwrap_or(0)
    }

    /// Whether something of this probability happens.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        let [a, b, c, d, ..] = self.number().to_le_bytes();
        f64::from(u32::from_le_bytes([a, b, c, d])) < probability * 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn probability_zero_never_happens_and_one_always_does() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| !random.happens(0.0) && random.happens(1.0)));
        let times = (0..10_000).filter(|_| random.happens(0.1)).count();
        assert!((800..1200).contains(&times), "{times}");
    }
}
