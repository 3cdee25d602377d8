//! `cargo xtask bench`: instructions of each operation beside C's, and times beside perftest.

mod instructions;
mod perftest;

use std::process::ExitCode;

use crate::error::Error;
use crate::jobs;
use crate::packages;
use perftest::Place;

/// Costs of each layer beside the same work in C: a table of each part
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// Pairs of runs with perftest
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Perftest on this RDMA device of this host; both ends are on it
    #[arg(long, conflicts_with = "Place")]
    device: Option<String>,
    /// The second end is on this device, of the same host
    #[arg(long, requires = "device")]
    peer: Option<String>,
    /// The index of the GID
    #[arg(long, requires = "device")]
    gid_index: Option<String>,
    #[command(flatten)]
    place: jobs::Place,
    #[command(flatten)]
    install: packages::Install,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Part {
    /// Instructions and allocations of each operation of the libraries, on a stand-in for libibverbs that completes every
    /// request at once; its own instructions are not counted. Fails if a budget is exceeded (`benches/budgets.txt` of each
    /// crate)
    Instructions,
    /// Latency and bandwidth of the example `perf` on verbs-core, in turns with C's perftest
    Perftest,
}

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<ExitCode, Error> {
    let policy = args.install.policy();
    let has = |part| args.only.is_none_or(|only| only == part);
    let (instructions, perftest) = (has(Part::Instructions), has(Part::Perftest));
    let place = match args.device {
        Some(device) => Place::Devices {
            peer: args.peer.unwrap_or_else(|| device.clone()),
            device,
            gid: args.gid_index,
        },
        None => Place::SoftRoce(Box::new(args.place.options(policy).of_kernel())),
    };
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
        perftest::measure(&place, args.rounds.into())?;
    }
    match over.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Error::new(format!("over the budget: {}", over.join(", ")))),
    }
}
