//! What was refused, and what was given with it.

use std::fmt;

use crate::Error;

/// An operation that was refused, and what it was given: nothing is lost.
///
/// `?` in a function that returns [`Result`] keeps the [`Error`] and drops the rest.
pub struct Refused<T> {
    inner: Box<(Error, T)>,
}

impl<T> Refused<T> {
    pub(crate) fn new(error: Error, given: T) -> Self {
        Self {
            inner: Box::new((error, given)),
        }
    }

    /// Why it was refused.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.inner.0
    }

    /// What was given, back.
    #[must_use]
    pub fn into_given(self) -> T {
        self.inner.1
    }

    /// Both.
    #[must_use]
    pub fn into_parts(self) -> (Error, T) {
        *self.inner
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refused").field(&self.inner.0).finish()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error().source()
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.inner.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_gives_back() {
        let refused = Refused::new(Error::RemoteAccess, vec![1, 2]);
        assert_eq!(refused.to_string(), Error::RemoteAccess.to_string());
        assert_eq!(refused.into_given(), [1, 2]);
    }
}
