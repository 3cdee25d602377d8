//! This thread's `errno`.

use core::ffi::c_int;

/// Sets this thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address is this thread's own, and valid as long as the thread runs.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: `location` is this thread's `errno`, which nothing borrows.
    unsafe { location.write(errno) };
}
