//! Downloads by the distribution's package manager.

use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::process;

/// How long a download may take.
pub(super) const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Runs a download with its output kept back.
pub(super) fn download(command: &mut Command, label: &str) -> Result<(), Error> {
    let quiet = process::quietly(command, label, LIMIT)?;
    if quiet.success() {
        return Ok(());
    }
    Err(quiet.error(command))
}
