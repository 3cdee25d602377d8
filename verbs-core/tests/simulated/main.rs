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
#[cfg(feature = "rdmacm")]
mod rdmacm;
mod windows;

use soft_verbs::{Fabric, Host};
use verbs_core::{CompletionQueue, Context, PreparedQueuePair, ProtectionDomain, QueuePair};
use verbs_harness::logged::{lines, listen};

/// Runs a test on a host, which logs this number of errors: leaks are only logged.
fn on_host(errors: usize, test: impl FnOnce(&Host)) {
    let host = Fabric::seeded(1).host("a");
    on(&host, errors, || test(&host));
}

fn on(host: &Host, errors: usize, test: impl FnOnce()) {
    listen();
    let before = lines().len();
    host.enter(test);
    let mut lines = lines().split_off(before);
    lines.retain(|line| line.starts_with("ERROR"));
    assert_eq!(lines.len(), errors, "{lines:?}");
}

/// A context, its PD, and a completion queue.
fn ladder() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = Context::first_active().unwrap();
    let (pd, cq) = domain(&context);
    (context, pd, cq)
}

fn domain(context: &Context) -> (ProtectionDomain, CompletionQueue) {
    let pd = context.alloc_pd().unwrap();
    (pd, CompletionQueue::create(context, 64).unwrap())
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
