//! `cargo xtask miri`: tests and random programs under Miri, which sees undefined behaviour.

use std::panic::resume_unwind;
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::{PINNED, checker, has_source, tests};
use crate::error::Error;
use crate::packages;
use crate::process::{self, succeeds};
use crate::test::report::Report;

/// Tests under Miri, with Stacked and Tree Borrows
///
/// Unit, offline and stream tests of verbs-core, verbs-channel and verbs-async, and random programs on soft-verbs,
/// with Stacked Borrows and with Tree Borrows; the tests of soft-nic with the former. The devices of these tests read what is
/// sent and write what is received, so a buffer that is freed, moved or borrowed too early is found.
///
/// Needs a nightly toolchain: rustup toolchain install nightly-2026-05-20 --component miri,rust-src
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A part that takes two minutes, with Stacked Borrows only
    #[arg(long)]
    quick: bool,
    /// Only tests whose name contains it
    filter: Option<String>,
    #[command(flatten)]
    install: packages::Install,
}

/// A model of which pointers may be used when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Stacked,
    Tree,
}

/// Test programs, package by package. Tests that Miri cannot run are marked where they are defined, with the reason.
const PROGRAMS: [&[&str]; 4] = [
    &[
        "--package=verbs-core",
        "--lib",
        "--test=offline",
        "--test=simulated",
    ],
    &["--package=verbs-channel", "--lib", "--test=offline"],
    &[
        "--package=verbs-async",
        "--lib",
        "--test=offline",
        "--test=streams",
    ],
    &["--package=soft-verbs", "--test=random"],
];

/// The card in software, with one model: each of its tests takes half a minute with Tree Borrows.
const CARD: &[&str] = &["--package=soft-nic", "--lib", "--test=card"];

/// The packages of the quick part. All are chosen each time, so that what they depend on is built once.
const QUICK: [&str; 3] = [
    "--package=verbs-core",
    "--package=verbs-channel",
    "--package=soft-verbs",
];

/// The quick part: the programs, and arguments of libtest.
const QUICK_PROGRAMS: [(&[&str], &[&str]); 2] = [
    (
        &["--lib", "--test=offline"],
        &[
            "memory::",
            // Many lengths, which take half a minute.
            "--skip=shared_bytes_are_copied_within_their_region",
            "--skip=a_byte_is_reached_through_its_word",
            "post::",
            "receive::",
            "owned::",
            // Its 65,536 requests take most of a minute.
            "--skip=batch_longer_than_any_reservation",
            "flight::tests::a_",
            "buffers::a_",
        ],
    ),
    (&["--test=random"], &["scopes_end"]),
];

/// Tests that break a promise on purpose, in soft-verbs' tests of networks.
const CAUGHT: [&str; 3] = [
    "caught::a_buffer_is_freed_while_it_is_posted",
    "caught::a_buffer_is_borrowed_while_it_is_posted",
    "caught::a_box_is_moved_after_its_address_was_taken",
];

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<ExitCode, Error> {
    packages::ensure(&packages::BUILD, args.install.policy())?;
    let mut report = Report::strict();
    match args.quick {
        true => quick(&mut report)?,
        false => all(&mut report, args.filter.as_deref())?,
    }
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}

/// All that can run under Miri, under both models.
pub(crate) fn all(report: &mut Report, filter: Option<&str>) -> Result<(), Error> {
    if !is_here(report) {
        return Ok(());
    }
    // Each is busy with one processor only.
    std::thread::scope(|scope| {
        let tree = || {
            let mut report = Report::beside();
            of(&mut report, Model::Tree, filter).map(|()| report)
        };
        let tree = scope.spawn(tree);
        report.line("Both models run beside each other, and are printed one after the other.");
        of(report, Model::Stacked, filter)?;
        report.add(tree.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        Ok(())
    })
}

/// All of it under one model.
fn of(report: &mut Report, model: Model, filter: Option<&str>) -> Result<(), Error> {
    caught(report, model)?;
    let filters: Vec<&str> = filter.into_iter().collect();
    for programs in PROGRAMS {
        run(report, model, programs, &filters)?;
    }
    if model == Model::Stacked {
        run(report, model, CARD, &filters)?;
    }
    Ok(())
}

/// A part of it that takes two minutes.
pub(crate) fn quick(report: &mut Report) -> Result<(), Error> {
    if !is_here(report) {
        return Ok(());
    }
    // It is busy with one processor only.
    std::thread::scope(|scope| {
        let others = QUICK_PROGRAMS.map(|(programs, filters)| {
            scope.spawn(move || {
                let mut report = Report::beside();
                let programs = [&QUICK, programs].concat();
                run(&mut report, Model::Stacked, &programs, filters).map(|()| report)
            })
        });
        report.line("Programs run beside each other, and are printed one after the other.");
        caught(report, Model::Stacked)?;
        for other in others {
            report.add(other.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(())
    })
}

/// Whether there is a nightly toolchain with Miri; that there is none is counted.
fn is_here(report: &mut Report) -> bool {
    let is_here = succeeds(&mut checker(&["miri", "--version"])) && has_source();
    if !is_here {
        report.lacks(format!(
            "Miri: not installed here (rustup toolchain install {PINNED} --component miri,rust-src)"
        ));
    }
    is_here
}

fn run(
    report: &mut Report,
    model: Model,
    programs: &[&str],
    filters: &[&str],
) -> Result<(), Error> {
    let mut command = miri(model);
    // A failing program does not keep the others from running.
    command.arg("--no-fail-fast").args(programs);
    let title = format!("{}: {}", model.title(), programs.join(" "));
    tests(report, &title, command, filters)
}

/// Checks that a broken promise is found, as the rest proves nothing otherwise.
fn caught(report: &mut Report, model: Model) -> Result<(), Error> {
    for test in CAUGHT {
        let step = report.start(test);
        let mut command = miri(model);
        command.args(QUICK).args(["--test=network", "--"]);
        command.args(["--ignored", "--exact", test]);
        let limit = Duration::from_secs(30 * 60);
        let quiet = process::quietly(&mut command, test, limit)?;
        if quiet.output.contains("Undefined Behavior") {
            report.pass(1);
        } else {
            report.line(&process::tail(&quiet.output, 30));
            report.fail(format!("{}: {test} is not caught", model.title()), 1);
        }
        step.end(report);
    }
    Ok(())
}

fn miri(model: Model) -> Command {
    let mut command = checker(&["miri", "test"]);
    // Random sequences of operations: few of them.
    command.env("PROPTEST_CASES", "2");
    // Addresses go to the device as integers; time, files and the environment are the host's; what
    // a device may still reach is leaked on purpose.
    let mut flags =
        String::from("-Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks");
    if model == Model::Tree {
        flags.push_str(" -Zmiri-tree-borrows");
    }
    command.env("MIRIFLAGS", flags);
    command
}

impl Model {
    const fn title(self) -> &'static str {
        match self {
            Self::Stacked => "Miri, Stacked Borrows",
            Self::Tree => "Miri, Tree Borrows",
        }
    }
}
