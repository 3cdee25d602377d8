//! `cargo xtask sanitize`: unit, offline, stream and notifier tests under the sanitizers for
//! threads and addresses.

use std::env::consts::ARCH;
use std::process::ExitCode;

use super::{PINNED, checker, has_source, tests};
use crate::error::Error;
use crate::packages;
use crate::test::report::Report;
use crate::workspace;

/// Tests under `ThreadSanitizer` and `AddressSanitizer`
///
/// Unit, offline, stream and notifier tests. The former sees data races, the latter memory that is used after its
/// end. False reports are suppressed by name in xtask/src/checkers/thread-suppressions.txt.
///
/// Needs a nightly toolchain: rustup toolchain install nightly-2026-05-20 --component rust-src
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only `ThreadSanitizer`
    #[arg(long)]
    thread: bool,
    /// Only `AddressSanitizer`
    #[arg(long)]
    address: bool,
    /// Only tests whose name contains it
    filter: Option<String>,
    #[command(flatten)]
    install: packages::Install,
}

const PROGRAMS: [&[&str]; 3] = [
    &["--package=verbs-core", "--lib", "--test=offline"],
    &["--package=verbs-channel", "--lib", "--test=offline"],
    &[
        "--package=verbs-async",
        "--lib",
        "--test=offline",
        "--test=streams",
        "--test=connecting",
        "--test=notifiers",
        "--test=notifier_thread",
        "--test=device_events",
    ],
];

const MAY_FAIL: &str = "allocator_may_return_null=1";

/// The sanitizers, by their names for the compiler and for people.
const THREAD: [&str; 2] = ["thread", "ThreadSanitizer"];
const ADDRESS: [&str; 2] = ["address", "AddressSanitizer"];

/// A test that `ThreadSanitizer` cannot run: it needs 100 GiB of addresses.
const HUGE: &str = "poll::slots_beyond_the_range_of_c_are_polled_in_part";

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<ExitCode, Error> {
    let Args {
        thread,
        address,
        filter,
        install,
    } = args;
    packages::ensure(&packages::BUILD, install.policy())?;
    let mut report = Report::strict();
    let both = thread == address;
    for (_, sanitizer) in [(thread, THREAD), (address, ADDRESS)]
        .into_iter()
        .filter(|(is_chosen, _)| both || *is_chosen)
    {
        run(&mut report, sanitizer, filter.as_deref())?;
    }
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}

/// Both sanitizers.
pub(crate) fn all(report: &mut Report) -> Result<(), Error> {
    run(report, THREAD, None)?;
    run(report, ADDRESS, None)
}

fn run(report: &mut Report, [name, title]: [&str; 2], filter: Option<&str>) -> Result<(), Error> {
    if !has_source() {
        report.lacks(format!(
            "{title}: no nightly toolchain with its source here (rustup toolchain install {PINNED} \
             --component rust-src)"
        ));
        return Ok(());
    }
    let suppressions = workspace::root().join("xtask/src/checkers/thread-suppressions.txt");
    let suppressions = format!("suppressions={}", suppressions.display());
    let target = format!("{ARCH}-unknown-linux-gnu");
    let mut filters: Vec<&str> = filter.into_iter().collect();
    if name == THREAD[0] {
        filters.extend(["--skip", HUGE]);
        report.skip(format!("{title}: {HUGE}: 100 GiB of addresses"));
    }
    for programs in PROGRAMS {
        let mut command = checker(&["test", "-Zbuild-std", "--no-fail-fast"]);
        command
            .args(["--target", &target])
            .args(programs)
            // A folder of its own: its flags are those of no other build.
            .args(["--target-dir", &format!("target/sanitize-{name}")])
            .env("RUSTFLAGS", format!("-Zsanitizer={name}"))
            // Random sequences of operations: fewer of them.
            .env("PROPTEST_CASES", "32")
            // An allocation that is too large fails, as it does without a sanitizer.
            .env("TSAN_OPTIONS", format!("{suppressions}:{MAY_FAIL}"))
            // Memory that a device may still reach is leaked on purpose.
            .env("ASAN_OPTIONS", format!("detect_leaks=0:{MAY_FAIL}"));
        let title = format!("{title}: {}", programs[0]);
        tests(report, &title, command, &filters)?;
    }
    Ok(())
}
