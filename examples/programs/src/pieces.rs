//! Messages in pieces: what lies in one order in memory and goes over the wire in another.
//!
//! A slot of memory holds a message in pieces, the last one first. A list of elements in the
//! message's order puts it together again; a list in another order would not.

use verbs_core::Result;

/// How a message of `len` bytes is cut, in the order of memory.
fn lengths(len: usize, pieces: usize) -> impl Iterator<Item = usize> {
    let each = len / pieces.max(1);
    let rest = len - each * pieces.saturating_sub(1);
    std::iter::once(rest).chain(std::iter::repeat_n(each, pieces.saturating_sub(1)))
}

/// The elements of a slot, in the message's order; `split` is one of the elements' own.
///
/// # Errors
///
/// Those of `split`.
pub fn elements<E>(
    slot: E,
    len: usize,
    pieces: usize,
    split: impl Fn(E, usize) -> Result<(E, E)>,
) -> Result<Vec<E>> {
    let mut list = Vec::with_capacity(pieces);
    let mut rest = slot;
    for length in lengths(len, pieces).take(pieces.saturating_sub(1)) {
        let (piece, more) = split(rest, length)?;
        list.push(piece);
        rest = more;
    }
    list.push(rest);
    list.reverse();
    Ok(list)
}

/// A message as it lies in memory.
#[must_use]
pub fn in_memory(message: &[u8], pieces: usize) -> Vec<u8> {
    let mut memory = Vec::with_capacity(message.len());
    let mut rest = message;
    for length in lengths(message.len(), pieces) {
        let (before, piece) = rest.split_at(rest.len() - length);
        memory.extend_from_slice(piece);
        rest = before;
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_piece_lies_first() {
        assert_eq!(in_memory(b"aabbccc", 3), b"cccbbaa");
        assert_eq!(in_memory(b"x", 3), b"x");
        assert_eq!(in_memory(b"abc", 1), b"abc");
    }

    #[test]
    fn elements_put_the_message_together() {
        for len in 0..20_usize {
            for pieces in 1..5 {
                let message: Vec<u8> = (0_u8..).take(len).collect();
                let memory = in_memory(&message, pieces);
                let split = |slot: &[u8], at: usize| {
                    let (head, tail) = slot.split_at(at);
                    Ok((head.to_vec(), tail.to_vec()))
                };
                let split = |slot: Vec<u8>, at| split(&slot, at);
                let list = elements(memory, len, pieces, split).unwrap();
                assert_eq!(list.len(), pieces);
                assert_eq!(list.concat(), message);
            }
        }
    }
}
