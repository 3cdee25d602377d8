//! The start of a program: it may be one of the processes that this library starts.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};

use rustix::process::{Signal, getppid, ioctl_tiocsctty, set_parent_process_death_signal, setsid};

use crate::error::{Context as _, Error};
use crate::guest::agent;
use crate::helper::{DETACHED, NATIVE, NOTE, TERMINAL, TESTS, not_started};
use crate::progress::print_last;
use crate::{native, test};

/// Makes this process what the library started it for, if it did.
///
/// To be called first in `main` by every program that uses this library: a guest's init is this same
/// program, and so are the processes that start a guest and run tests in it. Returns in all other
/// processes.
pub fn start() {
    if agent::is_init() {
        agent::run();
    }
    let mut args = env::args_os().skip(1);
    let Some(what) = args.next() else { return };
    let args: Vec<OsString> = args.collect();
    let result = match what.to_str() {
        Some(TERMINAL) => on_terminal(&args),
        Some(DETACHED) => detached(&args),
        Some(NATIVE) => native::as_asked(&args).map(|()| 0),
        Some(NOTE) => test::note(&args).map(|()| 0),
        Some(TESTS) => test::inside(&args),
        _ => return,
    };
    let code = result.unwrap_or_else(|error| {
        print_last(format!("error: {error}"));
        error.code()
    });
    process::exit(code.into())
}

fn on_terminal(argv: &[OsString]) -> Result<u8, Error> {
    setsid().context(|| "cannot start a session")?;
    ioctl_tiocsctty(io::stdin()).context(|| "cannot take the terminal")?;
    become_program(argv)
}

fn detached(args: &[OsString]) -> Result<u8, Error> {
    setsid().context(|| "cannot start a session")?;
    let (parent, argv) = args.split_first().ok_or_else(missing)?;
    let set = set_parent_process_death_signal(Some(Signal::KILL));
    set.context(|| "cannot ask to die with the parent")?;
    // The parent may have died before it was asked for.
    let now = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if now.as_deref() != parent.to_str() {
        return Err(Error::new("the parent has gone"));
    }
    become_program(argv)
}

fn become_program(argv: &[OsString]) -> Result<u8, Error> {
    let (program, args) = argv.split_first().ok_or_else(missing)?;
    let error = Command::new(program).args(args).exec();
    let message = format!("cannot run `{}`: {error}", program.display());
    Err(Error::new(message).with_code(not_started(&error)))
}

fn missing() -> Error {
    Error::usage("there is no program to run")
}
