//! Registered memory is reached through the kernel, which notices what is not mapped any more.
#![expect(unsafe_code, reason = "asks the kernel to copy")]

use std::ptr;
use std::sync::LazyLock;

use crate::errno::last;

/// Whether the kernel lets a process copy its own memory; some sandboxes do not.
static IS_ALLOWED: LazyLock<bool> = LazyLock::new(|| {
    let (from, mut to) = (7_u8, 0_u8);
    // SAFETY: both are bytes of this frame.
    let is_copied = unsafe { by_kernel(&raw mut to, &raw const from, 1) };
    is_copied && to == from
});

/// Copies `length` bytes; false if some are not mapped.
///
/// # Safety
///
/// Each side is memory of the card's, or within what a program has registered and promised to leave to the
/// card. Where the kernel is not allowed to copy, the bytes are mapped.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> bool {
    if *IS_ALLOWED {
        // SAFETY: the kernel checks both ranges; nothing else uses them, as the caller promises.
        return unsafe { by_kernel(to, from, length) };
    }
    // SAFETY: the bytes are mapped, as the caller promises, and one side is the card's own.
    unsafe { ptr::copy(from, to, length) };
    true
}

/// Copies `length` bytes by a system call; false if some are not mapped.
///
/// # Safety
///
/// Nothing has a reference to the bytes at `to`.
unsafe fn by_kernel(to: *mut u8, from: *const u8, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    let local = libc::iovec {
        iov_base: to.cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: from.cast_mut().cast(),
        iov_len: length,
    };
    // SAFETY: no pointers.
    let process = unsafe { libc::getpid() };
    // SAFETY: one element on each side; the kernel checks what they name, and the caller promises that the
    // bytes at `to` are nobody's.
    let copied =
        unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(copied).is_ok_and(|copied| copied == length)
}

/// Whether all bytes are mapped now.
pub(crate) fn is_mapped(address: usize, length: usize) -> bool {
    const PAGES: usize = 256;
    // SAFETY: no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut start = address - address % page;
    let Some(end) = address.checked_add(length) else {
        return false;
    };
    let mut in_core = [0; PAGES];
    while start < end {
        let length = (end - start).min(PAGES * page);
        let pages = ptr::without_provenance_mut(start);
        // SAFETY: the kernel looks at the addresses only, and there is a byte for each page.
        let found = unsafe { libc::mincore(pages, length, in_core.as_mut_ptr()) };
        if found != 0 && last() == libc::ENOMEM {
            return false;
        }
        start += length;
    }
    true
}
