//! The address of this machine by which the connection manager finds a device.
#![expect(unsafe_code, reason = "calls `getifaddrs`")]

use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use libc::{freeifaddrs, getifaddrs, ifaddrs};

use super::address;
use super::connect::Connector;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ret;

impl Context {
    /// An IP address of this machine that the connection manager uses this device for, with the port 0:
    /// that of the network interface behind the device. IPv4 comes before IPv6. Needs the feature
    /// `rdmacm`.
    ///
    /// A [listener](crate::rdmacm::Listener) at this address has requests for this device only, and a
    /// connector that is [bound](Connector::bind) to it connects from this device.
    ///
    /// # Errors
    ///
    /// [`Error::NoLocalAddr`] if there is none; those of [`Connector::new`]; the errno of
    /// `getifaddrs(3)`.
    #[doc(alias = "getifaddrs")]
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let mut addrs = interface_addrs()?;
        addrs.sort_by_key(SocketAddr::is_ipv6);
        for addr in addrs {
            let mut connector = Connector::new()?;
            // An address of an interface without an RDMA device cannot be bound to.
            if connector.bind(addr).is_ok() && connector.id.is_on(self) {
                return Ok(addr);
            }
        }
        let device = self.device().name().to_owned();
        Err(Error::NoLocalAddr { device })
    }
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
        // SAFETY: it is from `getifaddrs`, and nothing uses it after this.
        unsafe { freeifaddrs(self.0) };
    }
}
