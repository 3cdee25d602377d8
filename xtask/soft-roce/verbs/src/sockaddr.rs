//! Addresses of IP sockets, as C has them, and as GIDs.
#![expect(
    unsafe_code,
    reason = "C's structures are told apart by their first field"
)]

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// An address of IPv4 or IPv6, in as much room as C has for any.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Name {
    v4: sockaddr_in,
    v6: sockaddr_in6,
    any: sockaddr_storage,
}

impl Name {
    /// Bytes of the longer one.
    pub(crate) const LENGTH: socklen_t = 28;

    pub(crate) const fn none() -> Self {
        // SAFETY: zeros are valid for numbers.
        unsafe { zeroed() }
    }

    /// The address, and how much of it counts.
    pub(crate) fn of(address: SocketAddr) -> (Self, socklen_t) {
        let mut name = Self::none();
        match address.ip() {
            IpAddr::V4(ip) => {
                name.v4.sin_family = family(libc::AF_INET);
                name.v4.sin_port = address.port().to_be();
                name.v4.sin_addr.s_addr = u32::from(ip).to_be();
                (name, 16)
            }
            IpAddr::V6(ip) => {
                name.v6.sin6_family = family(libc::AF_INET6);
                name.v6.sin6_port = address.port().to_be();
                name.v6.sin6_addr.s6_addr = ip.octets();
                (name, Self::LENGTH)
            }
        }
    }

    /// The address that it has, if any.
    pub(crate) fn read(&self) -> Option<SocketAddr> {
        // SAFETY: it has room for either family's address.
        unsafe { read((&raw const *self).cast()) }
    }
}

/// The address that C has.
///
/// # Safety
///
/// It is null, or an address of its family's length.
pub(crate) unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: each address begins with its family.
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an address of this family is one of these.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some((ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is one of these.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some((ip, u16::from_be(v6.sin6_port)).into())
        }
        _ => None,
    }
}

fn family(number: c_int) -> sa_family_t {
    sa_family_t::try_from(number).unwrap_or_default()
}

/// The GID of an address.
pub(crate) const fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
