//! The parts of a run that are processes of their own: this very program, started anew.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{self, Command};

use rustix::process::{Signal, getppid, ioctl_tiocsctty, set_parent_process_death_signal, setsid};

use crate::error::{Context as _, Error};
use crate::guest::agent;
use crate::{native, test};

/// `PROGRAM ARG…`: becomes the program, as the leader of the terminal on stdin.
pub(crate) const TERMINAL: &str = "--soft-roce-on-terminal";

/// `PARENT PROGRAM ARG…`: becomes the program, in a session of its own, which the terminal's signals
/// do not reach, and which dies with its parent.
pub(crate) const DETACHED: &str = "--soft-roce-detached";

/// `up` or `down`: makes or removes the native devices, as root.
pub(crate) const NATIVE: &str = "--soft-roce-native";

/// `FILE PROGRAM ARG…`: notes in the file what cargo would run, instead of running it.
pub(crate) const NOTE: &str = "--soft-roce-note";

/// `FILE SECONDS FAIL_FAST`: runs the test programs in the file, where the devices are.
pub(crate) const TESTS: &str = "--soft-roce-tests";

/// Makes this process what the library started it for, if it did.
///
/// To be called first in `main` by every program that uses this library: a guest's init is this same
/// program, and so are the processes that start a guest and run tests in it. Returns in all other
/// processes.
#[expect(
    clippy::print_stderr,
    reason = "a process of its own has to say why it fails"
)]
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
        eprintln!("error: {error}");
        error.code()
    });
    process::exit(code.into())
}

/// This program's own file, which is there as long as some build of it is.
///
/// # Errors
///
/// If `/proc` does not name it.
pub fn own_exe() -> Result<PathBuf, Error> {
    let exe = env::current_exe().context(|| "cannot find this program's own file")?;
    // A rebuild replaces the file; the new one at the old place is as good.
    let name = exe.to_string_lossy();
    Ok(match name.strip_suffix(" (deleted)") {
        Some(name) => PathBuf::from(name),
        None => exe,
    })
}

/// An exit code as a shell has it for a program that could not be started.
pub(crate) fn not_started(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
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
