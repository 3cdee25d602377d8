//! Devices of iWARP, which connect by the connection manager only: to the IP address of their link.

use std::env;
use std::ffi::CStr;
use std::fs;
use std::net::Ipv4Addr;
use std::ptr;

use super::device_name;

/// Why tests of a package cannot run on the device under test, if none of them can.
///
/// Channels connect without the connection manager.
pub fn rules_out(package: &str) -> Option<&'static str> {
    let channels = matches!(package, "verbs-channel" | "verbs-async");
    (channels && is_iwarp()).then_some("it connects without rdma_cm, which iWARP cannot")
}

/// Whether the device under test is one of iWARP.
pub fn is_iwarp() -> bool {
    let name = device_name();
    let kind = fs::read_to_string(format!("/sys/class/infiniband/{name}/node_type"));
    // "4: RNIC"
    kind.is_ok_and(|kind| kind.starts_with("4:"))
}

/// The first IPv4 address of the network interface below a device.
pub fn ipv4(device: &str) -> Option<Ipv4Addr> {
    let below = |device_name: &str, netdev: &str| {
        let is_it = env::var(device_name).is_ok_and(|name| name == device);
        is_it.then(|| env::var(netdev).ok()).flatten()
    };
    let soft = below("VERBS_DEVICE", "VERBS_NETDEV")
        .or_else(|| below("VERBS_PEER_DEVICE", "VERBS_PEER_NETDEV"));
    let netdev = soft.or_else(|| {
        let dir = format!("/sys/class/infiniband/{device}/device/net");
        let first = fs::read_dir(dir).ok()?.next()?.ok()?;
        first.file_name().into_string().ok()
    });
    address(&netdev?)
}

/// The first IPv4 address of a network interface.
fn address(netdev: &str) -> Option<Ipv4Addr> {
    let mut all = ptr::null_mut();
    // SAFETY: the place is a local.
    let ret = unsafe { libc::getifaddrs(&raw mut all) };
    assert_eq!(ret, 0, "getifaddrs");
    let (mut found, mut next) = (None, all);
    // SAFETY: the list is alive until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an entry's name ends with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: an entry's address is one, or null.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|addr| i32::from(addr.sa_family));
        if found.is_none() && name.to_bytes() == netdev.as_bytes() && family == Some(libc::AF_INET)
        {
            // SAFETY: of this family it is a `sockaddr_in`; it need not be aligned as one.
            let addr = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            found = Some(Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr)));
        }
    }
    // SAFETY: it is the list from above, and nothing of it is used after this.
    unsafe { libc::freeifaddrs(all) };
    found
}
