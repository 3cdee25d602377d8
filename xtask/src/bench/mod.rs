//! `cargo xtask bench`: one report of what each layer costs, beside the same work in C.

mod build;
mod callgrind;
mod chart;
mod clock;
mod contest;
mod docs;
mod figures;
mod hardware;
mod in_flight;
mod instructions;
mod machine;
mod operations;
mod perf;
mod perftest;
mod plan;
mod programs;
mod progress;
mod ratios;
mod report;
mod samples;
mod scale;
mod streams;
mod table;
mod transfer;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::Args;
use crate::error::Error;
use crate::packages;
use crate::workspace;
pub(crate) use docs::complaints;
use figures::{Figures, Group};
use machine::Machine;
use plan::{Part, Plan};
use report::Report;

const HELP: &str = "\
Measures what each layer costs, beside the same work in C, and writes one report with pictures:
bench/report.md in the target folder.

Usage: cargo xtask bench [OPTION…]

The parts of the report:
  instructions    instructions and nanoseconds per operation of verbs-core, verbs-channel and
                  verbs-async. The programs run on a stand-in for libibverbs that completes every
                  request at once; its own instructions are not counted. What is left is the
                  loop and what the binding costs. It fails if a budget is exceeded.
  perftest        latency and bandwidth of the example perf on verbs-core, in turns with C's
                  ib_send_lat, ib_write_lat, ib_read_lat, ib_atomic_lat, ib_send_bw, ib_write_bw
                  and ib_read_bw, from 2 bytes to 1 MiB, with 1 and with 16 queue pairs
  streams         the byte stream beside TCP on the same network links: round trips, bulk,
                  HTTP/2 requests
  async           latency, rate and system calls with 1, 64 and 1,024 sends in flight, of the
                  layers that sleep
  scale           instructions and nanoseconds of a completion with 1 to 4,096 channels, and of
                  joining and leaving; memory of each connection of many_clients
  transfer        with --only transfer or --full: the bandwidth of kv_transfer, which moves pages, in turns
                  with C's ib_write_bw
  build           with --only build or --full: seconds to build a crate that uses verbs-channel, from
                  nothing, and what each dependency has of them; with --beside DIR in turns with the
                  checkout in DIR

  --only PARTS    only these parts: one, or more with commas between them [default: all but transfer
                  and build]
  --full          all parts, sizes and rounds instead of some: hours
  --rounds N      that many rounds, more if other programs disturb; times on the stand-in, in instructions
                  and scale, have those of instructions [default: 5 of instructions, 7 of transfer, 2 of
                  the others; with --full 15 of instructions, 3 of scale and build, 10 of the others]
  --device NAME   on this RDMA device instead of soft-RoCE: both ends run on this host, and on it
  --peer NAME     with --device: the second end is on this device, of the same host
  --gid-index N   with --device: use this GID
  --guest         soft-RoCE in a virtual machine, even if this kernel has it
  --native        soft-RoCE of this kernel, or fail
  --update-docs   write the figures of instructions and perftest, or of one of them with --only, to
                  xtask/figures.json and into the docs that show them; perftest then has 10 rounds, unless
                  there are more. It fails if there are changes that are not committed, or if other
                  programs run
  --force         with --update-docs: write them even so
  --check         measure nothing, and check that the docs show the figures of that file (`cargo xtask tidy`
                  does so, too), and that these are of the last run here, unless that could not be shown: it
                  had too few rounds, or was on another machine
  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let dir = workspace::target_dir()?.join("bench");
    if args.flag("--check") {
        args.finish()?;
        return check(&dir);
    }
    let policy = args.policy()?;
    let plan = Plan::read(&mut args, policy)?;
    args.finish()?;
    plan.check_devices()?;
    packages::ensure(&plan.needs(), policy)?;

    let machine = Machine::this();
    if plan.updates && !plan.is_forced && !machine.unfit.is_empty() {
        let why = machine.unfit.join(", and ");
        let why =
            format!("these figures would not be fit for the docs: {why} (--force writes them)");
        return Err(Error::new(why));
    }
    let mut shown = Figures::read(&Figures::of_docs())?;
    let mut report = Report::begin(&dir, &machine)?;
    let mut problems = Vec::new();
    let mut measured = Figures::default();
    // Operations that need not be measured again.
    let mut rows = Vec::new();
    for part in &plan.parts {
        let section = match part {
            Part::Instructions => {
                let measured = instructions::measure(&plan)?;
                problems.extend(instructions::over_budget(&measured.rows));
                rows = measured.rows;
                measured.section
            }
            Part::Perftest => perftest::measure(&plan, &example("perf")?)?,
            Part::Streams => streams::measure(&plan, &example("perf")?)?,
            Part::Async => in_flight::measure(&plan, &example("perf")?)?,
            Part::Scale => scale::measure(&plan, &example("many_clients")?, &rows)?,
            Part::Transfer => transfer::measure(&plan, &example("kv_transfer")?)?,
            Part::Build => build::measure(&plan)?,
        };
        report.add(&section)?;
        for problem in &section.problems {
            problems.push(format!("{}: {problem}", part.name()));
        }
        if section.problems.is_empty() && !section.figures.is_empty() {
            let flag = if plan.updates { " --update-docs" } else { "" };
            let command = section.command.clone() + flag;
            measured.replace(Group::new(part.name(), &command, &section, &machine));
        }
    }
    keep(&dir.join(figures::LAST), &measured)?;
    if plan.updates {
        let missing = ratios::unmeasured(&measured);
        if !missing.is_empty() {
            let missing = missing.join("; ");
            return Err(Error::new(format!(
                "the docs show what was not measured: {missing}"
            )));
        }
        for group in measured.groups {
            shown.replace(group);
        }
        docs::update(&shown)?;
        shown.write(&Figures::of_docs())?;
        println!("\nwrote {} and the figures in the docs", figures::FILE);
    } else {
        for difference in docs::differences(&shown, &measured) {
            println!("{difference}");
        }
    }
    println!("\nthe report: {}", report.path().display());
    match problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Error::new(problems.join("; "))),
    }
}

/// Keeps these figures as those of the last run. Those of other parts stay.
fn keep(path: &Path, measured: &Figures) -> Result<(), Error> {
    let mut last = match path.exists() {
        true => Figures::read(path)?,
        false => Figures::default(),
    };
    for group in &measured.groups {
        last.replace(group.clone());
    }
    last.write(path)
}

/// Checks the figures in the docs: that they are those of the project's file, and of the last run.
fn check(dir: &Path) -> Result<ExitCode, Error> {
    let mut complaints = complaints()?;
    let last = dir.join(figures::LAST);
    if last.exists() {
        let shown = Figures::read(&Figures::of_docs())?;
        complaints.extend(docs::differences(&shown, &Figures::read(&last)?));
    }
    if complaints.is_empty() {
        println!("the docs show the figures of {}", figures::FILE);
        return Ok(ExitCode::SUCCESS);
    }
    Err(Error::new(complaints.join("\n")))
}

/// Builds one of the examples.
fn example(name: &str) -> Result<PathBuf, Error> {
    println!("building the example {name} (the first time takes some minutes)");
    let built = workspace::build(&[
        "build",
        "--release",
        "--package=examples",
        &format!("--bin={name}"),
        "--message-format=json-render-diagnostics",
    ])?;
    Ok(workspace::example(&built, name)?.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::{Figures, Group, HELP, Part, keep};
    use std::{env, fs, process};

    #[test]
    fn the_last_run_of_each_part_is_kept() {
        let group = |name: &str, number| {
            let mut figures = Figures::default();
            figures.replace(Group {
                name: name.to_owned(),
                about: Vec::new(),
                rows: vec![("row".to_owned(), vec![number])],
            });
            figures
        };
        let path = env::temp_dir().join(format!("xtask-figures-{}", process::id()));
        for (name, number) in [("a", 1.0), ("b", 2.0), ("a", 3.0)] {
            keep(&path, &group(name, number)).unwrap();
        }
        let kept = Figures::read(&path).unwrap();
        let row = |name| kept.group(name)?.row("row");
        assert_eq!((row("a"), row("b")), (Some(&[3.0][..]), Some(&[2.0][..])));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn help_names_every_part() {
        for part in Part::ALL {
            assert!(HELP.contains(&format!("\n  {} ", part.name())));
        }
    }
}
