//! The addresses of this machine by which the connection manager finds a device.
#![expect(unsafe_code, reason = "calls `getifaddrs`")]

use std::net::{Ipv6Addr, SocketAddr};
use std::ptr::{self, NonNull};

use libc::{freeifaddrs, getifaddrs, ifaddrs};

use super::address;
use super::connect::Connector;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::ffi::ret;

impl Context {
    /// An IP address of this machine that the connection manager uses this device for, with the port 0:
    /// the first of its [addresses](Self::local_addrs). Needs the feature `rdmacm`.
    ///
    /// A [listener](crate::rdmacm::Listener) at this address has requests for this device only, and a
    /// connector that is [bound](Connector::bind) to it connects from this device.
    ///
    /// # Errors
    ///
    /// [`Error::NoLocalAddr`] if there is none; those of [`local_addrs`](Self::local_addrs).
    #[doc(alias = "getifaddrs")]
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let first = self.addrs()?.next().transpose()?;
        let device = || self.device().name().to_owned();
        first.ok_or_else(|| Error::NoLocalAddr { device: device() })
    }

    /// The IP addresses of this machine that the connection manager uses this device for, with the port
    /// 0: those of the network interface behind the device. Needs the feature `rdmacm`.
    ///
    /// IPv4 comes before IPv6, and addresses that are valid on one link only come last.
    ///
    /// # Errors
    ///
    /// Those of [`Connector::new`]; the errno of `getifaddrs(3)`.
    #[doc(alias = "getifaddrs")]
    pub fn local_addrs(&self) -> Result<Vec<SocketAddr>> {
        self.addrs()?.collect()
    }

    fn addrs(&self) -> Result<impl Iterator<Item = Result<SocketAddr>>> {
        let mut addrs = interface_addrs()?;
        // Those of a network that an interface has as a whole, such as 127.0.0.0/8, are not in its list.
        for port in 1..=self.query_device()?.phys_port_cnt() {
            let gids = self.gid_table(port)?.into_iter().map(|entry| entry.gid());
            for ip in gids.filter_map(|gid| Ipv6Addr::from(gid).to_ipv4_mapped()) {
                let addr = SocketAddr::from((ip, 0));
                if !addrs.contains(&addr) {
                    addrs.push(addr);
                }
            }
        }
        addrs.sort_by_key(|addr| (addr.is_ipv6(), is_of_one_link(addr)));
        let is_on = |addr| {
            let mut connector = Connector::new()?;
            // An address of an interface without an RDMA device cannot be bound to.
            let is_on = connector.bind(addr).is_ok() && connector.id.is_on(self);
            Ok(is_on.then_some(addr))
        };
        let addrs = addrs.into_iter();
        Ok(addrs.filter_map(move |addr| is_on(addr).transpose()))
    }
}

fn is_of_one_link(addr: &SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(addr) if addr.ip().is_unicast_link_local())
}

/// The IP addresses of all network interfaces.
fn interface_addrs() -> Result<Vec<SocketAddr>> {
    let mut first = ptr::null_mut();
    // SAFETY: the place is a local.
    let ret = unsafe { getifaddrs(&raw mut first) };
    ret::minus_one("getifaddrs", ret)?;
    let list = List(first);
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: each entry is alive until the list is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if let Some(addr) = NonNull::new(entry.ifa_addr) {
            // SAFETY: an entry's address is alive, and is as long as its family requires.
            found.extend(unsafe { address::from_c(addr.as_ptr()) });
        }
    }
    Ok(found)
}

/// A list of `getifaddrs`, which is freed at the end.
struct List(*mut ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is from `getifaddrs`, and nothing uses it after this.
        unsafe { freeifaddrs(self.0) };
    }
}
