//! The `accept4(2)` of this program, which fails when a test wants it to.
#![expect(unsafe_code, reason = "defines a function of C's library")]

use std::ffi::c_int;
use std::sync::Mutex;

use libc::{sockaddr, socklen_t};

/// The errors of the next calls, the first last.
static ERRORS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

/// The next calls fail with these, in their order.
pub(crate) fn fail(errors: &[c_int]) {
    *ERRORS.lock().unwrap() = errors.iter().rev().copied().collect();
}

/// How many calls will still fail.
pub(crate) fn failures_left() -> usize {
    ERRORS.lock().unwrap().len()
}

/// Accepts a connection, or fails.
///
/// # Safety
///
/// As for accept4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    socket: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let error = ERRORS.lock().unwrap().pop();
    if let Some(error) = error {
        // SAFETY: `__errno_location` has no requirements.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: `errno` is this thread's own.
        unsafe { errno.write(error) };
        return -1;
    }
    // SAFETY: the caller upholds the contract of accept4(2), which the system call has too.
    let accepted = unsafe { libc::syscall(libc::SYS_accept4, socket, address, len, flags) };
    c_int::try_from(accepted).unwrap()
}
