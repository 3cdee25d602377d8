//! This machine's support for soft-RoCE and soft-iWARP, and the missing parts.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::packages;
use crate::process::{output, which};

use crate::guest::qemu;
use crate::{Driver, Options, Way, cargo, choose, guest, kernel, native, wire};

/// All of it for the driver of `options`, as text; `name` is what this program is called.
pub(crate) fn report(name: &str, options: &Options) -> String {
    let driver = options.driver;
    let chosen = match choose(options) {
        Way::Native => "natively",
        Way::User => "in user space",
        _ => "in a guest",
    };
    let native = match native::possible(driver) {
        Ok(native::Root::Already) => "yes".to_owned(),
        Ok(native::Root::Sudo) => "yes, with sudo".to_owned(),
        Ok(native::Root::SudoAsking) => "yes, with --native: sudo asks for a password".to_owned(),
        Err(why) => format!("no: {why}"),
    };
    let needs = guest::needs(driver);
    let missing = needs.iter().filter(|need| !need.is_met());
    let missing: Vec<&str> = missing.map(|need| need.what).collect();
    let guest = match missing.is_empty() {
        true => format!("guest: yes: {}", emulator()),
        false => format!(
            "guest: after `{name} up --guest`, which installs what is missing: {}",
            missing.join(", ")
        ),
    };
    let kernels = kernel::cached();
    let listed = kernels
        .iter()
        .map(|(request, version)| format!("{version} ({request})"));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let cache = kernel::cache().map_or_else(|e| e.to_string(), |dir| dir.display().to_string());
    let kernels = match kernels.is_empty() {
        true => "none yet, the first run fetches one".to_owned(),
        false => listed,
    };
    let results = cargo::dir().map(|dir| dir.join("results").display().to_string());
    let lines = [
        format!("`test` and `run` are {chosen}"),
        format!("native: {native}"),
        guest,
        format!("user space: `{name} run --user`, on any kernel"),
        format!("RDMA devices here: {}", devices()),
        format!("guest kernels in {cache}: {kernels}"),
        format!("soft-iWARP (--driver siw): {}", soft_iwarp(name)),
        format!(
            "results in {}",
            results.unwrap_or_else(|error| error.to_string())
        ),
    ];
    lines.join("\n")
}

/// Where the module `siw` comes from, for the driver that is not in every kernel.
fn soft_iwarp(name: &str) -> String {
    let native = match native::possible(Driver::Siw) {
        Ok(_) => "natively: this kernel has the module",
        Err(_) => "this kernel has no module siw",
    };
    let built = kernel::with_siw();
    let guest = match built.is_empty() {
        true => format!("guest: no kernel with it yet, `{name} up --guest --driver siw` gets one"),
        false => format!("guest: {}", built.join(", ")),
    };
    format!("{native}; {guest}")
}

fn emulator() -> String {
    let how = match qemu::kvm_works() {
        true => "KVM".to_owned(),
        false => format!("emulation ({})", why_no_kvm()),
    };
    let version = output(Command::new(packages::qemu()).arg("--version")).unwrap_or_default();
    let version = version.lines().next().unwrap_or_default().to_owned();
    format!("{version}, by {how}")
}

fn why_no_kvm() -> &'static str {
    if !Path::new("/dev/kvm").exists() {
        "there is no /dev/kvm"
    } else if fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        "/dev/kvm cannot be opened: is this user in the group kvm?"
    } else {
        "/dev/kvm has no hardware behind it"
    }
}

fn devices() -> String {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut described: Vec<String> = names.map(|name| describe(&name)).collect();
    described.sort();
    if described.is_empty() {
        return "none".to_owned();
    }
    if which("ibv_devinfo").is_some() && !packages::RDMA_PROVIDERS.is_met() {
        described
            .push("(programs see none of them without the package ibverbs-providers)".to_owned());
    }
    described.join(", ")
}

fn describe(name: &str) -> String {
    let state = fs::read_to_string(format!("/sys/class/infiniband/{name}/ports/1/state"));
    let state = state.unwrap_or_default();
    // "4: ACTIVE"
    let state = state
        .trim()
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .to_owned();
    let netdev = wire::netdev_of(name).unwrap_or_else(|| "no link".to_owned());
    format!("{name} ({state}, {netdev})")
}
