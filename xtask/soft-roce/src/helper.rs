//! The parts of a run that are processes of their own: this very program, started anew with one of
//! these arguments. See [`start`](crate::start).

use std::env;
use std::io;
use std::path::PathBuf;

use crate::error::{Context as _, Error};

/// `PROGRAM ARG…`: becomes the program, as the leader of the terminal on stdin.
pub(crate) const TERMINAL: &str = "--soft-roce-on-terminal";

/// `PARENT PROGRAM ARG…`: becomes the program, in a session of its own, which the terminal's signals
/// do not reach, and which dies with its parent.
pub(crate) const DETACHED: &str = "--soft-roce-detached";

/// `up DRIVER` or `down DRIVER`: makes or removes the native devices, as root.
pub(crate) const NATIVE: &str = "--soft-roce-native";

/// `FILE PROGRAM ARG…`: notes in the file what cargo would run, instead of running it.
pub(crate) const NOTE: &str = "--soft-roce-note";

/// `FILE SECONDS FAIL_FAST`: runs the test programs in the file, where the devices are.
pub(crate) const TESTS: &str = "--soft-roce-tests";

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
