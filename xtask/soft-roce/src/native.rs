//! Devices of this machine's own kernel: a driver's module, and a wire that no packet leaves.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, geteuid, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::driver::Driver;
use crate::error::{Context as _, Error};
use crate::packages::{self, Policy};
use crate::process::{
    exit_code, kill, quietly, run as run_shown, run_quietly, signal_tree, succeeds, which,
};
use crate::signals::Signals;
use crate::{Command, Options, TIMED_OUT, cargo, helper, say, wire};

/// This exists if `up` loaded the module, so that `down` unloads it.
fn loaded_mark(driver: Driver) -> &'static str {
    match driver {
        Driver::Rxe => "/run/cargo-soft-roce-loaded",
        Driver::Siw => "/run/cargo-soft-roce-loaded-siw",
    }
}

/// How long loading a module may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How this process becomes root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    Already,
    /// As root, by sudo without a password.
    Sudo,
    /// As root, by sudo that asks for a password.
    SudoAsking,
}

/// Whether the devices can be had natively, as whom; else why not and what would help.
pub(crate) fn possible(driver: Driver) -> Result<Root, String> {
    let root = root();
    if wire::is_up(driver) {
        return root.or(Ok(Root::Already));
    }
    module_exists(driver)?;
    root
}

/// Makes the devices, unless they are there, and prints what it does.
pub(crate) fn up(driver: Driver, policy: Policy) -> Result<(), Error> {
    packages::ensure(&[packages::provider(driver)], policy)?;
    if wire::is_up(driver) {
        return check_nodes(driver);
    }
    let root = possible(driver).map_err(|why| {
        let devices = driver.devices().join(" and ");
        Error::new(format!(
            "{devices} cannot be had natively: {why}; use --guest"
        ))
    })?;
    packages::ensure(&[packages::KMOD], policy)?;
    if root != Root::Already {
        say("making the devices needs root: using sudo");
        return as_root(root, "up", driver);
    }
    let module = driver.module();
    let loaded = Path::new("/sys/module").join(module).exists();
    if !loaded {
        load(module)?;
        let mark = loaded_mark(driver);
        fs::write(mark, "").context(|| format!("cannot write {mark}"))?;
    }
    // The connection manager's node; only its users miss it.
    if which("modprobe")
        .is_some_and(|modprobe| !succeeds(process::Command::new(modprobe).args(["-q", "rdma_ucm"])))
    {
        say("there is no module rdma_ucm here: programs that use librdmacm will not work");
    }
    wire::make_pair(driver, driver.native_addresses())?;
    check_nodes(driver)
}

/// Removes what [`up`] made, of each driver; the names of what was there.
pub(crate) fn down() -> Result<Vec<&'static str>, Error> {
    let there: Vec<Driver> = Driver::ALL.into_iter().filter(|it| is_there(*it)).collect();
    if there.is_empty() {
        return Ok(Vec::new());
    }
    match root().map_err(Error::new)? {
        Root::Already => {}
        root => {
            as_root(root, "down", Driver::default())?;
            return Ok(vec!["everything"]);
        }
    }
    let mut removed = Vec::new();
    for driver in there {
        removed.extend(wire::remove_pair(driver)?);
        let (mark, module) = (loaded_mark(driver), driver.module());
        if Path::new(mark).exists() {
            let modprobe = which("modprobe").unwrap_or_else(|| "modprobe".into());
            let mut unload = process::Command::new(modprobe);
            unload.args(["-r", module]);
            run_quietly(&mut unload, "unloading the kernel module", LIMIT)?;
            fs::remove_file(mark).context(|| format!("cannot remove {mark}"))?;
            removed.push(module);
        }
    }
    Ok(removed)
}

/// Whether there is something of a driver's that [`up`] made.
fn is_there(driver: Driver) -> bool {
    let netdevs = driver.netdevs();
    wire::netdev_of(driver.devices()[0]).as_deref() == Some(netdevs[0])
        || netdevs
            .iter()
            .any(|name| Path::new("/sys/class/net").join(name).exists())
        || Path::new(loaded_mark(driver)).exists()
}

/// Runs `command` on this machine.
pub(crate) fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    if options.hosts > 1 {
        return Err(Error::usage("--hosts 2 needs guests: leave --native out"));
    }
    up(options.driver, options.install)?;
    lift_memlock();
    let (devices, netdevs) = (options.driver.devices(), options.driver.netdevs());
    let env = [
        ("SOFT_ROCE", "native"),
        ("SOFT_ROCE_DRIVER", options.driver.name()),
        ("VERBS_DEVICE", devices[0]),
        ("VERBS_PEER_DEVICE", devices[1]),
        ("VERBS_NETDEV", netdevs[0]),
        ("VERBS_PEER_NETDEV", netdevs[1]),
    ];
    attach(
        options,
        command,
        &env.map(|(name, value)| (name, value.into())),
    )
}

/// Runs `command` on this machine with this environment.
pub(crate) fn attach(
    options: &Options,
    command: &Command,
    env: &[(&str, OsString)],
) -> Result<i32, Error> {
    let results = cargo::results_dir(options)?;
    let Some((program, args)) = command.argv.split_first() else {
        return Err(Error::usage("there is no program to run"));
    };
    let mut child = process::Command::new(program);
    child
        .args(args)
        .current_dir(&command.dir)
        .envs(command.env.iter().cloned())
        .envs(env.iter().map(|(name, value)| (name, value)))
        .env("SOFT_ROCE_RESULTS", results);
    if !options.attached {
        child.stdin(Stdio::null());
    }
    // On a terminal it stays in our process group, so that it may read and gets the Ctrl-C.
    let own_group = !(options.attached && io::stdin().is_terminal());
    if own_group {
        child.process_group(0);
    }
    let signals = options
        .attached
        .then(|| Signals::catch(&[SIGINT, SIGTERM, SIGHUP]));
    let signals = signals.transpose()?;
    let started = child.spawn().map_err(|error| {
        let code = helper::not_started(&error);
        Error::new(format!("cannot run `{}`: {error}", program.display())).with_code(code)
    })?;
    wait(started, options.timeout, signals, own_group)
}

fn wait(
    mut child: Child,
    limit: Option<Duration>,
    mut signals: Option<Signals>,
    own_group: bool,
) -> Result<i32, Error> {
    let deadline = limit.map(|limit| (Instant::now() + limit, limit));
    let pid = Pid::from_child(&child);
    // Its children get the signal, too. A process that has just gone needs no signal.
    let send = |signal: Signal| match own_group {
        true => drop(rustix::process::kill_process_group(pid, signal)),
        false => signal_tree(pid.as_raw_pid().cast_unsigned(), signal),
    };
    let mut received = 0;
    loop {
        if let Some(status) = child.try_wait().context(|| "cannot wait for the job")? {
            return Ok(i32::from(exit_code(status)));
        }
        for signal in signals.iter_mut().flat_map(Signals::pending) {
            received += 1;
            // The terminal sent it to the whole group, the job included.
            let has_it = !own_group && signal == SIGINT;
            let passed = if received > 1 {
                Some(Signal::KILL)
            } else {
                Signal::from_named_raw(signal)
            };
            if let Some(signal) = passed.filter(|_| received > 1 || !has_it) {
                send(signal);
            }
        }
        if let Some((deadline, limit)) = deadline
            && Instant::now() >= deadline
        {
            send(Signal::KILL);
            let ended = kill(&mut child).context(|| "cannot wait for the job")?;
            let limit = limit.as_secs_f64();
            let how = match ended {
                true => "stopped",
                false => "it cannot be killed: it runs as another user",
            };
            say(&format!(
                "the job did not end in {limit} s (--timeout): {how}"
            ));
            return Ok(TIMED_OUT);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Registered memory counts against this limit, except root's.
fn lift_memlock() {
    let infinite = Rlimit {
        current: None,
        maximum: None,
    };
    let limit = getrlimit(Resource::Memlock);
    if limit.current.is_none() || setrlimit(Resource::Memlock, infinite).is_ok() {
        return;
    }
    let own = process::id().to_string();
    let mut raise = process::Command::new("sudo");
    raise.args([
        "-n",
        "prlimit",
        "--memlock=unlimited:unlimited",
        "--pid",
        &own,
    ]);
    if !succeeds(&mut raise) {
        let kib = limit.current.unwrap_or(0) / 1024;
        say(&format!(
            "memory that can be registered is limited to {kib} KiB (ulimit -l): raise it in \
             /etc/security/limits.conf, or run as root"
        ));
    }
}

fn as_root(root: Root, what: &str, driver: Driver) -> Result<(), Error> {
    let mut sudo = process::Command::new("sudo");
    if root == Root::Sudo {
        sudo.arg("-n");
    }
    let args = [helper::NATIVE, what, driver.name()];
    run_shown(sudo.arg(helper::own_exe()?).args(args))
}

/// The part that root does: `up` or `down`.
pub(crate) fn as_asked(args: &[OsString]) -> Result<(), Error> {
    let [what, driver] = args else {
        return Err(Error::usage("up or down, and of which driver?"));
    };
    let driver = Driver::ALL.into_iter().find(|known| driver == known.name());
    match (what.to_str(), driver) {
        (Some("up"), Some(driver)) => up(driver, Policy::No),
        (Some("down"), Some(_)) => down().map(|_removed| ()),
        _ => Err(Error::usage("up or down, and of which driver?")),
    }
}

fn root() -> Result<Root, String> {
    if geteuid().is_root() {
        return is_real_root().map(|()| Root::Already);
    }
    if succeeds(process::Command::new("sudo").args(["-n", "true"])) {
        Ok(Root::Sudo)
    } else if io::stdin().is_terminal() && which("sudo").is_some() {
        Ok(Root::SudoAsking)
    } else {
        Err(
            "making RDMA devices needs root: there is no sudo without a password here, and no \
             terminal to ask for one"
                .to_owned(),
        )
    }
}

/// A container's root may lack what it takes.
fn is_real_root() -> Result<(), String> {
    const CAP_NET_ADMIN: u32 = 12;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    if effective.is_some_and(|mask| mask & (1 << CAP_NET_ADMIN) == 0) || !initial {
        return Err(
            "this root is a container's (no CAP_NET_ADMIN in the initial user namespace)"
                .to_owned(),
        );
    }
    Ok(())
}

/// Whether the running kernel has the module, loaded or to be loaded.
fn module_exists(driver: Driver) -> Result<(), String> {
    let module = driver.module();
    if Path::new("/sys/module").join(module).exists() {
        return Ok(());
    }
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    if !Path::new("/proc/modules").exists() {
        return Err(format!(
            "the kernel {release} has no {module}, and loads no modules"
        ));
    }
    let dir = Path::new("/lib/modules").join(&*release);
    let listed = ["modules.dep", "modules.builtin"].iter().any(|list| {
        let list = fs::read_to_string(dir.join(list)).unwrap_or_default();
        let file = format!("/{module}.ko");
        list.lines().any(|line| line.contains(&file))
    });
    if listed {
        return Ok(());
    }
    let hint = match driver {
        Driver::Rxe => "on Debian in kernels that are not cloud kernels",
        Driver::Siw => "on Debian in none: --guest builds it for its own kernel",
    };
    Err(format!(
        "the kernel {release} has no module {module} in {} (on Ubuntu it is in the package \
         linux-modules-extra-{release}, {hint})",
        dir.display()
    ))
}

fn load(module: &str) -> Result<(), Error> {
    let program = which("modprobe").unwrap_or_else(|| "modprobe".into());
    let mut modprobe = process::Command::new(program);
    modprobe.arg(module);
    let quiet = quietly(&mut modprobe, "loading the kernel module", LIMIT)?;
    if quiet.success() {
        return Ok(());
    }
    let text = quiet.output.trim();
    Err(Error::new(format!(
        "cannot load the kernel module {module}: {text}{}",
        load_hint(text)
    )))
}

/// A hint for an error of `modprobe`.
fn load_hint(text: &str) -> &'static str {
    if text.contains("not found") {
        ": install the package with this kernel's modules (linux-modules-extra-… on Ubuntu, \
         linux-image-amd64 instead of a cloud kernel on Debian), or use --guest"
    } else if text.contains("Operation not permitted") {
        ": this needs root (CAP_SYS_MODULE): use sudo, or --guest"
    } else if text.contains("Key was rejected") {
        ": Secure Boot refuses unsigned modules: use --guest"
    } else {
        ": use --guest"
    }
}

/// Without its node in /dev no program finds a device.
fn check_nodes(driver: Driver) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let missing = || {
        let dir = fs::read_dir("/sys/class/infiniband_verbs")
            .into_iter()
            .flatten();
        // Names of these devices only: a container need not have those of others.
        let mut names = dir.filter_map(|entry| {
            let entry = entry.ok()?;
            let device = fs::read_to_string(entry.path().join("ibdev")).ok()?;
            let is_ours = driver.devices().contains(&device.trim());
            is_ours.then(|| entry.file_name().into_string().ok())?
        });
        names.find(|name| !Path::new("/dev/infiniband").join(name).exists())
    };
    while let Some(name) = missing() {
        if Instant::now() > deadline {
            return Err(Error::new(format!(
                "/dev/infiniband/{name} does not exist: udev makes it, and in a container \
                 `--device /dev/infiniband/{name}` passes it on"
            )));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::load_hint;

    #[test]
    fn every_way_to_fail_has_a_hint() {
        for (output, hint) in [
            (
                "modprobe: FATAL: Module rdma_rxe not found in directory /lib/modules/6",
                "extra",
            ),
            (
                "could not insert 'rdma_rxe': Operation not permitted",
                "sudo",
            ),
            (
                "could not insert 'rdma_rxe': Key was rejected by service",
                "Secure Boot",
            ),
            ("anything else", "--guest"),
        ] {
            assert!(load_hint(output).contains(hint), "{output}");
        }
    }
}
