//! The command line of one subcommand: options are taken out one by one, and what is left over
//! is an error.

use std::ffi::OsString;
use std::time::Duration;

use crate::error::{Context as _, Error};
use crate::packages::Policy;

/// The arguments that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct Args {
    help: &'static str,
    left: Vec<String>,
}

impl Args {
    /// Starts on `args`; `help` is the subcommand's help page, whose first line is shown with
    /// every complaint.
    pub(crate) fn new(help: &'static str, args: Vec<OsString>) -> Result<Self, Error> {
        let text = |arg: OsString| {
            let told = |arg: OsString| Error::usage(format!("{arg:?} is not valid UTF-8"));
            arg.into_string().map_err(told)
        };
        let left = args.into_iter().map(text).collect::<Result<_, _>>()?;
        Ok(Self { help, left })
    }

    /// Whether the option `name` is there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.left.len();
        self.left.retain(|arg| arg != name);
        self.left.len() != before
    }

    /// Whether help is asked for; it is printed then.
    pub(crate) fn help(&mut self) -> bool {
        let asked = self.flag("--help") | self.flag("-h");
        if asked {
            println!("{}", self.help);
        }
        asked
    }

    /// The value of the option `name`, given as `--name VALUE` or `--name=VALUE`.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>, Error> {
        let joined = format!("{name}=");
        let is_it = |arg: &String| arg == name || arg.starts_with(&joined);
        let Some(at) = self.left.iter().position(is_it) else {
            return Ok(None);
        };
        let found = self.left.remove(at);
        if let Some(value) = found.strip_prefix(&joined) {
            return Ok(Some(value.to_owned()));
        }
        if at == self.left.len() {
            return Err(self.usage(&format!("`{name}` needs a value")));
        }
        Ok(Some(self.left.remove(at)))
    }

    /// The value of the option `name` in seconds.
    pub(crate) fn seconds(&mut self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(value) = self.value(name)? else {
            return Ok(None);
        };
        let seconds = value
            .parse()
            .context(|| format!("`{name} {value}` is not a number of seconds"))?;
        Ok(Some(Duration::from_secs(seconds)))
    }

    /// What to do about missing packages: `--yes`, `--no-install`, or neither.
    pub(crate) fn policy(&mut self) -> Result<Policy, Error> {
        match (self.flag("--yes"), self.flag("--no-install")) {
            (true, true) => Err(self.usage("`--yes` and `--no-install` contradict each other")),
            (true, false) => Ok(Policy::Yes),
            (false, true) => Ok(Policy::No),
            (false, false) => Ok(Policy::Ask),
        }
    }

    /// The next argument that is not an option.
    pub(crate) fn positional(&mut self) -> Option<String> {
        let at = self.left.iter().position(|arg| !arg.starts_with('-'))?;
        Some(self.left.remove(at))
    }

    /// Complains about whatever is left.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.left.first() {
            None => Ok(()),
            Some(arg) => Err(self.usage(&format!("unknown argument `{arg}`"))),
        }
    }

    /// A complaint, with how it should have been.
    pub(crate) fn usage(&self, complaint: &str) -> Error {
        let usage = self.help.lines().find(|line| line.starts_with("Usage:"));
        let usage = usage.unwrap_or_default();
        Error::usage(format!("{complaint}\n{usage} (--help says more)"))
    }
}

#[cfg(test)]
mod tests {
    use super::Args;
    use crate::packages::Policy;
    use std::time::Duration;

    fn args(list: &[&str]) -> Args {
        let list = list.iter().map(Into::into).collect();
        Args::new("Tries.\n\nUsage: cargo xtask try [OPTION…]", list).unwrap()
    }

    #[test]
    fn options_come_in_any_order_and_either_form() {
        let mut args = args(&["name", "--timeout=3", "--yes", "--limit", "4"]);
        assert_eq!(
            args.seconds("--timeout").unwrap(),
            Some(Duration::from_secs(3))
        );
        assert_eq!(args.value("--limit").unwrap().as_deref(), Some("4"));
        assert_eq!(args.policy().unwrap(), Policy::Yes);
        assert_eq!(args.positional().as_deref(), Some("name"));
        args.finish().unwrap();
    }

    #[test]
    fn what_nobody_knows_is_an_error_with_the_usage() {
        let error = args(&["--yse"]).finish().unwrap_err().to_string();
        assert!(error.contains("--yse"), "{error}");
        assert!(error.contains("Usage: cargo xtask try"), "{error}");
    }

    #[test]
    fn bad_values_are_errors() {
        assert!(args(&["--timeout"]).seconds("--timeout").is_err());
        assert!(args(&["--timeout", "soon"]).seconds("--timeout").is_err());
        assert!(args(&["--yes", "--no-install"]).policy().is_err());
    }
}
