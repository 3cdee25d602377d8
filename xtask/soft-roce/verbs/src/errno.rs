//! C's errno.
#![expect(unsafe_code, reason = "errno is a variable of the C library")]

use std::ffi::c_int;
use std::mem::MaybeUninit;

use log::Level;

use crate::later;

/// An errno.
pub(crate) type Errno = i32;

/// The errno that a card refuses with; its reason goes to the log.
pub(crate) fn refused(refused: soft_nic::Refused) -> Errno {
    later::line(Level::Debug, refused);
    refused.errno as Errno
}

/// Sets errno, and returns what the caller returns for a failure.
pub(crate) fn fail<T>(errno: Errno, answer: T) -> T {
    // SAFETY: no arguments.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own, and valid until it ends.
    unsafe { location.write(errno) };
    answer
}

/// The answer of most verbs: 0, or an errno.
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    result.err().unwrap_or(0)
}

/// The answer of most functions of librdmacm, and of some verbs: 0, or -1 with errno set.
pub(crate) fn answer(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| fail(errno, -1), |()| 0)
}

/// Writes an answer to where the caller wants it.
pub(crate) fn put<T>(to: &mut MaybeUninit<T>, found: Result<T, Errno>) -> Result<(), Errno> {
    to.write(found?);
    Ok(())
}

/// A function of this library's that has answered 0, or -1 with errno set.
pub(crate) fn checked(answer: c_int) -> Result<(), Errno> {
    match answer {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// The errno of the system call that this thread has just made.
pub(crate) fn last() -> Errno {
    // SAFETY: no arguments.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own, and valid until it ends.
    unsafe { location.read() }
}
