//! Connecting by a connection manager whose calls fail, and whose events are those that no peer in software sends; and
//! leases and rails on a network that a seed spoils.
#![cfg(test)]
#![cfg(feature = "rdmacm")]

mod by_manager;
mod growing;
mod iwarp;
mod leases;
mod multicast;
mod over_datagrams;
mod rails;

use std::net::SocketAddr;
use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_channel::verbs_core::rdmacm::Listener;
use verbs_channel::verbs_core::{Context, ProtectionDomain};
use verbs_harness::logged::{lines, listen};

const LONG: Duration = Duration::from_secs(60);

/// Runs a test on a host that has a peer. No identifier of the connection manager is left, and no error is logged.
fn on_hosts(fabric: &Fabric, test: impl FnOnce(&Host, &Peer)) {
    listen();
    let before = lines().len();
    let [a, b] = ["a", "b"].map(|name| fabric.host(name));
    a.enter(|| test(&a, &Peer(b.clone())));
    let mut lines = lines().split_off(before);
    lines.retain(|line| line.starts_with("ERROR"));
    assert_eq!(lines, [""; 0]);
    assert_eq!((a.cm_ids(), b.cm_ids()), (0, 0));
}

fn in_virtual_time(test: impl FnOnce(&Host, &Peer)) {
    on_hosts(&Fabric::seeded(1), test);
}

/// The host at `10.0.0.2`.
struct Peer(Host);

impl Peer {
    const ADDRESS: ([u8; 4], u16) = ([10, 0, 0, 2], 7471);

    fn address() -> SocketAddr {
        Self::ADDRESS.into()
    }

    fn listener(&self) -> Listener {
        self.0.enter(|| Listener::bind(Self::address(), 8)).unwrap()
    }
}

fn pd() -> ProtectionDomain {
    Context::first_active().unwrap().alloc_pd().unwrap()
}
