//! An error together with the value that was not consumed.

use std::fmt;

use super::Error;

/// An error, and the value that was passed to the call that failed.
///
/// [`into_parts`](Self::into_parts) returns both. `?` keeps the error and drops the value, if the
/// function's error type converts from `Rejected`, as [`Error`] does.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// # let pd = verbs_core::Context::first_active()?.alloc_pd()?;
/// let region = match pd.reg_mr(vec![0_u8; 1 << 30]) {
///     Ok(region) => region,
///     Err(rejected) => {
///         eprintln!("registering a part of it instead: {}", rejected.error());
///         let mut buffer = rejected.into_given();
///         buffer.truncate(1 << 20);
///         pd.reg_mr(buffer)?
///     }
/// };
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Rejected<T, E = Error> {
    error: E,
    given: T,
}

impl<T, E> Rejected<T, E> {
    /// Puts an error and a value together, for layers that reject values themselves.
    #[inline]
    pub const fn new(error: E, given: T) -> Self {
        Self { error, given }
    }

    /// Why the value was rejected.
    #[inline]
    #[must_use]
    pub const fn error(&self) -> &E {
        &self.error
    }

    /// The value that was rejected.
    #[inline]
    #[must_use]
    pub fn into_given(self) -> T {
        self.given
    }

    /// The error, without the value.
    #[inline]
    #[must_use]
    pub fn into_error(self) -> E {
        self.error
    }

    /// The error and the value.
    #[inline]
    #[must_use]
    pub fn into_parts(self) -> (E, T) {
        (self.error, self.given)
    }
}

impl<T, E: fmt::Debug> fmt::Debug for Rejected<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: fmt::Display> fmt::Display for Rejected<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: std::error::Error> std::error::Error for Rejected<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_and_error_are_returned() {
        let rejected = Rejected::new(Error::RemoteAccess, vec![1, 2]);
        assert_eq!(rejected.to_string(), Error::RemoteAccess.to_string());
        let (error, given) = rejected.into_parts();
        assert!(matches!(error, Error::RemoteAccess));
        assert_eq!(given, [1, 2]);
    }
}
