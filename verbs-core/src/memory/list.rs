//! Lists of elements, as C has them.
#![expect(unsafe_code, reason = "sees elements as C does")]

use std::ptr;

use verbs_sys::ibv_sge;

use super::element::Element;

/// Moves the empty elements of a list to its end; returns where the list begins, and how many
/// elements are not empty. Drivers do not agree on what an empty element means (some encode 0 as
/// 2³¹), so they are never posted.
#[inline]
pub(crate) fn compact<E: Element>(list: &mut [E]) -> (*mut ibv_sge, usize) {
    let len = list.len();
    let first = ptr::from_mut(list).cast::<ibv_sge>();
    // SAFETY: an `Element` is laid out as an `ibv_sge`, and `list` stays borrowed.
    let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(first, len) };
    let count = match list {
        // The most common list, without a loop: a caller's loop over requests is optimised as a
        // whole then, whatever else its program does (16 sends in a chain: 423 instructions, not
        // 436).
        [only] => usize::from(only.length != 0),
        list if list.iter().any(|sge| sge.length == 0) => move_empty(list),
        _ => len,
    };
    (first, count)
}

#[cold]
fn move_empty(list: &mut [ibv_sge]) -> usize {
    let mut full = 0;
    for index in 0..list.len() {
        if list.get(index).is_some_and(|sge| sge.length != 0) {
            list.swap(full, index);
            full += 1;
        }
    }
    full
}

/// An element as C has it.
#[inline]
pub(crate) fn as_sge<E: Element>(element: &E) -> ibv_sge {
    // SAFETY: an `Element` is laid out as an `ibv_sge`.
    unsafe { ptr::from_ref(element).cast::<ibv_sge>().read() }
}

/// The bytes in a compacted list.
///
/// # Safety
///
/// `first` and `count` came from `compact`, and the list is still borrowed.
#[inline]
pub(crate) unsafe fn total_len(first: *const ibv_sge, count: usize) -> u64 {
    // SAFETY: the caller has them from `compact`.
    let list = unsafe { &*ptr::slice_from_raw_parts(first, count) };
    list.iter().map(|sge| u64::from(sge.length)).sum()
}

#[cfg(test)]
mod tests {
    use super::{compact, total_len};
    use crate::memory::Sge;

    #[test]
    fn empty_elements_are_left_out() {
        let of = |length| Sge::new(0x1000, length, 1);
        let mut list = [of(0), of(3), of(0), of(0), of(5), of(0)];
        let (_, count) = compact(&mut list);
        assert_eq!(count, 2);
        assert_eq!((list[0].length(), list[1].length()), (3, 5));
        let (first, count) = compact(&mut list[..2]);
        assert_eq!(count, 2);
        // SAFETY: from `compact`, and `list` is alive.
        assert_eq!(unsafe { total_len(first, count) }, 8);
        assert_eq!(compact::<Sge>(&mut []).1, 0);
        assert_eq!([3, 0].map(|length| compact(&mut [of(length)]).1), [1, 0]);
    }
}
