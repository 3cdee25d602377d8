//! The programs whose loops are counted: C's on a stand-in for libibverbs, and ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::operations::Ours;
use crate::error::Error;
use crate::process;
use crate::workspace;

/// Builds the stand-in and the C loops, as fast as the C compiler can make them.
pub(super) fn build_c(dir: &Path) -> Result<PathBuf, Error> {
    let sources = workspace::root().join("verbs-core/benches/c");
    let flags = process::output(Command::new("pkg-config").args(["--cflags", "libibverbs"]))?;
    let cc = |output: &Path| {
        let mut cc = Command::new("cc");
        cc.args(["-O3", "-Wall", "-Wextra"])
            .args(flags.split_whitespace());
        cc.arg("-o").arg(output).current_dir(&sources);
        cc
    };
    let library = dir.join("libibverbs.so.1");
    let mut shared = cc(&library);
    shared.args(["-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1"]);
    shared.args([
        "-Wl,--version-script=libibverbs.map",
        "provider.c",
        "unsupported.c",
    ]);
    process::run(&mut shared)?;
    let reference = dir.join("reference");
    process::run(cc(&reference).arg("reference.c").arg(library))?;
    Ok(reference)
}

/// Builds loops of ours with the bench profile: optimised, with link-time optimisation.
pub(super) fn build_ours(ours: Ours) -> Result<PathBuf, Error> {
    let (package, target) = ours.names();
    let built = workspace::build(&[
        "bench",
        &format!("--package={package}"),
        &format!("--bench={target}"),
        "--no-run",
        "--message-format=json-render-diagnostics",
    ])?;
    let is_it = |artifact: &workspace::Artifact| artifact.target == target;
    let found = built
        .into_iter()
        .find(is_it)
        .map(|artifact| artifact.executable);
    found.ok_or_else(|| Error::new(format!("cargo built no program `{target}`")))
}
