//! An RDMA device on a machine without RDMA hardware, for tests and programs of any crate.
//!
//! Soft-RoCE (`rdma_rxe`) is the kernel's RDMA over ordinary Ethernet. Where this machine's kernel
//! has it, it is used natively. Elsewhere a command runs in user space: programs find a libibverbs of this project's, whose
//! cards are in their processes, and join over UDP. [Asked](Way::Guest) to, and for what only a kernel has, it runs in a guest:
//! a virtual machine on a stock kernel of the distribution that starts in two seconds, needs no root, and sees this machine's
//! files, read-only, so that programs built here run there.
//!
//! The program `cargo-soft-roce` is this library's [`cli::main`]; its README is the user's guide.
//! Task runners call the library:
//!
//! ```no_run
//! use soft_roce::{Command, Error, Options};
//!
//! fn main() -> Result<(), Error> {
//!     soft_roce::start();
//!     let options = Options::default();
//!     soft_roce::packages::ensure(&soft_roce::needs(&options), options.install)?;
//!     let code = soft_roce::run(&options, &Command::here(["ibv_devices"])?)?;
//!     assert_eq!(code, 0);
//!     Ok(())
//! }
//! ```
//!
//! # What this crate does not do
//!
//! It measures nothing: message rates under emulation are those of an emulated kernel. It is for Linux,
//! on x86-64 and arm64, and knows the package managers of Debian, Ubuntu, Fedora and Arch. On arm64 it
//! was never run.
//!
//! # What the command finds
//!
//! Two devices, `rxe0` and `rxe1`, on two network links that are connected to each other. Their names
//! are in `VERBS_DEVICE`, `VERBS_PEER_DEVICE`, `VERBS_NETDEV` and `VERBS_PEER_NETDEV`; `SOFT_ROCE` is
//! `native`, `guest` or `user`, `SOFT_ROCE_DRIVER` is `rxe` or `siw`, and `SOFT_ROCE_RESULTS` is a folder whose
//! files outlive a guest.
//!
//! In user space they are `soft0` and `soft1`, without links.
//!
//! With [`Driver::Siw`] they are `siw0` and `siw1`, of soft-iWARP. If the kernel lacks that module, as
//! Debian's does, it is built once for the guest, from the distribution's kernel source.
// The nightly toolchain of docs.rs labels what a feature adds.
#![cfg_attr(docsrs, feature(doc_cfg))]

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use error::Context as _;
use packages::{Need, Policy};

mod cargo;
pub mod cli;
mod driver;
mod elf;
pub mod error;
mod guest;
mod helper;
mod kernel;
mod native;
mod netlink;
pub mod packages;
pub mod process;
pub mod progress;
mod signals;
mod start;
mod status;
pub mod stream;
mod test;
mod user;
mod wire;

pub use driver::Driver;
pub use error::Error;
pub use guest::qemu::Accel;
pub use helper::own_exe;
pub use start::start;

/// Where the RDMA device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// Natively if that works here, else in user space; in a guest if it is asked for what user space has not: a driver
    /// other than soft-RoCE, a kernel, two hosts.
    Auto,
    /// On this machine's own kernel.
    Native,
    /// In a virtual machine.
    Guest,
    /// In the processes themselves, by a libibverbs and a librdmacm of this project's: no kernel has a part in it.
    User,
}

/// How to run something.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Where the device is to be.
    pub way: Way,
    /// Whose device it is.
    pub driver: Driver,
    /// The command's time limit; `None` is none. 20 minutes unless set.
    pub timeout: Option<Duration>,
    /// 1, or 2 guests on one wire, each with one device.
    pub hosts: u8,
    /// The policy on missing packages.
    pub install: Policy,
    /// The guest's kernel: a package, or the start of a version; the distribution's unless set.
    pub kernel: Option<String>,
    /// How the guest's instructions are run.
    pub accel: Accel,
    /// The guest's memory.
    pub memory_mib: u32,
    /// The guest's processors; 2 unless set.
    pub cpus: Option<u32>,
    /// The one folder that a guest can write to, at the same path. Unless set, `soft-roce/results`
    /// in the target folder of the crate in the current folder.
    pub results: Option<PathBuf>,
    /// Whether the job gets our standard input and our signals, as if it ran in our place.
    pub(crate) attached: bool,
    /// Whether the job gets a terminal, which is then ours.
    pub(crate) terminal: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            way: Way::Auto,
            driver: Driver::Rxe,
            timeout: Some(Duration::from_secs(20 * 60)),
            hosts: 1,
            install: Policy::Ask,
            kernel: None,
            accel: Accel::Auto,
            memory_mib: 1024,
            cpus: None,
            results: None,
            attached: false,
            terminal: false,
        }
    }
}

impl Options {
    /// The same with devices of a kernel, if no way is asked for: natively if that works without a question, else in a guest.
    #[must_use]
    pub fn of_kernel(&self) -> Self {
        let is_native = || {
            let possible = native::possible(self.driver);
            matches!(possible, Ok(native::Root::Already | native::Root::Sudo))
        };
        let way = match self.way {
            Way::Auto if self.hosts < 2 && is_native() => Way::Native,
            Way::Auto => Way::Guest,
            asked => asked,
        };
        Self {
            way,
            ..self.clone()
        }
    }

    /// The words that [`cli::main`] takes for these options.
    #[must_use]
    pub fn to_args(&self) -> Vec<OsString> {
        let way = match self.way {
            Way::Auto => None,
            Way::Native => Some("--native".into()),
            Way::Guest => Some("--guest".into()),
            Way::User => Some("--user".into()),
        };
        let install = match self.install {
            Policy::Ask => None,
            Policy::Yes => Some("--yes".into()),
            Policy::No => Some("--no-install".into()),
        };
        let seconds = self.timeout.map_or(0.0, |limit| limit.as_secs_f64());
        let fixed = [
            format!("--accel={}", self.accel.name()),
            format!("--driver={}", self.driver.name()),
            format!("--hosts={}", self.hosts),
            format!("--memory={}", self.memory_mib),
            format!("--timeout={seconds}"),
        ];
        let cpus = self.cpus.map(|cpus| format!("--cpus={cpus}"));
        let kernel = self.kernel.as_ref().map(|name| format!("--kernel={name}"));
        let words = fixed.into_iter().chain(cpus).chain(kernel);
        let mut args: Vec<OsString> = words.map(OsString::from).collect();
        args.extend(way.into_iter().chain(install));
        if let Some(dir) = &self.results {
            args.extend(["--results".into(), dir.into()]);
        }
        args
    }
}

/// A command to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Command {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The folder that it runs in.
    pub dir: PathBuf,
    /// Set in addition to this process' own environment.
    pub env: Vec<(OsString, OsString)>,
}

impl Command {
    /// A command in the current folder.
    ///
    /// # Errors
    ///
    /// If the current folder is gone.
    pub fn here(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, Error> {
        Ok(Self {
            argv: argv.into_iter().map(Into::into).collect(),
            dir: env::current_dir().context(|| "cannot find the current folder")?,
            env: Vec::new(),
        })
    }
}

/// Exit code of a run whose time is over, as of `timeout`.
pub(crate) const TIMED_OUT: i32 = 124;

/// Runs `command` where an RDMA device is, with its output shown as it comes.
///
/// Returns its exit status, 128 + the signal that killed it, or 124 if its time was over.
///
/// # Errors
///
/// If there is no way to have a device here, and if the guest fails; the message says what to do.
pub fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    match choose(options) {
        Way::Native => native::run(options, command),
        Way::User => user::run(options, command),
        _ => guest::run(options, command),
    }
}

/// Packages that [`run`] needs, to be installed before anything else is done.
#[must_use]
pub fn needs(options: &Options) -> Vec<Need> {
    match choose(options) {
        Way::Native => vec![packages::provider(options.driver), packages::KMOD],
        Way::User => Vec::new(),
        // The stock kernels of most distributions are packed with xz.
        _ => [&guest::needs(options.driver)[..], &[packages::XZ]].concat(),
    }
}

/// Makes ready what [`run`] needs beside the system's packages, so that it starts at once: for a guest
/// its kernel, and the module of the driver; in user space the library.
///
/// # Errors
///
/// If it cannot be had: natively there is nothing to be made, and the kernel has the driver or not.
pub fn prepare(options: &Options) -> Result<(), Error> {
    match choose(options) {
        Way::Native => native::possible(options.driver)
            .map(|_root| ())
            .map_err(Error::new),
        Way::User => user::prepare(options).map(|_folder| ()),
        _ => guest::kernel(options, kernel::Freshness::Cached).map(|_kernel| ()),
    }
}

/// Makes the library of devices in user space, and returns the folder that has it alone, for a search path.
///
/// # Errors
///
/// If it cannot be built.
pub fn library(options: &Options) -> Result<PathBuf, Error> {
    user::prepare(options)
}

/// The way to go: natively if that works without a question, else in user space, or in a guest for what that has not.
fn choose(options: &Options) -> Way {
    let is_for_guests =
        options.hosts > 1 || options.driver != Driver::Rxe || options.kernel.is_some();
    match (options.way, options.of_kernel().way) {
        (Way::Auto, Way::Guest) if !is_for_guests && user::is_possible() => Way::User,
        (_, way) => way,
    }
}

/// Prints a message of this program, which differs from the job's output by its prefix.
fn say(text: &str) {
    progress::print_error(&format!("soft-roce: {text}"));
}

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;

#[cfg(test)]
mod tests {
    use super::{Accel, Driver, Options, Policy, Way, cli};
    use std::time::Duration;

    #[test]
    fn options_are_read_as_they_were_written() {
        let options = Options {
            way: Way::Guest,
            driver: Driver::Siw,
            timeout: Some(Duration::from_millis(1500)),
            hosts: 2,
            install: Policy::No,
            kernel: Some("6.12".into()),
            accel: Accel::Tcg,
            memory_mib: 300,
            cpus: Some(3),
            results: Some("/a b".into()),
            ..Options::default()
        };
        for options in [
            options,
            Options {
                timeout: None,
                ..Options::default()
            },
        ] {
            let read = cli::options(options.to_args()).unwrap().unwrap();
            assert_eq!(format!("{read:?}"), format!("{options:?}"));
        }
    }
}
