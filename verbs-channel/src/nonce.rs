//! Numbers that nobody else has.

use std::hash::{BuildHasher as _, RandomState};
use std::process;

/// A number that cannot be guessed.
pub(crate) fn random() -> u64 {
    // Its hash has a key of its own, seeded by the system; after a fork the two processes have the same.
    RandomState::new().hash_one(process::id())
}
