//! `cargo xtask bench`: instructions of each operation beside C's, and times beside perftest.

mod instructions;
mod perftest;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::Args;
use crate::error::Error;
use crate::jobs;
use crate::packages;
use perftest::Place;

const HELP: &str = "\
Measures what each layer costs, beside the same work in C, and prints a table of each part.

Usage: cargo xtask bench [OPTION…]

The parts:
  instructions    instructions and allocations of each operation of verbs-core, verbs-channel and verbs-async, on a
                  stand-in for libibverbs that completes every request at once; its own instructions are not counted.
                  It fails if a budget is exceeded (`benches/budgets.txt` of each crate)
  perftest        latency and bandwidth of the example `perf` on verbs-core, in turns with C's perftest, on soft-RoCE or
                  on a device

  --only PART     only this part
  --rounds N      pairs of runs with perftest [default: 5]
  --device NAME   perftest on this RDMA device of this host; both ends are on it
  --peer NAME     with --device: the second end is on this device, of the same host
  --gid-index N   with --device: use this GID
  --guest         soft-RoCE in a virtual machine, even if this kernel has it
  --native        soft-RoCE of this kernel, or fail
  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let policy = args.policy()?;
    let only = args.value("--only")?;
    let has = |part| only.as_deref().is_none_or(|only| only == part);
    let (instructions, perftest) = (has("instructions"), has("perftest"));
    if !(instructions || perftest) {
        return Err(args.usage("the parts are `instructions` and `perftest`"));
    }
    let rounds = args.value("--rounds")?.unwrap_or_else(|| "5".to_owned());
    let rounds = rounds.parse().ok().filter(|rounds| *rounds > 0);
    let rounds = rounds.ok_or_else(|| args.usage("--rounds takes a number"))?;
    let (device, peer) = (args.value("--device")?, args.value("--peer")?);
    let gid = args.value("--gid-index")?;
    let place = match device {
        Some(device) => Place::Devices {
            peer: peer.unwrap_or_else(|| device.clone()),
            device,
            gid,
        },
        None => Place::SoftRoce(Box::new(jobs::options(&mut args, policy)?.of_kernel())),
    };
    args.finish()?;
    let mut needs = packages::BUILD.to_vec();
    if instructions {
        needs.push(packages::VALGRIND);
    }
    if perftest {
        needs.extend([packages::PERFTEST, packages::TASKSET]);
        if let Place::SoftRoce(options) = &place {
            needs.extend(soft_roce::needs(options));
        }
    }
    packages::ensure(&needs, policy)?;
    let over = match instructions {
        true => instructions::measure()?,
        false => Vec::new(),
    };
    if perftest {
        perftest::measure(&place, rounds)?;
    }
    match over.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Error::new(format!("over the budget: {}", over.join(", ")))),
    }
}
