//! An error and its sources, in one line.

use std::error::Error;
use std::fmt;

/// Prints an error and its sources in one line, as `a: b: c`.
///
/// It is for logs. The `Display` of an error of these crates is one clause, and its sources have the
/// causes. `Debug`, which a `main` that returns an error prints, is this line with the variant's name
/// at the end.
///
/// ```
/// use verbs_core::Error;
/// use verbs_core::error::{EndpointError, ErrorChain};
///
/// let error = Error::Endpoint(EndpointError::NoGid);
/// assert_eq!(error.to_string(), "the peer's endpoint is not usable");
/// assert_eq!(
///     ErrorChain::new(&error).to_string(),
///     "the peer's endpoint is not usable: \
///      this side's port is addressed by GID and the peer gave none",
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'e> {
    error: &'e (dyn Error + 'static),
}

impl<'e> ErrorChain<'e> {
    /// The chain that begins with this error.
    #[must_use]
    pub const fn new(error: &'e (dyn Error + 'static)) -> Self {
        Self { error }
    }
}

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error, f)?;
        let mut source = self.error.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
