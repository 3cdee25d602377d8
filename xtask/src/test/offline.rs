//! The part of the tests that runs anywhere: formatting, rules, lints, tests, docs.

use std::process::Command;
use std::time::Duration;

use super::libtest::Tally;
use super::report::Report;
use crate::error::Error;
use crate::packages::VALGRIND;
use crate::process::{display, output, quietly, succeeds};
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
        step.end(report, "ok");
    } else {
        report.line(&tidy::report(&complaints));
        report.fail("tidy", 1);
        step.end(report, "FAILED");
    }
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
    counted(report, title, &mut command, false)
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
    counted(report, title, &mut command, counts_ignored)
}

/// Runs `command` as one step, and counts the tests that it runs.
fn counted(
    report: &mut Report,
    title: &str,
    command: &mut Command,
    counts_ignored: bool,
) -> Result<(), Error> {
    let step = report.start(title);
    let mut tally = Tally::default();
    // Most of them wait.
    command
        .env("RUST_TEST_THREADS", "4")
        .env("NEXTEST_TEST_THREADS", "4");
    let end = stream::run_shown(command, LIMITS, |text| {
        if let Text::Line(line) = text {
            if tally.line(line) {
                report.line(line);
            }
            step.doing(&tally.progress());
        }
    })?;
    let failure = tally.failure(&end);
    let code = failure.as_ref().map_or(1, |(_, code)| *code);
    count(report, title, &tally, code);
    for ignored in &tally.ignored {
        // A doctest's name ends so; the device tests come later.
        if counts_ignored || ignored.contains(" (line ") {
            report.skip(ignored.clone());
        }
    }
    step.end(report, if failure.is_none() { "ok" } else { "FAILED" });
    if let Some((why, code)) = failure.filter(|_| tally.failed == 0) {
        // More than failed tests, which are counted by name: nothing was run, or it broke off.
        report.fail(format!("{title}: {why}{}", tally.place()), code);
    }
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
    report.faults.extend(tally.faults.iter().cloned());
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

/// Licences, sources and advisories of the dependencies, where `cargo deny` is installed.
pub(crate) fn deny(report: &mut Report) -> Result<(), Error> {
    if !succeeds(&mut workspace::cargo(&["deny", "--version"])) {
        report.lacks("cargo deny: not installed here (cargo install --locked cargo-deny)");
        return Ok(());
    }
    let mut command = workspace::cargo(&["deny", "check", "bans", "licenses", "sources"]);
    step(report, "cargo deny", &mut command)?;
    advisories(report)
}

/// Known faults of the dependencies. They are in a database that is fetched anew: all others of
/// `cargo deny` need no network.
fn advisories(report: &mut Report) -> Result<(), Error> {
    const TITLE: &str = "cargo deny: advisories";
    let running = report.start(TITLE);
    let mut command = workspace::cargo(&["deny", "--color=never", "check", "advisories"]);
    let quiet = quietly(&mut command, TITLE, FETCH)?;
    let how = match quiet.end.failure() {
        None => {
            report.pass(1);
            "ok"
        }
        Some(_) if is_unfetched(&quiet.output) => {
            report.skip(format!(
                "{TITLE}: their database could not be fetched, which needs the network"
            ));
            "skipped"
        }
        Some((why, code)) => {
            report.line(quiet.output.trim_end());
            report.fail(format!("{TITLE}: {why}: `{}`", display(&command)), code);
            "FAILED"
        }
    };
    running.end(report, how);
    Ok(())
}

/// How long the database of advisories may take.
const FETCH: Duration = Duration::from_secs(3 * 60);

/// Whether `cargo deny` failed only because it has no database.
fn is_unfetched(output: &str) -> bool {
    output.contains("failed to fetch advisory database")
}

/// Libraries compile without a warning with none of their features, and with each alone: all other
/// steps have all of them on.
pub(crate) fn features(report: &mut Report) -> Result<(), Error> {
    const ALONE: [(&str, &str); 9] = [
        ("verbs-core", ""),
        ("verbs-core", "dlopen"),
        ("verbs-core", "rdmacm"),
        ("verbs-channel", ""),
        ("verbs-channel", "rdmacm"),
        ("verbs-async", ""),
        ("verbs-async", "tokio"),
        ("verbs-async", "async-io"),
        ("verbs-async", "rdmacm"),
    ];
    for (package, feature) in ALONE {
        let args = ["clippy", "--no-default-features", "--package", package];
        let mut command = workspace::cargo(&args);
        command.args(["--features", feature, "--", "-Dwarnings"]);
        let title = match feature {
            "" => format!("{package} without features"),
            feature => format!("{package} with {feature} alone"),
        };
        step(report, &title, &mut command)?;
    }
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

/// Runs one command as one step that passes or fails.
pub(crate) fn step(report: &mut Report, title: &str, command: &mut Command) -> Result<(), Error> {
    let step = report.start(title);
    let end = stream::run_shown(command, LIMITS, |text| {
        if let Text::Line(line) = text {
            report.line(line);
        }
    })?;
    match end.failure() {
        None => {
            report.pass(1);
            step.end(report, "ok");
        }
        Some((why, code)) => {
            report.fail(format!("{title}: {why}: `{}`", display(command)), code);
            step.end(report, "FAILED");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_unfetched;

    #[test]
    fn an_advisory_is_no_missing_database() {
        assert!(is_unfetched(
            "[ERROR] failed to fetch advisory database https://x/db with cli: failed to clone"
        ));
        assert!(!is_unfetched(
            "error[vulnerability]: data is read twice\n   ┌─ Cargo.lock:9:1"
        ));
    }
}
