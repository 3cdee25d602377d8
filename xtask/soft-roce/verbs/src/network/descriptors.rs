//! The descriptors of completion channels and contexts, which a thread may sleep on while virtual time stands still.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

const BITS: usize = 64;

/// One bit for each of the first 65,536 descriptors; it is read in `poll`, where nothing may be locked.
static OPEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// A descriptor of this library was made.
pub(crate) fn opened(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A descriptor of this library is about to be closed.
pub(crate) fn closed(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether a descriptor is this library's.
pub(super) fn is_open(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OPEN.get(fd / BITS)?, 1 << (fd % BITS)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_descriptor_is_ours_until_it_is_closed() {
        super::opened(65_000);
        assert!(super::is_open(65_000));
        assert!(!super::is_open(64_999) && !super::is_open(-1) && !super::is_open(i32::MAX));
        super::closed(65_000);
        assert!(!super::is_open(65_000));
    }
}
