//! Chances, by numbers from a seed.

use soft_nic::Random;

/// A number below `end`, which is not 0.
pub(crate) fn below(random: &mut Random, end: usize) -> usize {
    let end = u64::try_from(end).unwrap_or(u64::MAX);
    usize::try_from(random.number() % end).unwrap_or(0)
}

/// Whether something of this probability happens.
pub(super) fn happens(random: &mut Random, probability: f64) -> bool {
    if probability <= 0.0 {
        return false;
    }
    let [a, b, c, d, ..] = random.number().to_le_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) < probability * 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::{Random, happens};

    #[test]
    fn probability_zero_never_happens_and_one_always_does() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| !happens(&mut random, 0.0) && happens(&mut random, 1.0)));
        let times = (0..10_000).filter(|_| happens(&mut random, 0.1)).count();
        assert!((800..1200).contains(&times), "{times}");
    }
}
