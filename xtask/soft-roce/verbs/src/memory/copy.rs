//! Registered memory is reached through the kernel, which notices what is not mapped any more.
//!
//! The bytes go by way of a file in memory: to write what a program has to the file, or to read the file to where the
//! program wants it, fails with `EFAULT` where the program has nothing mapped. That is three times as fast as
//! `process_vm_readv` for a small message, and works in sandboxes that forbid a process to look at another.
//!
//! Under Miri the bytes are copied directly, through the pointers that were registered: it sees each access.
#![expect(unsafe_code, reason = "asks the kernel to copy")]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::errno::last;

/// Bytes of the file; a packet has fewer.
const ROOM: usize = 1 << 16;

/// The file, and where it is mapped.
struct Window {
    file: OwnedFd,
    mapped: *mut u8,
}

// SAFETY: the mapping is the window's own, and any thread may use it.
unsafe impl Send for Window {}

static WINDOW: Mutex<Option<Window>> = Mutex::new(None);

/// Whether this process has the window from its parent, which goes on to use it.
static IS_INHERITED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    IS_INHERITED.store(true, Ordering::Relaxed);
}

impl Window {
    fn open() -> Option<Self> {
        if cfg!(miri) {
            return None;
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the function only stores to a static, as it may in a child.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        // SAFETY: the name ends with a zero.
        let file = unsafe { libc::memfd_create(c"soft-verbs".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: the system has just opened it, for this call.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let length = libc::off_t::try_from(ROOM).ok()?;
        // SAFETY: no pointers.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (none, fd) = (ptr::null_mut(), file.as_raw_fd());
        // SAFETY: the kernel chooses the place.
        let mapped = unsafe { libc::mmap(none, ROOM, access, libc::MAP_SHARED, fd, 0) };
        (mapped != libc::MAP_FAILED).then(|| Self {
            file,
            mapped: mapped.cast(),
        })
    }

    /// Copies at most `ROOM` bytes out of memory that may not be mapped.
    ///
    /// # Safety
    ///
    /// There is room for `length` bytes at `to`.
    unsafe fn read(&self, to: *mut u8, from: *const u8, length: usize) -> bool {
        let file = self.file.as_raw_fd();
        // SAFETY: the kernel checks the range.
        let copied = unsafe { libc::pwrite(file, from.cast(), length, 0) };
        let is_mapped = usize::try_from(copied) == Ok(length);
        if is_mapped {
            // SAFETY: the window has `ROOM` bytes, and the caller room for this many.
            unsafe { ptr::copy_nonoverlapping(self.mapped, to, length) };
        }
        is_mapped
    }

    /// Copies at most `ROOM` bytes into memory that may not be mapped.
    ///
    /// # Safety
    ///
    /// There are `length` bytes at `from`, and nothing has a reference to those at `to`.
    unsafe fn write(&self, to: *mut u8, from: *const u8, length: usize) -> bool {
        // SAFETY: the window has `ROOM` bytes, and the caller this many.
        unsafe { ptr::copy_nonoverlapping(from, self.mapped, length) };
        let file = self.file.as_raw_fd();
        // SAFETY: the kernel checks the range, to whose bytes nothing has a reference, as the caller promises.
        let copied = unsafe { libc::pread(file, to.cast(), length, 0) };
        usize::try_from(copied) == Ok(length)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is the window's own, and ends with it.
        unsafe { libc::munmap(self.mapped.cast(), ROOM) };
    }
}

/// Copies by the window, piece by piece. Where there can be none, memory is copied directly, and has to be mapped.
///
/// # Safety
///
/// One side is memory of the card's, the other within what a program has registered and promised to leave to
/// the card; `piece` is told which.
unsafe fn by_window(
    to: *mut u8,
    from: *const u8,
    length: usize,
    piece: unsafe fn(&Window, *mut u8, *const u8, usize) -> bool,
) -> bool {
    let mut window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
    if IS_INHERITED.swap(false, Ordering::Relaxed) {
        *window = None;
    }
    if window.is_none() {
        *window = Window::open();
    }
    let Some(window) = &*window else {
        // SAFETY: the bytes are mapped, as the module's page asks for, and one side is the card's own.
        unsafe { ptr::copy(from, to, length) };
        return true;
    };
    (0..length).step_by(ROOM).all(|done| {
        let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
        // SAFETY: the promises of this function's caller are for all pieces.
        unsafe { piece(window, to, from, (length - done).min(ROOM)) }
    })
}

/// Copies out of registered memory; false if some is not mapped.
///
/// # Safety
///
/// There is room for `length` bytes at `to`, and `from` is within what a program has registered and promised to
/// leave to the card.
pub(super) unsafe fn read(to: *mut u8, from: *const u8, length: usize) -> bool {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { by_window(to, from, length, Window::read) }
}

/// Copies into registered memory; false if some is not mapped.
///
/// # Safety
///
/// There are `length` bytes at `from`, and `to` is within what a program has registered and promised to leave
/// to the card.
pub(super) unsafe fn write(to: *mut u8, from: *const u8, length: usize) -> bool {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { by_window(to, from, length, Window::write) }
}

/// Whether all bytes are mapped now.
pub(crate) fn is_mapped(address: usize, length: usize) -> bool {
    const PAGES: usize = 256;
    if cfg!(miri) {
        return true;
    }
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
