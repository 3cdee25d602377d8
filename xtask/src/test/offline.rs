//! The part of the tests that runs anywhere: formatting, rules, lints, tests, docs.

use std::process::Command;
use std::time::Duration;

use super::libtest::{Tally, starting};
use super::report::Report;
use crate::error::Error;
use crate::packages::VALGRIND;
use crate::process::{display, output, succeeds};
use crate::stream::{self, Limits, Text};
use crate::{release, tidy, workspace};

/// A cold build of everything on two slow cores takes a few minutes and may be silent in the
/// meantime: cargo's messages go to stderr.
const LIMITS: Limits = Limits {
    total: Duration::from_secs(30 * 60),
    silence: Duration::from_secs(15 * 60),
};

/// Checks beside the tests: formatting, the project's rules, lints.
pub(crate) fn checks(report: &mut Report) -> Result<(), Error> {
    component(report, "rustfmt", "cargo fmt", &["fmt", "--all", "--check"])?;

    let step = report.start("tidy");
    let [complaints, unchecked] = tidy::complaints()?;
    if complaints.is_empty() {
        report.pass(1);
    } else {
        report.line(&tidy::report(&complaints));
        report.fail("tidy", 1);
    }
    step.end(report);
    for unchecked in unchecked {
        report.skip(format!("tidy: {unchecked}"));
    }

    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-Dwarnings",
    ];
    component(report, "clippy", "cargo clippy", &clippy)
}

/// Unit tests, integration tests and doctests, all but those that need a device. Those are
/// counted as skipped if `counts_ignored`, as they won't run later.
pub(super) fn tests(
    report: &mut Report,
    filter: Option<&str>,
    counts_ignored: bool,
) -> Result<(), Error> {
    let features = workspace::test_features()?;
    let others = [
        "--workspace",
        "--exclude=xtask",
        "--exclude=cargo-soft-roce",
        &features,
    ];
    // These by themselves: a feature of theirs is for tests of minutes.
    let own = ["--package=xtask", "--package=cargo-soft-roce"];
    let filters = filter.as_slice();
    if succeeds(&mut workspace::cargo(&["nextest", "--version"])) {
        nextest(report, "cargo nextest", &others, filters)?;
        if counts_ignored {
            let mut list = workspace::cargo(&["nextest", "list", "--message-format=oneline"]);
            list.arg("--run-ignored=only").args(others).args(filters);
            for test in output(&mut list)?.lines() {
                report.skip(format!("{test}: ignored"));
            }
        }
        nextest(report, "cargo nextest of the tools", &own, filters)?;
        let docs = [&["--doc"], &others[..]].concat();
        return libtest(report, "cargo test --doc", &docs, filters, counts_ignored);
    }
    libtest(report, "cargo test", &others, filters, counts_ignored)?;
    libtest(
        report,
        "cargo test of the tools",
        &own,
        filters,
        counts_ignored,
    )
}

/// Runs `cargo nextest` with `args` as one step, and counts its tests.
fn nextest(report: &mut Report, title: &str, args: &[&str], filters: &[&str]) -> Result<(), Error> {
    // Its lines and those of tests on one stream.
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$@\" 2>&1", "sh"])
        .arg(workspace::cargo(&[]).get_program())
        .args(["nextest", "run", "--no-fail-fast", "--no-tests=pass"])
        .args(["--no-output-indent", "--success-output=immediate"])
        .args(args)
        .args(filters)
        .current_dir(workspace::root());
    // The device tests come later.
    counted(report, title, &mut command, LIMITS, |_| false)
}

/// Runs `cargo test` with `args` as one step, and counts its tests.
pub(super) fn libtest(
    report: &mut Report,
    title: &str,
    args: &[&str],
    filters: &[&str],
    counts_ignored: bool,
) -> Result<(), Error> {
    let mut command = workspace::cargo(&["test", "--no-fail-fast"]);
    command
        .args(args)
        .args(["--", "--show-output"])
        .args(filters);
    // A doctest's name ends so; the device tests come later.
    counted(report, title, &mut command, LIMITS, |ignored| {
        counts_ignored || ignored.contains(" (line ")
    })
}

/// Runs `command` as one step, and counts the tests that it runs, and those of the ignored ones that are skipped.
pub(crate) fn counted(
    report: &mut Report,
    title: &str,
    command: &mut Command,
    limits: Limits,
    is_skipped: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    let step = report.start(title);
    let mut tally = Tally::default();
    // Most of them wait.
    command
        .env("RUST_TEST_THREADS", "4")
        .env("NEXTEST_TEST_THREADS", "4");
    let end = stream::run_shown(command, limits, |text| match text {
        Text::Line(line) => {
            if tally.line(line) {
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
    for ignored in tally.ignored.iter().filter(|ignored| is_skipped(ignored)) {
        report.skip(format!("{title}: {ignored}"));
    }
    if let Some((why, code)) = failure.filter(|_| tally.failed == 0) {
        // More than failed tests, which are counted by name: nothing was run, or it broke off.
        let place = tally.place();
        report.fail(
            format!("{title}: {why}{place}: `{}`", display(command)),
            code,
        );
    }
    step.end(report);
    Ok(())
}

/// Tests that wait and check peers, under valgrind, where users run their programs: some ways to read the clock crash
/// there. It also sees memory that is not initialised, in the same few seconds.
pub(super) fn waits(report: &mut Report) -> Result<(), Error> {
    const TITLE: &str = "cargo test under valgrind";
    if !VALGRIND.is_met() {
        report.skip(format!("{TITLE}: valgrind is not installed here"));
        return Ok(());
    }
    let features = workspace::test_features()?;
    let args = [
        "--config=target.'cfg(all())'.runner=['valgrind','--quiet','--error-exitcode=9']",
        "--workspace",
        "--exclude=xtask",
        "--exclude=cargo-soft-roce",
        "--test=offline",
        &features,
    ];
    // Valgrind runs one thread at a time, and tests have deadlines.
    let filters = ["peers::", "transfers::", "--test-threads=2"];
    libtest(report, TITLE, &args, &filters, false)
}

/// Counts what test programs printed; `name` is what ran them.
pub(crate) fn count(report: &mut Report, name: &str, tally: &Tally, code: u8) {
    report.pass(tally.passed.saturating_sub(tally.skipped.len()));
    report.took.extend(tally.took.iter().cloned());
    for skipped in &tally.skipped {
        report.skip_printed(skipped.clone());
    }
    for index in 0..tally.failed {
        let test = tally.failures.get(index).map_or("a test", String::as_str);
        report.fail(format!("{name}: {test}"), code);
    }
}

/// The documentation of what is published builds without a warning.
pub(crate) fn docs(report: &mut Report) -> Result<(), Error> {
    let mut command = workspace::cargo(&["doc", "--no-deps", "--all-features", "--lib"]);
    command
        .args(release::PUBLISHED)
        .env("RUSTDOCFLAGS", "-Dwarnings");
    step(report, "cargo doc", &mut command)
}

/// Licences, sources and advisories of the dependencies. The advisories are fetched.
pub(crate) fn deny(report: &mut Report) -> Result<(), Error> {
    plugin(report, "deny", &["check"])
}

/// Libraries compile without a warning with none of their features, and with each alone: all other
/// steps have all of them on.
pub(crate) fn features(report: &mut Report) -> Result<(), Error> {
    let each = [
        "clippy",
        "--each-feature",
        "--package=verbs-core",
        "--package=verbs-channel",
        "--package=verbs-async",
        "--",
        "-Dwarnings",
    ];
    plugin(report, "hack", &each)?;
    // Some of these are about what is not there.
    let args = ["test", "--no-default-features", "--package=verbs-channel"];
    let mut command = workspace::cargo(&args);
    command.arg("--test=offline");
    step(
        report,
        "tests of verbs-channel without features",
        &mut command,
    )
}

/// Checks that everything compiles; for a toolchain without clippy, which would check that.
pub(crate) fn compiles(report: &mut Report) -> Result<(), Error> {
    if succeeds(&mut workspace::cargo(&["clippy", "--version"])) {
        return Ok(());
    }
    let args = ["check", "--workspace", "--all-targets", "--all-features"];
    step(report, "cargo check", &mut workspace::cargo(&args))
}

/// Runs a part of the toolchain that need not be installed.
fn component(report: &mut Report, name: &str, title: &str, args: &[&str]) -> Result<(), Error> {
    if succeeds(&mut workspace::cargo(&[args[0], "--version"])) {
        return step(report, title, &mut workspace::cargo(args));
    }
    report.lacks(format!(
        "{title}: not installed here (rustup component add {name})"
    ));
    Ok(())
}

/// Runs a plugin of cargo, if it is installed.
pub(crate) fn plugin(report: &mut Report, name: &str, args: &[&str]) -> Result<(), Error> {
    let title = format!("cargo {name}");
    if succeeds(&mut workspace::cargo(&[name, "--version"])) {
        return step(report, &title, workspace::cargo(&[name]).args(args));
    }
    report.lacks(format!(
        "{title}: not installed here (cargo install --locked cargo-{name})"
    ));
    Ok(())
}

/// Runs one command as one step that passes or fails.
pub(crate) fn step(report: &mut Report, title: &str, command: &mut Command) -> Result<(), Error> {
    let step = report.start(title);
    let end = stream::run_shown(command, LIMITS, |text| {
        if let Text::Line(line) = text {
            report.line(line);
        }
    })?;
    match end.failure() {
        None => report.pass(1),
        Some((why, code)) => {
            report.fail(format!("{title}: {why}: `{}`", display(command)), code);
        }
    }
    step.end(report);
    Ok(())
}
