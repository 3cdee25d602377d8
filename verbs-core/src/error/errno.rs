//! The errno: of this thread, of a failed post, and as an error, with its cause if that is known.
#![expect(unsafe_code, reason = "writes to the thread's errno")]
#![expect(
    clippy::disallowed_methods,
    reason = "the one place that turns C's errno into an error"
)]

use std::ffi::c_int;
use std::{fmt, io};

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
    // SAFETY: `errno` is this thread's own, and valid as long as the thread runs.
    unsafe { *errno = 0 };
}

/// An errno as an [`io::Error`]; 0 is from a driver that failed without a reason.
pub(crate) fn io_error(errno: c_int) -> io::Error {
    match errno {
        0 => io::Error::other("the driver gave no reason (errno 0)"),
        // Linux's `include/linux/errno.h`: those have no text, and are no business of programs.
        512..=531 => {
            let cause = "a number of the kernel's own that its driver let through: see `dmesg`, and look for a \
                         newer kernel or driver";
            explained(
                io::Error::from_raw_os_error(errno),
                Cause::Hint(cause.into()),
            )
        }
        errno => io::Error::from_raw_os_error(errno),
    }
}

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A fact, which belongs to the text of the error itself.
    Found(String),
    /// A possible meaning of the errno, and what to do: it follows the errno's text.
    Hint(String),
}

/// An errno and its cause.
#[derive(Debug)]
struct Explained {
    errno: io::Error,
    cause: Cause,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Found(_) => fmt::Display::fmt(&self.errno, f),
            Cause::Hint(hint) => write!(f, "{}: {hint}", self.errno),
        }
    }
}

impl std::error::Error for Explained {}

/// An errno with its cause. Its number is [`number`], no longer `raw_os_error`.
pub(crate) fn explained(errno: io::Error, cause: Cause) -> io::Error {
    io::Error::new(errno.kind(), Explained { errno, cause })
}

/// The errno of an error.
pub(crate) fn number(error: &io::Error) -> Option<c_int> {
    let errno = get(error).map_or(error, |explained| &explained.errno);
    errno.raw_os_error()
}

/// The cause that was found for an error.
pub(crate) fn found(error: &io::Error) -> Option<&str> {
    match &get(error)?.cause {
        Cause::Found(found) => Some(found),
        Cause::Hint(_) => None,
    }
}

fn get(error: &io::Error) -> Option<&Explained> {
    error.get_ref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_zero_has_a_text() {
        assert!(io_error(0).to_string().contains("no reason"));
    }

    #[test]
    fn number_survives_an_explanation() {
        for cause in [Cause::Found("why".into()), Cause::Hint("why".into())] {
            let hint = matches!(cause, Cause::Hint(_));
            let error = explained(io_error(libc::EFAULT), cause);
            assert_eq!(number(&error), Some(libc::EFAULT));
            assert_eq!(found(&error).is_some(), !hint);
            assert_eq!(error.to_string().ends_with(": why"), hint, "{error}");
        }
        for errno in [512, 517, 531] {
            let error = io_error(errno);
            assert_eq!(number(&error), Some(errno));
            assert!(
                error.to_string().contains("newer kernel or driver"),
                "{error}"
            );
        }
    }
}
