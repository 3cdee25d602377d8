//! Standard output.

use std::env;
use std::fmt;
use std::io::{self, Write as _};
use std::time::Duration;

use crate::Failure;

/// Prints a line.
///
/// # Errors
///
/// Standard output is closed; `println!` would panic.
pub fn say(line: impl fmt::Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    written.map_err(|error| Failure::new(format!("cannot write to standard output: {error}")))
}

/// A measured result, in a format for programs.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    op: &'static str,
    bytes: u64,
    iters: u64,
    took: Duration,
    verified: bool,
}

impl Measured {
    /// `iters` operations `op` of `bytes` bytes each. `verified`: all bytes were checked.
    #[must_use]
    pub const fn new(
        op: &'static str,
        bytes: u64,
        iters: u64,
        took: Duration,
        verified: bool,
    ) -> Self {
        Self {
            op,
            bytes,
            iters,
            took,
            verified,
        }
    }

    /// How many operations were done in a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub fn rate(&self) -> f64 {
        self.iters as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// How many gigabytes were moved in a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub fn gigabytes(&self) -> f64 {
        self.rate() * self.bytes as f64 / 1e9
    }

    /// Prints it as a line of `name=value` if the environment has `VERBS_RESULT_LINES=1`.
    ///
    /// # Errors
    ///
    /// As [`say`].
    pub fn print(self) -> Result<(), Failure> {
        if env::var("VERBS_RESULT_LINES").is_ok_and(|value| value == "1") {
            say(self)
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op, bytes, iters, ..
        } = self;
        let usec = self.took.as_secs_f64() * 1e6;
        let verified = if self.verified { "yes" } else { "no" };
        write!(
            f,
            "RESULT op={op} bytes={bytes} iters={iters} usec={usec:.1} verified={verified}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_one_line_of_names_and_values() {
        let took = Duration::from_nanos(12_345_678);
        let line = Measured::new("write", 64, 1000, took, true).to_string();
        assert_eq!(
            line,
            "RESULT op=write bytes=64 iters=1000 usec=12345.7 verified=yes"
        );
        let line = Measured::new("read", 1, 1, took, false).to_string();
        assert!(line.ends_with("verified=no"));
    }

    #[test]
    fn rates_are_of_a_second() {
        let took = Duration::from_millis(500);
        let measured = Measured::new("write", 4_000_000, 1000, took, true);
        assert_eq!((measured.rate(), measured.gigabytes()), (2000.0, 8.0));
        let none = Measured::new("write", 1, 0, Duration::ZERO, true);
        assert_eq!((none.rate(), none.gigabytes()), (0.0, 0.0));
    }
}
