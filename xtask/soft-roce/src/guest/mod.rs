//! The guest: a virtual machine on a stock kernel, whose root is this machine's, read-only.

use std::env;
use std::path::Path;

use crate::error::Error;
use crate::packages::{self, Need};

use crate::kernel::{self, Freshness};
use crate::{Command, Options, cargo, say, wire};
use boot::boot;
use frame::Job;

pub(crate) mod agent;
mod boot;
pub(crate) mod frame;
mod initramfs;
mod job;
pub(crate) mod qemu;
mod session;

/// What a guest needs of the system.
pub(crate) const NEEDS: [Need; 3] = [packages::QEMU, packages::KMOD, packages::RDMA_PROVIDERS];

/// Runs `command` in a guest, or in two.
pub(crate) fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    packages::ensure(&NEEDS, options.install)?;
    let wanted = options.kernel.as_deref();
    let mut kernel = kernel::get(wanted, Freshness::Cached, options.install)?;
    let results = cargo::results_dir(options)?;
    let mut guests = boot(options, &mut kernel, &results);
    if !kernel.is_intact() {
        say("the guest's kernel in the cache is damaged: fetching it again");
        drop((guests, kernel));
        kernel = kernel::get(wanted, Freshness::Newest, options.install)?;
        guests = boot(options, &mut kernel, &results);
    }
    let guests = guests?;
    let jobs = (1..=options.hosts).map(|host| job(options, command, host, &results));
    session::run(options, guests, jobs.collect())
}

/// What guest number `host` is to run.
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
    set("VERBS_DEVICE", wire::DEVICES[0]);
    if options.hosts == 2 {
        set("VERBS_NETDEV", wire::HOSTS_NETDEV);
        set("SOFT_ROCE_HOST", &host.to_string());
        let peer = wire::GUEST_ADDRESSES[1 - index];
        set("SOFT_ROCE_PEER", &peer.to_string());
    } else {
        set("VERBS_NETDEV", wire::NETDEVS[0]);
        set("VERBS_PEER_DEVICE", wire::DEVICES[1]);
        set("VERBS_PEER_NETDEV", wire::NETDEVS[1]);
    }
    env.push(("SOFT_ROCE_RESULTS".into(), results.into()));
    Job {
        argv: command.argv.clone(),
        dir: command.dir.clone(),
        env,
        stdin: options.attached && host == 1,
        merged: session::outputs_are_one(),
        terminal: (options.terminal && host == 1)
            .then(session::terminal_size)
            .flatten(),
    }
}
