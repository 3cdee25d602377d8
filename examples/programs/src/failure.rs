//! Failures: one line with the error and its cause, and an exit code.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, Parser};

use crate::logger::log_to_stderr;

/// Why a program ends: one line, the causes joined by `: `.
///
/// Any error converts to it by `?`. It does not implement `Error` itself.
#[derive(Debug)]
pub struct Failure {
    line: String,
    is_misuse: bool,
}

impl Failure {
    /// A failure with this text.
    #[must_use]
    pub fn new(line: impl Into<String>) -> Self {
        Self {
            line: line.into(),
            is_misuse: false,
        }
    }

    /// The options make no sense together.
    #[must_use]
    pub fn misuse(line: impl Into<String>) -> Self {
        Self {
            line: format!("{}; --help shows the options", line.into()),
            is_misuse: true,
        }
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
        Self::new(line)
    }
}

/// Adds to an error what the program was doing.
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
            let Failure { line, is_misuse } = error.into();
            let line = format!("{}: {line}", doing());
            Failure { line, is_misuse }
        })
    }
}

/// Reads the options and runs `main`: 0 if it worked, 2 for options that make no sense, else 1; and
/// then one line on standard error. The libraries' log goes there, too.
pub fn run<O: Parser>(main: impl FnOnce(&O) -> Result<(), Failure>) -> ExitCode {
    log_to_stderr();
    let command = with_negative_numbers(O::command());
    let name = command.get_name().to_owned();
    let parsed = |matches: ArgMatches| O::from_arg_matches(&matches);
    let done = match command.try_get_matches().and_then(parsed) {
        Ok(options) => main(&options),
        // `--help` comes as an error too.
        Err(help) if !help.use_stderr() => help.print().map_err(Failure::from),
        Err(error) => Err(Failure::misuse(usage(&error.to_string()))),
    };
    let Err(failure) = done else {
        return ExitCode::SUCCESS;
    };
    // If standard error is closed too, the exit code is all that is left.
    drop(writeln!(io::stderr(), "{name}: {failure}"));
    ExitCode::from(if failure.is_misuse { 2 } else { 1 })
}

/// Takes `-5` for an option's value, which is then rejected as too small, and not for an option.
fn with_negative_numbers(command: Command) -> Command {
    let takes_any = |arg: Arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(is_option)
    };
    command
        .mut_args(takes_any)
        .mut_subcommands(with_negative_numbers)
}

/// The error of clap's message of several lines, without the usage.
fn usage(text: &str) -> String {
    let before_usage = text.split("\n\nUsage:").next().unwrap_or(text);
    let before_help = before_usage.split("\n\nFor more").next();
    let error = before_help.unwrap_or(before_usage);
    let error = error.strip_prefix("error: ").unwrap_or(error);
    // No host's name begins with a hyphen.
    let error = error.split("\n\n  tip: to pass").next().unwrap_or(error);
    let error = error.replace("\n\n  tip: ", "; ");
    let error = error.replace(
        "invalid digit found in string",
        "not a whole number from 0 on",
    );
    one_line(&error)
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

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
        for (words, expected) in [
            (&["x"][..], "--size"),
            (&["x", "--size", "-"], "--size"),
            (
                &["x", "--siz", "1"],
                "; a similar argument exists: '--size'",
            ),
            (&["x", "--size", "-5"], "-5 is not in"),
            (&["x", "--size", "x"], "not a whole number"),
            (&["x", "--size", "1", "-y"], "'-y' found"),
        ] {
            let command = with_negative_numbers(Options::command());
            let error = command.try_get_matches_from(words).err().unwrap();
            let line = usage(&error.to_string());
            assert!(!line.contains('\n') && line.contains(expected), "{line}");
            assert!(
                !line.contains("Usage") && !line.starts_with("error"),
                "{line}"
            );
        }
        assert_eq!(Options::parse_from(["x", "--size", "1"]).size, 1);
    }
}
