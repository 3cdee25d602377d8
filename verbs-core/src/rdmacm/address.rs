//! Socket addresses as C has them.
#![expect(unsafe_code, reason = "reads the sockaddr of an identifier")]

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// The address as C takes it.
pub(super) fn to_c(addr: SocketAddr) -> sockaddr_storage {
    // SAFETY: a `sockaddr_storage` consists of numbers, which may all be zero.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let to = &raw mut storage;
    match addr {
        SocketAddr::V4(addr) => {
            let c = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(addr.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as long and as aligned as any of its kind.
            unsafe { to.cast::<sockaddr_in>().write(c) };
        }
        SocketAddr::V6(addr) => {
            let c = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: addr.ip().octets(),
                },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: the storage is large enough for every address, and aligned for it.
            unsafe { to.cast::<sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// A small number.
fn family(number: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).unwrap_or(0)
}

/// The address at `addr`; `None` if it is of another family, such as that of none.
///
/// # Safety
///
/// - `addr` is that of an address, which is alive and as long as its family requires.
pub(super) unsafe fn from_c(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller promises that `addr` is that of an address, which begins with its family.
    let family = unsafe { (*addr).sa_family };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so; it need not be aligned as one.
            let c = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the caller promises the length that this family requires; the read is
            // unaligned.
            let c = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(c.sin6_addr.s6_addr);
            let port = u16::from_be(c.sin6_port);
            Some(SocketAddrV6::new(ip, port, c.sin6_flowinfo, c.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["192.0.2.7:80", "[2001:db8::1]:7471", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let c = to_c(addr);
            // SAFETY: `c` is an address, from `to_c`.
            let back = unsafe { from_c((&raw const c).cast()) };
            assert_eq!(back, Some(addr), "{text}");
        }
        // SAFETY: numbers, which may all be zero.
        let none: sockaddr_storage = unsafe { mem::zeroed() };
        // SAFETY: `none` is an address of no family.
        assert_eq!(unsafe { from_c((&raw const none).cast()) }, None);
    }

    #[test]
    fn ports_and_addresses_are_in_network_order() {
        let c = to_c("1.2.3.4:258".parse().unwrap());
        // SAFETY: `c` has the family of IPv4.
        let c = unsafe { (&raw const c).cast::<sockaddr_in>().read() };
        assert_eq!(c.sin_port.to_ne_bytes(), [1, 2]);
        assert_eq!(c.sin_addr.s_addr.to_ne_bytes(), [1, 2, 3, 4]);
    }
}
