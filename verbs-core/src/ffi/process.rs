//! The process that an object belongs to: the one that made it.
#![expect(
    unsafe_code,
    reason = "maps a page that the child of a fork gets empty"
)]

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The process that an object belongs to. The child of a fork is another one.
///
/// It is for layers above. Comparing two is no system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that this is called in.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        match page().load(Ordering::Relaxed) {
            0 => first(),
            number => Self(number),
        }
    }

    /// Whether this is called in that process.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        page().load(Ordering::Relaxed) == self.0 || self == Self::current()
    }
}

#[inline]
fn page() -> &'static AtomicU32 {
    // SAFETY: the pointer is of `NO_PAGE`, or of a page that is never unmapped.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

/// The number of this process, on a page that is zeroed in the child of a fork, however it forks
/// (`MADV_WIPEONFORK`).
///
/// It is not the process's id: that takes a system call, and a child in a new PID namespace may have the same.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NO_PAGE).cast_mut());

/// In the place of a page that is not mapped. It stays 0.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);

/// The last number that was given out, in this process or in one that it descends from.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The first call in a process.
#[cold]
fn first() -> Process {
    let page = page();
    if ptr::eq(page, &raw const NO_PAGE) {
        return map();
    }
    // Before it is on the page: a child that is forked here does not get the same number.
    let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    match page.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Process(number),
        Err(number) => Process(number),
    }
}

/// The first call of all, and each call where the kernel has no such pages (before Linux 4.14).
#[cold]
fn map() -> Process {
    let Some(page) = wiped_page() else {
        return Process(process::id());
    };
    // No lock: a child that is forked here would wait for its holder forever.
    let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
    match PAGE.compare_exchange((&raw const NO_PAGE).cast_mut(), page, success, failure) {
        Ok(_) => {}
        Err(_) => unmap(page.cast()),
    }
    Process::current()
}

/// A new page that the child of a fork gets empty.
fn wiped_page() -> Option<*mut AtomicU32> {
    if cfg!(miri) {
        // Miri has no such pages, and no forks.
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe { libc::mmap(ptr::null_mut(), LEN, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is new, and of this length.
    if unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } != 0 {
        unmap(page);
        return None;
    }
    Some(page.cast())
}

fn unmap(page: *mut libc::c_void) {
    // SAFETY: `page` was mapped by `wiped_page` with this length, and nothing else has its address.
    let _unmapped = unsafe { libc::munmap(page, LEN) };
}

/// The kernel makes it a whole page.
const LEN: usize = size_of::<AtomicU32>();

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs this in a child, and returns the number that it ends with.
    fn in_a_child(run: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child calls nothing that another thread may have locked.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork fails");
        if child == 0 {
            let status = run();
            // SAFETY: `_exit` ends the child, which has no use for the handlers of its parent.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's, and the status a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not fork")]
    fn a_child_is_another_process_and_so_is_its_child() {
        let parent = Process::current();
        assert!(parent.is_current());
        let status = in_a_child(|| {
            let child = Process::current();
            let is_other = !parent.is_current() && child.is_current();
            let of_grandchild =
                in_a_child(|| i32::from(!parent.is_current() && !child.is_current()));
            i32::from(is_other) + of_grandchild
        });
        assert_eq!(status, 2);
        assert!(parent.is_current());
    }
}
