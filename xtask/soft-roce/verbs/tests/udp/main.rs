//! Processes whose cards are at loopback addresses.
#![cfg(test)]

mod flood;
mod processes;

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

use soft_verbs as _;

/// Runs one of the ignored tests in a process with cards over UDP, as are the processes that it starts.
fn over_udp(name: &str) {
    let [a, b, ..] = std::process::id().to_le_bytes();
    if let Err(error) = UdpSocket::bind((Ipv4Addr::new(127, 0, a, b), 4791)) {
        println!("SKIPPED {name}: the kernel's soft-RoCE has the port: {error}");
        return;
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("SOFT_VERBS_ADDRESS", "loopback")
        .envs([("VERBS_DEVICE", "soft0"), ("VERBS_PEER_DEVICE", "soft1")]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Memory of this process, in KiB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}
