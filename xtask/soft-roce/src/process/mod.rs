//! Child processes: finding them, and running them with a bound, in silence unless they fail.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::error::{Context as _, Error};

mod runner;
mod tree;

pub use runner::{End, Limits, Quiet, quietly, run_quietly};
pub(crate) use runner::{Source, follow_both, kill, wait};
pub(crate) use tree::signal_tree;
pub use tree::{end_children_on_signals, kill_tree, stop_here_if_ending};

/// Where administrators' programs are; a user's PATH often leaves these out.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The executable called `name`, on PATH or where system programs are.
#[must_use]
pub fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRS.into_iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The exit code to pass on for a child's status: its own, or 128 + the signal that killed it.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// A command as a shell would take it, for messages.
#[must_use]
pub fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = words.map(|word| quote(&word.to_string_lossy())).collect();
    quoted.join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs `command` with its output shown; its failure is an error that carries its exit code.
///
/// # Errors
///
/// If it cannot be started, or fails.
pub fn run(command: &mut Command) -> Result<(), Error> {
    let status = command
        .status()
        .context(|| format!("cannot start `{}`", display(command)))?;
    stop_here_if_ending();
    if status.success() {
        return Ok(());
    }
    let message = format!("`{}` failed: {status}", display(command));
    Err(Error::new(message).with_code(exit_code(status)))
}

/// Runs `command` without input and returns what it wrote to stdout; stderr is shown.
///
/// # Errors
///
/// If it cannot be started, or fails.
pub fn output(command: &mut Command) -> Result<String, Error> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context(|| format!("cannot start `{}`", display(command)))?;
    stop_here_if_ending();
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = format!("`{}` failed: {}", display(command), output.status);
    Err(Error::new(message).with_code(exit_code(output.status)))
}

/// Whether `command` can be started and succeeds; its output is thrown away.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The last `lines` lines of `text`.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{display, exit_code, tail, which};
    use std::process::Command;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn which_finds_programs_and_nothing_else() {
        assert!(which("sh").is_some());
        assert!(which("no-such-program-anywhere").is_none());
    }

    #[test]
    fn a_command_is_quoted_as_a_shell_takes_it() {
        assert_eq!(display(&sh("echo it's")), r"sh -c 'echo it'\''s'");
    }

    #[test]
    fn exit_codes_are_passed_on() {
        let status = |script| sh(script).status().unwrap();
        assert_eq!(exit_code(status("exit 7")), 7);
        assert_eq!(exit_code(status("kill -9 $$")), 137);
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
