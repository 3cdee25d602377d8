//! The guest: a virtual machine on a stock kernel, whose root is this machine's, read-only.

use std::env;
use std::path::Path;

use crate::error::Error;
use crate::packages::{self, Need};

use crate::driver::Driver;
use crate::kernel::{self, Freshness, Kernel};
use crate::{Command, Options, cargo, say, wire};
use boot::boot;
use frame::Job;

pub(crate) mod agent;
mod boot;
pub(crate) mod frame;
mod initramfs;
mod job;
mod output;
pub(crate) mod qemu;
mod session;

/// Packages that a guest needs.
pub(crate) fn needs(driver: Driver) -> [Need; 3] {
    [packages::QEMU, packages::KMOD, packages::provider(driver)]
}

/// Runs `command` in a guest, or in two.
pub(crate) fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    packages::ensure(&needs(options.driver), options.install)?;
    let mut kernel = kernel(options, Freshness::Cached)?;
    let results = cargo::results_dir(options)?;
    let mut guests = boot(options, &mut kernel, &results);
    if !kernel.is_intact() {
        say("the guest's kernel in the cache is damaged: fetching it again");
        drop((guests, kernel));
        kernel = self::kernel(options, Freshness::Newest)?;
        guests = boot(options, &mut kernel, &results);
    }
    let guests = guests?;
    let jobs = (1..=options.hosts).map(|host| job(options, command, host, &results));
    session::run(options, guests, jobs.collect())
}

/// The kernel that `options` ask for, with the module of their driver.
pub(crate) fn kernel(options: &Options, freshness: Freshness) -> Result<Kernel, Error> {
    let get = |freshness| kernel::get(options.kernel.as_deref(), freshness, options.install);
    let mut kernel = get(freshness)?;
    if options.driver != Driver::Siw || kernel.add_siw(options.install)? {
        return Ok(kernel);
    }
    // A superseded kernel's headers are gone from the mirrors: the newest one's are there.
    let superseded = kernel.release.clone();
    drop(kernel);
    kernel = get(Freshness::Newest)?;
    if kernel.release != superseded && kernel.add_siw(options.install)? {
        return Ok(kernel);
    }
    Err(Error::new(format!(
        "the kernel {} has no module siw, and apt knows of no headers and source to build it \
         with: choose another kernel with --kernel, or run `apt-get update`",
        kernel.release
    )))
}

/// The job of guest number `host`.
fn job(options: &Options, command: &Command, host: u8, results: &Path) -> Job {
    let index = usize::from(host - 1);
    let mut env: Vec<_> = env::vars_os().collect();
    // The folder that this names is not in the guest.
    env.retain(|(name, _)| name != "XDG_RUNTIME_DIR");
    // It is root there, whose programs are in folders that a user's PATH may leave out.
    if let Some((_, path)) = env.iter_mut().find(|(name, _)| name == "PATH") {
        path.push(":/usr/sbin:/sbin");
    }
    env.extend(command.env.iter().cloned());
    let mut set = |name: &str, value: &str| env.push((name.into(), value.into()));
    set("SOFT_ROCE", "guest");
    set("SOFT_ROCE_DRIVER", options.driver.name());
    let (devices, netdevs) = (options.driver.devices(), options.driver.netdevs());
    set("VERBS_DEVICE", devices[0]);
    if options.hosts == 2 {
        set("VERBS_NETDEV", wire::HOSTS_NETDEV);
        set("SOFT_ROCE_HOST", &host.to_string());
        let peer = wire::GUEST_ADDRESSES[1 - index];
        set("SOFT_ROCE_PEER", &peer.to_string());
    } else {
        set("VERBS_NETDEV", netdevs[0]);
        set("VERBS_PEER_DEVICE", devices[1]);
        set("VERBS_PEER_NETDEV", netdevs[1]);
    }
    env.push(("SOFT_ROCE_RESULTS".into(), results.into()));
    Job {
        argv: command.argv.clone(),
        dir: command.dir.clone(),
        env,
        stdin: options.attached && host == 1,
        merged: output::are_one(),
        terminal: (options.terminal && host == 1)
            .then(session::terminal_size)
            .flatten(),
    }
}
