//! The one error of this library: what failed, why, what to do, and the exit code.

use std::fmt;
use std::process::ExitCode;

/// Asked for wrongly: an unknown option, a missing argument.
const USAGE: u8 = 2;

/// A failure, for the person who ran the program.
///
/// The message is what failed, why, and what to do, in that order.
#[derive(Debug)]
pub struct Error {
    message: String,
    code: u8,
}

impl Error {
    /// A failure that ends the program with exit code 1.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 1,
        }
    }

    /// A command line that asks for something that does not exist: exit code 2.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message).with_code(USAGE)
    }

    /// The same failure with another exit code, such as that of a child which failed.
    #[must_use]
    pub fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The exit code as a number.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Puts what was attempted in front of why it failed.
pub trait Context<T> {
    /// The failure becomes `WHAT: WHY`, where `what` is what was attempted.
    ///
    /// # Errors
    ///
    /// If `self` is one.
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T, Error>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T, Error> {
        self.map_err(|why| Error::new(format!("{}: {why}", what().into())))
    }
}

#[cfg(test)]
mod tests {
    use super::{Context as _, Error};

    #[test]
    fn context_is_what_failed_then_why() {
        let failed: Result<(), _> = Err("no such file");
        let error = failed.context(|| "cannot read x").unwrap_err();
        assert_eq!(error.to_string(), "cannot read x: no such file");
        assert_eq!(error.code, 1);
    }

    #[test]
    fn usage_errors_exit_with_2() {
        assert_eq!(Error::usage("unknown option").code, 2);
    }
}
