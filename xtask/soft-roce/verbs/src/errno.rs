//! C's errno.
#![expect(unsafe_code, reason = "errno is a variable of the C library")]

use log::Level;

use crate::later;

/// An errno.
pub(crate) type Errno = i32;

/// The errno that a card refuses with; its reason goes to the log.
pub(crate) fn refused(refused: soft_nic::Refused) -> Errno {
    later::line(Level::Debug, refused);
    refused.errno.raw()
}

/// Sets errno, and returns what the caller returns for a failure.
pub(crate) fn fail<T>(errno: Errno, answer: T) -> T {
    // SAFETY: no arguments.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own, and valid until it ends.
    unsafe { location.write(errno) };
    answer
}

/// The errno of the system call that this thread has just made.
pub(crate) fn last() -> Errno {
    // SAFETY: no arguments.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own, and valid until it ends.
    unsafe { location.read() }
}
