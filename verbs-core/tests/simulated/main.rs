//! Calls that fail as a test asks for it, on devices in software whose faults are chosen.
//!
//! Each test has a host of its own on a simulated network. Tests that need no fault are in `tests/device`, which also runs
//! on such devices.
#![cfg(test)]
#![expect(unsafe_code, reason = "posts and destroys as C does")]

mod channel;
mod endings;
mod extended;
mod logger;
mod posts;
mod windows;

use soft_verbs::{Fabric, Host};
use verbs_core::{CompletionQueue, Context, PreparedQueuePair, ProtectionDomain, QueuePair};
use verbs_harness::logged::{lines, listen};

/// Runs a test on a host, which logs this number of errors: leaks are only logged.
fn on_host(errors: usize, test: impl FnOnce(&Host)) {
    listen();
    let before = lines().len();
    let host = Fabric::seeded(1).host("a");
    host.enter(|| test(&host));
    let mut lines = lines().split_off(before);
    lines.retain(|line| line.starts_with("ERROR"));
    assert_eq!(lines.len(), errors, "{lines:?}");
}

/// A context, its PD, and a completion queue.
fn ladder() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = Context::first_active().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = CompletionQueue::create(&context, 64).unwrap();
    (context, pd, cq)
}

/// A queue pair that is not connected.
fn prepared() -> PreparedQueuePair {
    let (_, pd, cq) = ladder();
    QueuePair::builder(&pd, &cq, &cq).build().unwrap()
}

/// A queue pair that is connected to itself.
fn connected() -> QueuePair {
    let prepared = prepared();
    let endpoint = prepared.endpoint();
    prepared.handshake(&endpoint).unwrap()
}
