//! Why a verb is refused: C's errno, and the reason in words.

use thiserror::Error;

/// A verb was refused: nothing has changed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{errno:?}: {reason}")]
pub struct Refused {
    /// The errno that C's verb returns.
    pub errno: Errno,
    /// The reason in words.
    pub reason: &'static str,
}

/// The errnos that a card's verbs return, with Linux's numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Errno {
    /// No such object.
    ENOENT = 2,
    /// No room.
    ENOMEM = 12,
    /// Something else uses it.
    EBUSY = 16,
    /// An argument is wrong, here or now.
    EINVAL = 22,
    /// The card lacks it.
    EOPNOTSUPP = 95,
}

impl Errno {
    /// Linux's number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self as i32
    }
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

const fn refused(errno: Errno, reason: &'static str) -> Refused {
    Refused { errno, reason }
}

pub(crate) const fn none(reason: &'static str) -> Refused {
    refused(Errno::ENOENT, reason)
}

pub(crate) const fn invalid(reason: &'static str) -> Refused {
    refused(Errno::EINVAL, reason)
}

pub(crate) const fn busy(reason: &'static str) -> Refused {
    refused(Errno::EBUSY, reason)
}

pub(crate) const fn full(reason: &'static str) -> Refused {
    refused(Errno::ENOMEM, reason)
}
