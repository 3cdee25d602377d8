//! Checkers that need a nightly toolchain: Miri, and LLVM's sanitizers.

pub(crate) mod miri;
pub(crate) mod sanitize;

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::Error;
use crate::process::succeeds;
use crate::stream::Limits;
use crate::test::offline::counted;
use crate::test::report::Report;
use crate::workspace;

/// Interpreted tests are slow, and the standard library is built first.
const LIMITS: Limits = Limits {
    total: Duration::from_secs(60 * 60),
    silence: Duration::from_secs(45 * 60),
};

/// The nightly toolchain whose checkers are used, if it is installed: newer ones find fault with dependencies, or
/// have functions of their own instead of those that the tests give to Miri.
const PINNED: &str = "nightly-2026-05-20";

/// The newest nightly toolchain that is installed.
const NEWEST: &str = "nightly";

/// The toolchain of the checkers.
fn toolchain() -> &'static str {
    static TOOLCHAIN: OnceLock<&str> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| {
        let mut pinned = cargo_of(PINNED, &["--version"]);
        if succeeds(&mut pinned) {
            PINNED
        } else {
            NEWEST
        }
    })
}

/// The cargo of the newest nightly toolchain.
pub(crate) fn nightly(args: &[&str]) -> Command {
    cargo_of(NEWEST, args)
}

/// The cargo of the checkers' toolchain.
fn checker(args: &[&str]) -> Command {
    cargo_of(toolchain(), args)
}

/// A toolchain's cargo, in the workspace's folder, without the flags meant for another.
pub(crate) fn cargo_of(toolchain: &str, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", toolchain, "cargo"])
        .args(args)
        .current_dir(workspace::root());
    // Cargo has told this program which compiler it uses.
    for flags in [
        "CARGO",
        "RUSTC",
        "RUSTUP_TOOLCHAIN",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC_WRAPPER",
    ] {
        command.env_remove(flags);
    }
    command
}

/// Whether the checkers' toolchain has the standard library's source, which is built for a checker.
fn has_source() -> bool {
    let mut sysroot = Command::new("rustup");
    sysroot.args(["run", toolchain(), "rustc", "--print", "sysroot"]);
    let Ok(output) = sysroot.output() else {
        return false;
    };
    let sysroot = String::from_utf8_lossy(&output.stdout);
    let library = "lib/rustlib/src/rust/library/Cargo.lock";
    std::path::Path::new(sysroot.trim()).join(library).is_file()
}

/// Runs the test programs of `command`, whose arguments end before `--`, as one step. Tests that have to be caught are run by
/// themselves.
fn tests(
    report: &mut Report,
    title: &str,
    mut command: Command,
    filters: &[&str],
) -> Result<(), Error> {
    command.args(["--", "--test-threads=1"]).args(filters);
    counted(report, title, &mut command, LIMITS, |ignored| {
        !ignored.starts_with("caught::")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn checkers_toolchain_is_the_one_that_is_installed_by_the_docs() {
        let files = [
            "CONTRIBUTING.md",
            ".github/workflows/nightly.yml",
            "xtask/src/checkers/miri.rs",
            "xtask/src/checkers/sanitize.rs",
        ];
        for file in files {
            let text = fs::read_to_string(workspace::root().join(file)).unwrap();
            let mut installed = text.split("toolchain install ").skip(1);
            assert!(installed.any(|words| words.starts_with(PINNED)), "{file}");
        }
    }
}
