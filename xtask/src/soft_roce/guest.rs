//! The guest: a virtual machine on a stock kernel, whose root is this machine's, read-only.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context as _, Error};
use crate::packages::{self, Need};

use super::boot::boot;
use super::frame::Job;
use super::kernel::{self, Freshness};
use super::{Command, Options, session, wire};

/// What a guest needs of the system.
pub(super) const NEEDS: [Need; 3] = [Need::Qemu, Need::Kmod, Need::RdmaProviders];

/// Runs `command` in a guest, or in two.
pub(super) fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    packages::ensure(&NEEDS, options.install)?;
    let wanted = options.kernel.as_deref();
    let mut kernel = kernel::get(wanted, Freshness::Cached, options.install)?;
    let results = results_dir(options)?;
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

fn results_dir(options: &Options) -> Result<PathBuf, Error> {
    let dir = &options.results;
    let what = || format!("cannot make the results folder {}", dir.display());
    fs::create_dir_all(dir).context(what)?;
    dir.canonicalize().context(what)
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

/// A message of ours, told from the job's own output.
#[expect(clippy::print_stderr, reason = "it is for the person at the terminal")]
pub(super) fn say(text: &str) {
    eprintln!("soft-roce: {text}");
}
