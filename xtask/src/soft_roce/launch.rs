//! Short steps that must happen in a process of its own, just before it becomes another program.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getppid, ioctl_tiocsctty, set_parent_process_death_signal, setsid};

use crate::error::{Context as _, Error};

/// `soft-roce TERMINAL PROGRAM ARG…`: runs the program as the leader of the terminal on stdin.
pub(super) const TERMINAL: &str = "--exec-on-terminal";

/// `soft-roce DETACHED PARENT PROGRAM ARG…`: runs the program in a session of its own, which the
/// terminal's signals do not reach, and which dies with its parent.
pub(super) const DETACHED: &str = "--exec-detached";

/// Becomes the program, if `args` ask for that.
pub(super) fn exec_if_asked(args: &[OsString]) -> Result<(), Error> {
    let (how, rest) = match args.split_first() {
        Some((how, rest)) if how == TERMINAL => (TERMINAL, rest),
        Some((how, rest)) if how == DETACHED => (DETACHED, rest),
        _ => return Ok(()),
    };
    setsid().context(|| "cannot start a session")?;
    let argv = if how == TERMINAL {
        ioctl_tiocsctty(io::stdin()).context(|| "cannot take the terminal")?;
        rest
    } else {
        let (parent, argv) = rest.split_first().ok_or_else(missing)?;
        die_with(parent.to_str().unwrap_or_default())?;
        argv
    };
    let (program, args) = argv.split_first().ok_or_else(missing)?;
    let error = Command::new(program).args(args).exec();
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    let message = format!("cannot run `{}`: {error}", program.display());
    Err(Error::new(message).with_code(code))
}

fn die_with(parent: &str) -> Result<(), Error> {
    let set = set_parent_process_death_signal(Some(Signal::KILL));
    set.context(|| "cannot ask to die with the parent")?;
    // The parent may have died before it was asked for.
    let alive = getppid().is_some_and(|pid| pid.as_raw_nonzero().to_string() == parent);
    alive
        .then_some(())
        .ok_or_else(|| Error::new("the parent has gone"))
}

fn missing() -> Error {
    Error::usage("there is no program to run")
}
