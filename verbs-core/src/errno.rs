//! The errno: of this thread, of a failed post, and as an error.
#![expect(unsafe_code, reason = "writes to the thread's errno")]
#![expect(
    clippy::disallowed_methods,
    reason = "the one place that turns C's errno into an error"
)]

use std::ffi::c_int;
use std::io;

/// The errno in a failed post's return value; `None` where the driver gave none.
pub(crate) fn post_errno(ret: c_int) -> Option<c_int> {
    (ret != 0).then(|| ret.saturating_abs())
}

/// The thread's `errno`.
pub(crate) fn last_errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Sets the thread's `errno` to 0.
pub(crate) fn clear_errno() {
    // SAFETY: the call has no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's own, for as long as the thread runs.
    unsafe { *errno = 0 };
}

/// An errno as an [`io::Error`]; 0 is from a driver that failed without a reason.
pub(crate) fn io_error(errno: c_int) -> io::Error {
    match errno {
        0 => io::Error::other("the driver gave no reason (errno 0)"),
        errno => io::Error::from_raw_os_error(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn post_sign_is_dropped() {
        assert_eq!(post_errno(0), None);
        assert_eq!(post_errno(libc::ENOMEM), Some(libc::ENOMEM));
        assert_eq!(post_errno(-libc::ENOMEM), Some(libc::ENOMEM));
    }

    #[test]
    fn errno_zero_has_a_text() {
        assert!(io_error(0).to_string().contains("no reason"));
    }
}
