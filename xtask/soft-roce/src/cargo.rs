//! The cargo of the crate in the current folder, and what it keeps where.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{self, PathBuf};
use std::process::{Command, Stdio};

use tinyjson::JsonValue;

use crate::error::{Context as _, Error};
use crate::{Options, kernel};

/// The cargo that runs this program, else the one on PATH.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// The target triple that this cargo builds for by default.
pub(crate) fn host() -> Result<String, Error> {
    let version = crate::process::output(cargo().arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| Error::new("`cargo -vV` names no host"))?;
    Ok(host.to_owned())
}

/// The one folder that a guest can write to; it exists.
pub(crate) fn results_dir(options: &Options) -> Result<PathBuf, Error> {
    let dir = match &options.results {
        Some(dir) => dir.clone(),
        None => dir()?.join("results"),
    };
    let what = || format!("cannot make the results folder {}", dir.display());
    fs::create_dir_all(&dir).context(what)?;
    dir.canonicalize().context(what)
}

/// A folder for what runs leave behind: in the target folder of the crate in the current folder,
/// else in the user's cache.
pub(crate) fn dir() -> Result<PathBuf, Error> {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    match target.or_else(target_directory) {
        Some(target) => {
            let dir = path::absolute(target.join("soft-roce"));
            dir.context(|| "cannot find the current folder")
        }
        None => kernel::cache(),
    }
}

fn target_directory() -> Option<PathBuf> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--format-version=1"]);
    // A folder without a crate is no failure.
    let output = metadata
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let json: JsonValue = str::from_utf8(&output.stdout).ok()?.parse().ok()?;
    let json = json.get::<std::collections::HashMap<String, JsonValue>>()?;
    json.get("target_directory")?
        .get::<String>()
        .map(PathBuf::from)
}
