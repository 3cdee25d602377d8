//! Numbers that nobody else has.

use std::hash::{BuildHasher as _, RandomState};

/// A number that cannot be guessed.
pub(crate) fn random() -> u64 {
    // Its hash has a key of its own, seeded by the system.
    RandomState::new().hash_one(0_u8)
}
