//! Failures: one line that says what went wrong and why, and an exit code.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;

/// Why a program ends: one line, the causes joined by `: `.
///
/// It takes any error by `?`, and is none itself.
#[derive(Debug)]
pub struct Failure {
    line: String,
}

impl Failure {
    /// A failure in the program's own words.
    #[must_use]
    pub fn new(line: impl Into<String>) -> Self {
        Self { line: line.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.line))
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut line = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            line = format!("{line}: {cause}");
            source = cause.source();
        }
        Self { line }
    }
}

/// Says what was being done when an error came.
pub trait Context<T> {
    /// Puts `doing` in front of the error.
    ///
    /// # Errors
    ///
    /// The error, as a [`Failure`].
    fn context<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> Context<T> for Result<T, E> {
    fn context<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T, Failure> {
        self.map_err(|error| {
            let failure: Failure = error.into();
            Failure::new(format!("{}: {}", doing(), failure.line))
        })
    }
}

/// Reads the options and runs `main`: 0 if it worked, 2 for options that make no sense, else 1; and
/// then one line on standard error.
pub fn run<O: Parser>(main: impl FnOnce(&O) -> Result<(), Failure>) -> ExitCode {
    let name = O::command().get_name().to_owned();
    let (code, failure) = match O::try_parse() {
        Ok(options) => match main(&options) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => (1, failure),
        },
        // `--help` comes as an error too.
        Err(help) if !help.use_stderr() => match help.print() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, error.into()),
        },
        Err(error) => (2, Failure::new(usage(&error.to_string()))),
    };
    // If standard error is closed too, the exit code is all that is left.
    drop(writeln!(io::stderr(), "{name}: {failure}"));
    ExitCode::from(code)
}

/// What clap says over several lines: the error without the usage.
fn usage(text: &str) -> String {
    let before_usage = text.split("\n\nUsage:").next().unwrap_or(text);
    let before_help = before_usage.split("\n\nFor more").next();
    let error = before_help.unwrap_or(before_usage);
    let error = error.strip_prefix("error: ").unwrap_or(error);
    format!("{}; --help shows the options", one_line(error))
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Cause(Option<io::Error>);

    impl fmt::Display for Cause {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("cannot\n  open it")
        }
    }

    impl Error for Cause {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0
                .as_ref()
                .map(|error| -> &(dyn Error + 'static) { error })
        }
    }

    #[test]
    fn all_causes_are_in_one_line() {
        let cause = Cause(Some(io::Error::other("no such thing")));
        let failure = Err::<(), _>(cause).context(|| "starting").unwrap_err();
        assert_eq!(
            failure.to_string(),
            "starting: cannot open it: no such thing"
        );
        let twice = Err::<(), _>(failure).context(|| "again").unwrap_err();
        assert!(twice.to_string().starts_with("again: starting: cannot"));
    }

    #[test]
    fn usage_errors_are_one_line() {
        #[derive(Parser)]
        struct Options {
            #[arg(long)]
            size: u32,
        }
        for words in [&["x"][..], &["x", "--size", "-"], &["x", "--siz", "1"]] {
            let error = Options::try_parse_from(words).err().unwrap().to_string();
            let line = usage(&error);
            assert!(!line.contains('\n') && line.contains("--size"), "{line}");
            assert!(
                !line.contains("Usage") && !line.starts_with("error"),
                "{line}"
            );
        }
        assert_eq!(Options::parse_from(["x", "--size", "1"]).size, 1);
    }
}
