//! The command line of one subcommand: options are taken out one by one, and what is left over
//! is an error.

use std::ffi::OsString;

use crate::error::Error;
use crate::packages::Policy;

/// The arguments that have not been taken yet.
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
            let not_unicode = |arg: OsString| Error::usage(format!("{arg:?} is not valid UTF-8"));
            arg.into_string().map_err(not_unicode)
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

    /// The value of the option `name`, as `NAME VALUE` or `NAME=VALUE`.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>, Error> {
        let joined = |arg: &String| {
            let value = arg.strip_prefix(name)?.strip_prefix('=')?;
            Some(value.to_owned())
        };
        if let Some(value) = self.left.iter().find_map(joined) {
            self.left.retain(|arg| joined(arg).is_none());
            return Ok(Some(value));
        }
        let Some(at) = self.left.iter().position(|arg| arg == name) else {
            return Ok(None);
        };
        // A value that begins so is given as `NAME=VALUE`.
        let is_value = |next: &String| !next.starts_with("--");
        if !self.left.get(at + 1).is_some_and(is_value) {
            return Err(self.usage(&format!("`{name}` takes a value")));
        }
        self.left.remove(at);
        Ok(Some(self.left.remove(at)))
    }

    /// Whether help is asked for; it is printed then.
    pub(crate) fn help(&mut self) -> bool {
        let asked = self.flag("--help") | self.flag("-h");
        if asked {
            println!("{}", self.help);
        }
        asked
    }

    /// The policy on missing packages: `--yes`, `--no-install`, or neither.
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

    fn args(list: &[&str]) -> Args {
        let list = list.iter().map(Into::into).collect();
        Args::new("Tries.\n\nUsage: cargo xtask try [OPTION…]", list).unwrap()
    }

    #[test]
    fn options_come_in_any_order() {
        let mut args = args(&["name", "--yes", "--offline"]);
        assert!(args.flag("--offline"));
        assert!(!args.flag("--device"));
        assert_eq!(args.policy().unwrap(), Policy::Yes);
        assert_eq!(args.positional().as_deref(), Some("name"));
        args.finish().unwrap();
    }

    #[test]
    fn values_come_in_both_forms() {
        let mut args = args(&["--only", "a", "--device=b", "--peer"]);
        assert_eq!(args.value("--only").unwrap().as_deref(), Some("a"));
        assert_eq!(args.value("--device").unwrap().as_deref(), Some("b"));
        assert_eq!(args.value("--guest").unwrap(), None);
        assert!(args.value("--peer").is_err());
    }

    #[test]
    fn an_option_is_not_the_value_of_the_one_before() {
        let mut args = args(&["--device", "--guest", "--peer=--odd"]);
        let error = args.value("--device").unwrap_err().to_string();
        assert!(error.contains("`--device` takes a value"), "{error}");
        assert_eq!(args.value("--peer").unwrap().as_deref(), Some("--odd"));
        assert!(args.flag("--guest"));
    }

    #[test]
    fn unknown_option_is_an_error_with_the_usage() {
        let error = args(&["--yse"]).finish().unwrap_err().to_string();
        assert!(error.contains("--yse"), "{error}");
        assert!(error.contains("Usage: cargo xtask try"), "{error}");
    }

    #[test]
    fn contradictions_are_errors() {
        assert!(args(&["--yes", "--no-install"]).policy().is_err());
    }
}
