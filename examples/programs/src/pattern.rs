//! Patterns of bytes that differ from place to place and from run to run.

use std::fmt;

const WORD: usize = size_of::<u64>();

/// An infinite sequence of bytes, determined by a number.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    seed: u64,
}

/// The first byte that differs from the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    offset: usize,
    is: u8,
    should_be: u8,
}

impl Pattern {
    /// The sequence of this number.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The number for the message of this index.
    #[must_use]
    pub const fn immediate(self, index: u32) -> u32 {
        let [a, b, c, d, ..] = self.word(!(index as u64)).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The bytes from `offset` on, `len` of them.
    #[must_use]
    pub fn bytes(self, offset: usize, len: usize) -> Vec<u8> {
        let skip = offset % WORD;
        let mut bytes = Vec::with_capacity(skip + len + WORD);
        let mut index = (offset / WORD) as u64;
        // Filling by words is fast without optimisation, too.
        while bytes.len() < skip + len {
            bytes.extend_from_slice(&self.word(index).to_le_bytes());
            index += 1;
        }
        bytes.truncate(skip + len);
        drop(bytes.drain(..skip));
        bytes
    }

    /// Checks that `bytes` are the ones from `offset` on.
    ///
    /// # Errors
    ///
    /// The first that is not.
    pub fn check(self, offset: usize, bytes: &[u8]) -> Result<(), Mismatch> {
        check(offset, bytes, &self.bytes(offset, bytes.len()))
    }

    /// The bytes from `8 * index` on, 8 of them, as a number in little-endian order.
    // Splitmix64: the results of adjacent numbers are unrelated.
    #[must_use]
    pub const fn word(self, index: u64) -> u64 {
        let word = self
            .seed
            .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

/// Compares the bytes that begin at `offset` with the expected ones.
///
/// # Errors
///
/// The first that differs.
pub fn check(offset: usize, bytes: &[u8], right: &[u8]) -> Result<(), Mismatch> {
    if bytes == right {
        return Ok(());
    }
    let mut pairs = bytes.iter().zip(right).enumerate();
    match pairs.find(|(_, (is, should_be))| is != should_be) {
        Some((at, (is, should_be))) => Err(Mismatch {
            offset: offset + at,
            is: *is,
            should_be: *should_be,
        }),
        None => Ok(()),
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            is,
            should_be,
        } = self;
        write!(f, "byte {offset} is {is:#04x}, not {should_be:#04x}")
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_parts_of_the_same_sequence() {
        let pattern = Pattern::new(7);
        let all = pattern.bytes(0, 100);
        for start in 0..20 {
            for len in [0, 1, 7, 8, 9, 50] {
                assert_eq!(pattern.bytes(start, len), all[start..start + len]);
            }
        }
        assert_ne!(all, Pattern::new(8).bytes(0, 100));
        assert_ne!(pattern.immediate(0), pattern.immediate(1));
    }

    #[test]
    fn one_wrong_byte_is_found() {
        let pattern = Pattern::new(1);
        let mut bytes = pattern.bytes(10, 1000);
        pattern.check(10, &bytes).unwrap();
        bytes[500] ^= 0x40;
        let right = pattern.bytes(510, 1)[0];
        assert_eq!(
            pattern.check(10, &bytes),
            Err(Mismatch {
                offset: 510,
                is: right ^ 0x40,
                should_be: right,
            })
        );
        assert!(pattern.check(11, &bytes[..1]).is_err());
    }
}
