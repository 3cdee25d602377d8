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
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

pub(crate) const fn none(reason: &'static str) -> Refused {
    let errno = Errno::ENOENT;
    Refused { errno, reason }
}

pub(crate) const fn invalid(reason: &'static str) -> Refused {
    let errno = Errno::EINVAL;
    Refused { errno, reason }
}

pub(crate) const fn busy(reason: &'static str) -> Refused {
    let errno = Errno::EBUSY;
    Refused { errno, reason }
}

pub(crate) const fn full(reason: &'static str) -> Refused {
    let errno = Errno::ENOMEM;
    Refused { errno, reason }
}
