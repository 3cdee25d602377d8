//! Listeners of other processes, by names in the abstract namespace of Unix sockets: so connecting to 127.0.0.1 finds them.

use std::fs;
use std::net::{IpAddr, SocketAddr as Address};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::manager::Space;

/// A listener is found while this is kept. Its failure is no error: then the listener is found by its card's address only.
pub(super) fn announce(space: Space, at: Address) -> Option<UnixDatagram> {
    let name = format!("{}{}", prefix(space, at.port()), at.ip());
    let address = SocketAddr::from_abstract_name(name).ok()?;
    UnixDatagram::bind_addr(&address).ok()
}

/// The address of a card where a process listens at this port.
pub(super) fn find(space: Space, port: u16) -> Option<IpAddr> {
    let prefix = format!("@{}", prefix(space, port));
    let sockets = fs::read_to_string("/proc/net/unix").ok()?;
    let mut names = sockets
        .lines()
        .filter_map(|line| line.split(' ').next_back());
    names.find_map(|name| name.strip_prefix(&prefix)?.parse().ok())
}

fn prefix(space: Space, port: u16) -> String {
    format!("soft-verbs/{:x}/{port}/", space as u32)
}
