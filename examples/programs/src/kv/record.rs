//! Values as they lie in the server's memory, where clients read them while they may change.
//!
//! ```text
//! version (8) │ checksum (8) │ key's length (4) │ value's length (4) │ key │ value
//! ```
//!
//! The version is odd while the server writes, and grows with each change. A device reads a record in
//! no particular order and not in one moment, so a reader trusts a record only if its version is
//! even and the checksum, which is of the version too, is right.

use super::protocol::MAX_KEY;

const WORD: usize = 8;
/// Where the part begins that the version guards.
pub const CHECKSUM: usize = WORD;
const LENGTHS: usize = 2 * WORD;
const HEADER: usize = 3 * WORD;

/// A record as a reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a reader has an answer to each")]
pub enum Seen<'a> {
    /// The value.
    Value(&'a [u8]),
    /// It was read while it changed: read again.
    Torn,
    /// It is whole, and of another key, or of none: ask again where the value is.
    Other,
}

/// The length of a slot for values of at most `max_value` bytes.
#[must_use]
pub const fn slot_len(max_value: usize) -> usize {
    (HEADER + MAX_KEY + max_value).next_multiple_of(WORD)
}

/// The record from its checksum on; no key is an empty slot.
#[must_use]
pub fn guarded(version: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let rest = [&len(key)[..], &len(value), key, value].concat();
    [&checksum(version, &rest).to_be_bytes()[..], &rest].concat()
}

/// Looks at what was read of a slot, for this key.
#[must_use]
pub fn look<'a>(slot: &'a [u8], key: &[u8]) -> Seen<'a> {
    read(slot).map_or(Seen::Torn, |(is, value)| {
        if is == key {
            Seen::Value(value)
        } else {
            Seen::Other
        }
    })
}

/// Key and value, if they are whole.
fn read(slot: &[u8]) -> Option<(&[u8], &[u8])> {
    // The version is the server's own number, in its byte order: it is an atomic there.
    let version = u64::from_le_bytes(*slot.first_chunk()?);
    let should_be = u64::from_be_bytes(*slot.get(CHECKSUM..)?.first_chunk()?);
    let length = |at: usize| {
        let bytes = slot.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_be_bytes(*bytes)).ok()
    };
    let (key, value) = (length(LENGTHS)?, length(LENGTHS + 4)?);
    let end = HEADER.checked_add(key)?.checked_add(value)?;
    let is = checksum(version, slot.get(LENGTHS..end)?);
    if version % 2 == 1 || is != should_be {
        return None;
    }
    slot.get(HEADER..end)?.split_at_checked(key)
}

/// FNV-1a: quick, and enough to detect a torn record.
fn checksum(version: u64, bytes: &[u8]) -> u64 {
    let all = version.to_be_bytes();
    let all = all.iter().chain(bytes);
    all.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(version: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut slot = vec![0xee; slot_len(64)];
        let bytes = [&version.to_le_bytes()[..], &guarded(version, key, value)].concat();
        slot[..bytes.len()].copy_from_slice(&bytes);
        slot
    }

    #[test]
    fn a_whole_record_is_seen() {
        assert_eq!(look(&slot(2, b"k", b"value"), b"k"), Seen::Value(b"value"));
        assert_eq!(look(&slot(2, b"k", b""), b"k"), Seen::Value(b""));
        assert_eq!(look(&slot(2, b"k", b"value"), b"kv"), Seen::Other);
        assert_eq!(look(&slot(4, b"", b""), b"k"), Seen::Other);
    }

    #[test]
    fn every_mixture_of_two_records_is_torn() {
        let (old, new) = (slot(2, b"k", &[1; 60]), slot(4, b"k", &[2; 60]));
        for word in 1..old.len() / WORD {
            let at = word * WORD;
            let end = HEADER + 1 + 60;
            if at < end {
                let mixed = [&old[..at], &new[at..]].concat();
                assert_eq!(look(&mixed, b"k"), Seen::Torn, "new from {at}");
                let mixed = [&new[..at], &old[at..]].concat();
                assert_eq!(look(&mixed, b"k"), Seen::Torn, "old from {at}");
            }
        }
    }

    #[test]
    fn a_record_that_is_being_written_is_torn() {
        assert_eq!(look(&slot(3, b"k", b"value"), b"k"), Seen::Torn);
    }

    #[test]
    fn record_with_a_wrong_length_is_torn() {
        for (at, byte) in [(LENGTHS, 0xff), (LENGTHS + 4, 0xff), (LENGTHS + 3, 200)] {
            let mut slot = slot(2, b"k", b"value");
            slot[at] = byte;
            assert_eq!(look(&slot, b"k"), Seen::Torn);
        }
        for len in 0..HEADER {
            assert_eq!(look(&slot(2, b"k", b"value")[..len], b"k"), Seen::Torn);
        }
    }
}
