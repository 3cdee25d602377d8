//! Parts of memory: what a range of bytes comes to.

use std::ops::{Bound, RangeBounds};

use crate::error::{Error, Result};

/// Where a range of something with this length starts and ends, which may be past its end.
fn bounds(len: u64, range: impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    (start, end)
}

/// The same of items in memory.
#[inline]
pub fn indices(len: usize, range: impl RangeBounds<usize>) -> (usize, usize) {
    let wide = |at: &usize| *at as u64;
    let range = (range.start_bound().map(wide), range.end_bound().map(wide));
    let (start, end) = bounds(len as u64, range);
    let narrow = |at| usize::try_from(at).unwrap_or(usize::MAX);
    (narrow(start), narrow(end))
}

/// Where a range within `len` bytes starts and ends.
pub(super) fn within(len: u64, range: impl RangeBounds<u64>) -> Result<(u64, u64)> {
    let (start, end) = bounds(len, range);
    if start > end || end > len {
        return Err(Error::OutOfBounds { start, end, len });
    }
    Ok((start, end))
}

/// Start and length of an element in bytes: a range of items of `size` bytes each, within `len`
/// bytes of items.
pub(super) fn part_of_items(
    len: usize,
    size: usize,
    range: impl RangeBounds<usize>,
) -> Result<(usize, u32)> {
    // Items without a size have no bytes.
    let (start, end) = indices(len.checked_div(size).unwrap_or(0), range);
    part(len, start.saturating_mul(size)..end.saturating_mul(size))
}

/// Start and length of an element: a range within `len` bytes.
pub(super) fn part(len: usize, range: impl RangeBounds<usize>) -> Result<(usize, u32)> {
    let (start, end) = indices(len, range);
    let (start, end) = within(len as u64, start as u64..end as u64)?;
    match (usize::try_from(start), u32::try_from(end - start)) {
        (Ok(start), Ok(length)) => Ok((start, length)),
        _ => Err(Error::Limit {
            what: "element length",
            asked: end - start,
            max: Some(u64::from(u32::MAX)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_items_are_bounded_in_bytes() {
        assert_eq!(part_of_items(32, 8, ..).unwrap(), (0, 32));
        assert_eq!(part_of_items(32, 8, 1..3).unwrap(), (8, 16));
        assert_eq!(part_of_items(32, 8, 3..=3).unwrap(), (24, 8));
        assert_eq!(part_of_items(32, 8, 4..).unwrap(), (32, 0));
        assert_eq!(
            part_of_items(32, 8, 4..5).unwrap_err().to_string(),
            "bytes 32..40 are not within the region's 32 bytes"
        );
        assert!(part_of_items(32, 8, ..=usize::MAX).is_err());
        assert!(part_of_items(32, 8, 5..).is_err());
    }

    #[test]
    fn parts_are_bounded() {
        assert_eq!(part(10, ..).unwrap(), (0, 10));
        assert_eq!(part(10, 3..=9).unwrap(), (3, 7));
        assert_eq!(part(10, 10..).unwrap(), (10, 0));
        assert_eq!(
            part(10, 4..11).unwrap_err().to_string(),
            "bytes 4..11 are not within the region's 10 bytes"
        );
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
        let reversed = part(10, 5..4);
        assert!(reversed.is_err());
        assert!(part(10, ..=usize::MAX).is_err());
        assert!(part(10, (Bound::Excluded(usize::MAX), Bound::Unbounded)).is_err());
    }

    #[test]
    fn an_element_holds_less_than_4_gib() {
        let five = 5 << 30;
        assert!(part(five, ..).is_err());
        assert_eq!(part(five, (4 << 30)..).unwrap(), (4 << 30, 1 << 30));
        assert!(part(five, ..(4 << 30)).is_err());
        assert_eq!(part(five, ..(4 << 30) - 1).unwrap(), (0, u32::MAX));
    }
}
