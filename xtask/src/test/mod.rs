//! `cargo xtask test`: all tests, lints and checks; first those that need no device.

mod devices;
mod interop;
pub(crate) mod libtest;
pub(crate) mod offline;
pub(crate) mod report;
mod wire;

use std::panic::resume_unwind;
use std::process::ExitCode;

use soft_roce::{Driver, Options, Way};

use crate::checkers::miri;
use crate::error::Error;
use crate::jobs;
use crate::packages;
use report::Report;

/// All tests, lints and checks
///
/// First what runs anywhere: formatting, the project's rules, lints, unit tests, doctests, docs, two minutes of Miri where
/// it is installed, and seconds of valgrind. Then the tests that need an RDMA device, and our ping-pongs against C's, on
/// devices in user space. Then, on soft-RoCE of this kernel or of a virtual machine, what only a kernel can prove, and tests
/// on two machines; and those about iWARP on soft-iWARP.
///
/// With --guest or --native all of it runs on soft-RoCE, those of verbs-core and of connections on soft-iWARP, too; and in
/// virtual machines the tests of soft-RoCE itself.
///
/// To run the device tests on real hardware: `VERBS_DEVICE=mlx5_0 cargo test -- --ignored`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only tests whose name contains it
    filter: Option<String>,
    /// Only what runs anywhere
    #[arg(long, conflicts_with = "device")]
    offline: bool,
    /// Only what needs a device
    #[arg(long)]
    device: bool,
    #[command(flatten)]
    place: jobs::Place,
    /// The kernel of the virtual machine, as for `cargo xtask soft-roce`, for all tests
    #[arg(long)]
    kernel: Option<String>,
    #[command(flatten)]
    install: packages::Install,
}

/// The choices of a run.
#[derive(Debug)]
pub(crate) struct Choice {
    offline: bool,
    device: bool,
    filter: Option<String>,
    options: Options,
}

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<ExitCode, Error> {
    args.choice().main()
}

/// `cargo xtask soft-roce test`: only what needs a device, with these `options`.
pub(crate) fn device(mut options: Options) -> Result<ExitCode, Error> {
    asks_for_guest(&mut options);
    let choice = Choice {
        offline: false,
        device: true,
        filter: None,
        options,
    };
    choice.main()
}

/// A kernel that is named is to run all tests.
fn asks_for_guest(options: &mut Options) {
    if options.kernel.is_some() && options.way == Way::Auto {
        options.way = Way::Guest;
    }
}

impl Args {
    pub(crate) fn choice(self) -> Choice {
        let mut options = self.place.options(self.install.policy());
        options.kernel = self.kernel;
        asks_for_guest(&mut options);
        Choice {
            offline: !self.device,
            device: !self.offline,
            filter: self.filter,
            options,
        }
    }
}

impl Choice {
    /// Whether virtual machines may be used.
    fn has_guests(&self) -> bool {
        !matches!(self.options.way, Way::Native | Way::User)
    }

    fn main(&self) -> Result<ExitCode, Error> {
        self.install_needs()?;
        let mut report = Report::default();
        run(&mut report, self)?;
        println!("{}", report.summary());
        Ok(ExitCode::from(report.exit_code()))
    }

    /// Installs what the tests need of the system's packages, before anything is built.
    pub(crate) fn install_needs(&self) -> Result<(), Error> {
        let mut needs = packages::BUILD.to_vec();
        if self.device {
            needs.extend(packages::DEVICE_TESTS);
            needs.extend(soft_roce::needs(&self.options.of_kernel()));
            if self.has_guests() {
                // Two hosts are two virtual machines, wherever the other tests run.
                let mut two = self.options.clone();
                two.hosts = 2;
                needs.extend(soft_roce::needs(&two));
                let mut second = two;
                second.driver = Driver::Siw;
                needs.extend(soft_roce::needs(&second));
            }
        }
        packages::ensure(&needs, self.options.install)
    }
}

/// Runs the tests of `choice` and counts them.
pub(crate) fn run(report: &mut Report, choice: &Choice) -> Result<(), Error> {
    let filter = choice.filter.as_deref();
    if choice.offline {
        if filter.is_none() {
            offline::checks(report)?;
        }
        offline::tests(report, filter, !choice.device)?;
        if filter.is_none() {
            offline::waits(report)?;
            // Miri is busy with one processor only.
            let mut docs = Report::beside();
            std::thread::scope(|scope| {
                let docs = scope.spawn(|| offline::docs(&mut docs));
                miri::quick(report)?;
                docs.join().unwrap_or_else(|panic| resume_unwind(panic))
            })?;
            report.add(docs);
        }
    }
    if choice.device {
        devices::tests(report, &choice.options, filter);
        if choice.options.driver == Driver::Siw {
            report.skip("interop: the ping-pongs connect without rdma_cm, which iWARP cannot");
        } else {
            interop::tests(report, &choice.options, filter);
        }
        if choice.has_guests() && choice.options.driver == Driver::Rxe {
            let all = choice.options.way == Way::Guest;
            wire::tests(report, &choice.options, filter, all);
        }
        if choice.options.way == Way::Guest {
            let args = [
                "--package=cargo-soft-roce",
                "--features=guest-tests",
                "--test=guest",
            ];
            let (title, filters) = ("soft-RoCE's own tests", filter.as_slice());
            offline::libtest(report, title, &args, filters, false)?;
        }
    }
    if let Some(filter) = filter.filter(|_| report.is_empty()) {
        return Err(Error::new(format!("no test has `{filter}` in its name")));
    }
    Ok(())
}
