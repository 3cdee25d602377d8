//! Checkers that need a nightly toolchain: Miri, and LLVM's sanitizers.

pub(crate) mod miri;
pub(crate) mod sanitize;

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::Error;
use crate::process::{display, succeeds};
use crate::stream::{self, Limits, Text};
use crate::test::libtest::{Tally, starting};
use crate::test::offline::count;
use crate::test::report::Report;
use crate::workspace;

/// Interpreted tests are slow, and the standard library is built first.
const LIMITS: Limits = Limits {
    total: Duration::from_secs(60 * 60),
    silence: Duration::from_secs(45 * 60),
};

/// A test that a checker cannot run: the argument that names its package, its whole name, and why.
type LeftOut = (&'static str, &'static str, &'static str);

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
fn cargo_of(toolchain: &str, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", toolchain, "cargo"])
        .args(args)
        .current_dir(workspace::root());
    for flags in [
        "CARGO",
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

/// Runs the test programs of `command`, whose arguments end before `--`, as one step.
fn tests(
    report: &mut Report,
    title: &str,
    mut command: Command,
    filters: &[&str],
    left_out: &[LeftOut],
) -> Result<(), Error> {
    let step = report.start(title);
    let of_it = |(package, ..): &&LeftOut| command.get_args().any(|arg| arg == *package);
    let left_out: Vec<&LeftOut> = left_out.iter().filter(of_it).collect();
    // The toolchain is a nightly one, which can print how long each test took.
    let times = ["-Zunstable-options", "--report-time"];
    command.args(["--", "--test-threads=1"]).args(times);
    command.args(filters);
    for (_, name, _) in &left_out {
        command.args(["--skip", name]);
    }
    let mut tally = Tally::default();
    let end = stream::run_shown(&mut command, LIMITS, |text| match text {
        Text::Line(line) => {
            let shown = tally.line(line);
            if shown && !is_quick_pass(line) {
                report.line(line);
            }
            step.doing(&tally.progress());
        }
        Text::Partial(text) => {
            if let Some(test) = starting(text) {
                step.doing(&format!("{}, {test}", tally.progress()));
            }
        }
        _ => {}
    })?;
    let failure = tally.failure(&end);
    let code = failure.as_ref().map_or(1, |(_, code)| *code);
    count(report, title, &tally, code);
    // Those that have to be caught are run by themselves.
    let ignored = tally.ignored.iter();
    for ignored in ignored.filter(|ignored| !ignored.starts_with("caught::")) {
        report.skip(format!("{title}: {ignored}"));
    }
    for (_, name, reason) in left_out {
        report.skip(format!("{title}: {name}: {reason}"));
    }
    step.end(report, if failure.is_none() { "ok" } else { "FAILED" });
    if let Some((why, code)) = failure.filter(|_| tally.failed == 0) {
        let place = tally.place();
        report.fail(
            format!("{title}: {why}{place}: `{}`", display(&command)),
            code,
        );
    }
    Ok(())
}

/// Whether a line is of a test that passed within ten seconds: `test NAME ... ok <1.234s>`.
fn is_quick_pass(line: &str) -> bool {
    let passed = line.strip_prefix("test ");
    let Some((_, time)) = passed.and_then(|test| test.split_once(" ... ok")) else {
        return false;
    };
    let seconds = time.trim().trim_start_matches('<').trim_end_matches("s>");
    !seconds.parse().is_ok_and(|seconds: f64| seconds >= 10.0)
}

/// Whether `cargo +nightly ARGS` succeeds.
pub(crate) fn has(args: &[&str]) -> bool {
    succeeds(&mut nightly(args))
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

    #[test]
    fn only_slow_passes_are_shown() {
        assert!(is_quick_pass("test a::b ... ok <9.999s>"));
        assert!(is_quick_pass("test a::b ... ok"));
        assert!(!is_quick_pass("test a::b ... ok <12.345s>"));
        assert!(!is_quick_pass("test a::b ... FAILED <0.001s>"));
        assert!(!is_quick_pass("test a::b - should panic ... ignored, why"));
    }
}
