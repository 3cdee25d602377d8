//! Where a client and a server connect: over TCP, which on iWARP leads to a connection by `rdma_cm`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{PreparedChannel, connect::Connected};
use verbs_harness::PATIENCE;

use super::ends::there;

/// A listener of a server on the device under test, and its address.
pub(crate) struct Meeting {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Meeting {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    /// Connects the server's end to the next client.
    pub(crate) fn accept<T: Connected>(&self, prepared: PreparedChannel<T>) -> T {
        prepared.accept(&self.listener, PATIENCE).unwrap().channel
    }
}

/// Connects a client's end, with the channel that `prepare` makes.
pub(crate) fn connect<T: Connected>(
    address: SocketAddr,
    prepare: impl FnOnce(&ProtectionDomain) -> PreparedChannel<T>,
) -> T {
    prepare(&there())
        .connect(address, PATIENCE)
        .unwrap()
        .channel
}
