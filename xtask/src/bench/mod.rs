//! `cargo xtask bench`: one report of what each layer costs, beside the same work in C.

mod bandwidth;
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
mod report;
mod samples;
mod scale;
mod streams;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::args::Args;
use crate::error::Error;
use crate::jobs;
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
  build           with --only build or --full: seconds to build a crate that uses verbs-channel, from
                  nothing, and what each dependency has of them; with --beside DIR in turns with the
                  checkout in DIR

  --only PARTS    only these parts: one, or more with commas between them [default: all but build]
  --full          all parts, sizes and ten rounds instead of some and two: an hour or more
  --rounds N      that many rounds: more if other programs disturb
  --device NAME   on this RDMA device instead of soft-RoCE: both ends run on this host, and on it
  --peer NAME     with --device: the second end is on this device, of the same host
  --gid-index N   with --device: use this GID
  --guest         soft-RoCE in a virtual machine, even if this kernel has it
  --native        soft-RoCE of this kernel, or fail
  --update-docs   write the figures of instructions and perftest, or of one of them with --only,
                  to xtask/figures.json and into the docs that show them
  --check         measure nothing, and check that the docs show the figures of that file, and
                  that it has every operation of the table (`cargo xtask tidy` does so, too)
  --bandwidth     instead, compare the bandwidth of kv_transfer with that of C's ib_write_bw over
                  soft-RoCE, in pairs of runs
  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let policy = args.policy()?;
    if args.flag("--bandwidth") {
        let options = jobs::options(&mut args, policy)?;
        args.finish()?;
        let needs = [&packages::BUILD[..], &[packages::PERFTEST]].concat();
        packages::ensure(&[needs, soft_roce::needs(&options)].concat(), policy)?;
        bandwidth::compare(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.flag("--check") {
        args.finish()?;
        return check();
    }
    let updates = args.flag("--update-docs");
    let plan = Plan::read(&mut args, policy)?;
    args.finish()?;
    packages::ensure(&plan.needs(), policy)?;

    let dir = workspace::target_dir()?.join("bench");
    let machine = Machine::this();
    let mut figures = Figures::read()?;
    let mut report = Report::begin(&dir, &machine)?;
    let mut problems = Vec::new();
    for part in &plan.parts {
        let section = match part {
            Part::Instructions => {
                let measured = instructions::measure(plan.timings())?;
                problems.extend(instructions::over_budget(&measured.rows));
                measured.section
            }
            Part::Perftest => perftest::measure(&plan, &example("perf")?)?,
            Part::Streams => streams::measure(&plan, &example("perf")?)?,
            Part::Async => in_flight::measure(&plan, &example("perf")?)?,
            Part::Scale => scale::measure(&plan, &example("many_clients")?)?,
            Part::Build => build::measure(&plan)?,
        };
        report.add(&section)?;
        if section.missing.is_empty() && !section.figures.is_empty() {
            let flag = if updates { " --update-docs" } else { "" };
            let command = section.command.clone() + flag;
            let group = Group::new(part.name(), &command, &section, &machine);
            if updates {
                figures.replace(group);
            } else if *part == Part::Instructions
                && let Some(news) = docs::news(&figures, &group)
            {
                println!("{news}");
            }
        }
        if !section.missing.is_empty() {
            let missing = section.missing.join("; ");
            problems.push(format!("{}: not measured: {missing}", part.name()));
        }
    }
    if updates {
        figures.write()?;
        docs::update(&figures)?;
        println!("\nwrote {} and the figures in the docs", figures::FILE);
    }
    println!("\nthe report: {}", report.path().display());
    match problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Error::new(problems.join("; "))),
    }
}

/// Checks the figures in the docs.
fn check() -> Result<ExitCode, Error> {
    let complaints = complaints()?;
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
    use super::{HELP, Part};

    #[test]
    fn help_names_every_part() {
        for part in Part::ALL {
            assert!(HELP.contains(&format!("\n  {} ", part.name())));
        }
    }
}
