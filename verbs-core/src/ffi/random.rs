//! Numbers that cannot be guessed.
#![expect(unsafe_code, reason = "calls getrandom(2)")]

use std::hash::{BuildHasher as _, RandomState};

/// A number that cannot be guessed from earlier ones.
///
/// It comes from the C library's `getrandom`, so that a simulated network which stands in for that function decides
/// all numbers. The layers above use it, too; programs have better ways.
#[must_use]
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the function writes at most this number of bytes to the local array.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(filled) {
        Ok(filled) if filled == bytes.len() => u64::from_ne_bytes(bytes),
        // A system that has no such call: each `RandomState` has keys of its own, from another source.
        _ => RandomState::new().hash_one(0_u8),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_number_comes_twice() {
        let numbers: std::collections::HashSet<u64> = (0..100).map(|_| super::random()).collect();
        assert_eq!(numbers.len(), 100);
    }
}
