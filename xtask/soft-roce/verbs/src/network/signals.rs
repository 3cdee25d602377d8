//! Signals, which are for the program's threads.
#![expect(unsafe_code, reason = "the C library's sets of signals")]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs a function with all signals blocked on this thread, as they are on threads that it starts; but for those of faults,
/// which are the thread's own.
pub(super) fn blocked<T>(run: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: it writes to a local.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for fault in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: `sigfillset` has written the set.
        unsafe { libc::sigdelset(all.as_mut_ptr(), fault) };
    }
    // SAFETY: `sigfillset` has written the one set, and there is room for the other.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
    let result = run();
    // SAFETY: the call before has written it; it does not fail with an operation that there is.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}
