//! What this machine offers for soft-RoCE, and what is missing.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::packages::{self, Need};
use crate::process::{output, which};

use super::{Way, guest, kernel, native, qemu, wire};

/// All of it, as text.
pub(super) fn report() -> String {
    let mut lines = vec![format!("RDMA devices: {}", devices())];
    lines.push(match native::possible() {
        Ok(native::Root::Already) => "native: yes".to_owned(),
        Ok(native::Root::Sudo) => "native: yes, with sudo".to_owned(),
        Ok(native::Root::SudoAsking) => {
            "native: yes, with --native: sudo asks for a password".to_owned()
        }
        Err(why) => format!("native: no: {why}"),
    });
    let missing = guest::NEEDS.iter().filter(|need| !need.is_met()).count();
    lines.push(match missing {
        0 => format!("guest: yes: {}", emulator()),
        _ => format!(
            "guest: after `cargo xtask soft-roce up --guest`, which installs what is missing: {}",
            names(&guest::NEEDS)
        ),
    });
    let kernels = kernel::cached();
    let listed = kernels
        .iter()
        .map(|(request, version)| format!("{version} ({request})"));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let cache = kernel::cache().map_or_else(|e| e.to_string(), |dir| dir.display().to_string());
    lines.push(match kernels.is_empty() {
        true => format!("guest kernels in {cache}: none yet, the first run fetches one"),
        false => format!("guest kernels in {cache}: {listed}"),
    });
    let chosen = match super::choose(Way::Auto, 1) {
        Way::Native => "--native",
        _ => "--guest",
    };
    lines.push(format!("without an option, `run` and `test` use {chosen}"));
    lines.join("\n")
}

fn names(needs: &[Need]) -> String {
    let missing = needs.iter().filter(|need| !need.is_met());
    missing
        .map(|need| format!("{need:?}"))
        .collect::<Vec<_>>()
        .join(", ")
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
    if which("ibv_devinfo").is_some() && !Need::RdmaProviders.is_met() {
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
