//! Soft-RoCE: an RDMA device on a machine without RDMA hardware.
//!
//! Natively where the kernel offers `rdma_rxe`; else in a guest, a virtual machine on a stock
//! kernel that sees this machine's files, read-only, so that what was built here runs there.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::packages::{self, Need};
use crate::workspace;

mod agent;
mod apt;
mod boot;
mod cli;
mod elf;
mod fetch;
mod frame;
mod guest;
mod initramfs;
mod job;
mod kernel;
mod launch;
mod modules;
mod native;
mod netlink;
mod qemu;
mod session;
mod signals;
mod status;
mod unpack;
mod wire;

pub(crate) use cli::main;
pub(crate) use qemu::Accel;

/// Where the RDMA device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Natively if that works here, else in a guest.
    Auto,
    /// On this machine's own kernel.
    Native,
    /// In a virtual machine.
    Guest,
}

/// How to run something.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) way: Way,
    /// The job's time limit; `None` is none.
    pub(crate) timeout: Option<Duration>,
    /// 1, or 2 guests on one wire.
    pub(crate) hosts: u8,
    pub(crate) install: packages::Policy,
    /// The guest's kernel: a package, or the start of a version.
    pub(crate) kernel: Option<String>,
    pub(crate) accel: Accel,
    pub(crate) memory_mib: u32,
    /// The guest's processors.
    pub(crate) cpus: Option<u32>,
    /// The one folder that a guest can write to, at the same path.
    pub(crate) results: PathBuf,
    /// Whether the job gets our standard input and our signals, as if it ran in our place.
    pub(crate) attached: bool,
    /// Whether the job gets a terminal, which is then ours.
    pub(crate) terminal: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            way: Way::Auto,
            timeout: Some(Duration::from_secs(20 * 60)),
            hosts: 1,
            install: packages::Policy::Ask,
            kernel: None,
            accel: Accel::Auto,
            memory_mib: 1024,
            cpus: None,
            results: workspace::root().join("target/soft-roce/results"),
            attached: false,
            terminal: false,
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) argv: Vec<OsString>,
    pub(crate) dir: PathBuf,
    /// Set in addition to this process' own environment.
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// What a run ends with whose time is over, as `timeout` has it.
const TIMED_OUT: i32 = 124;

/// Runs `command` where an RDMA device is, with its output shown as it comes.
///
/// Returns its exit status, 128 + the signal that killed it, or 124 if its time was over.
pub(crate) fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    match choose(options.way, options.hosts) {
        Way::Native => native::run(options, command),
        _ => guest::run(options, command),
    }
}

/// What [`run`] needs of the system, to be installed before anything else is done.
pub(crate) fn needs(options: &Options) -> Vec<Need> {
    match choose(options.way, options.hosts) {
        Way::Native => vec![Need::RdmaProviders, Need::Kmod],
        // The stock kernels of most distributions are packed with xz.
        _ => [&guest::NEEDS[..], &[Need::Xz]].concat(),
    }
}

/// Never returns in a guest's init.
pub(crate) fn agent_if_init() {
    if agent::is_init() {
        agent::run();
    }
}

/// The way to go: natively if that works without a question, else a guest.
fn choose(way: Way, hosts: u8) -> Way {
    match way {
        Way::Auto if hosts > 1 => Way::Guest,
        Way::Auto => match native::possible() {
            Ok(native::Root::Already | native::Root::Sudo) => Way::Native,
            Ok(native::Root::SudoAsking) | Err(_) => Way::Guest,
        },
        asked => asked,
    }
}
