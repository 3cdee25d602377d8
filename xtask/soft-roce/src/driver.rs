//! The kernel's two software RDMA drivers, and what is called after each.

use std::net::Ipv4Addr;

/// A software RDMA driver of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Driver {
    /// Soft-RoCE (`rdma_rxe`): RoCE v2 over UDP.
    #[default]
    Rxe,
    /// Soft-iWARP (`siw`): iWARP over TCP. Its queue pairs connect by the connection manager
    /// (librdmacm) only; it has no immediates, atomics, datagrams or memory windows.
    Siw,
}

impl Driver {
    pub(crate) const ALL: [Self; 2] = [Self::Rxe, Self::Siw];

    /// The word for `--driver` and in `SOFT_ROCE_DRIVER`, which is also its type for `rdma link`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }

    /// Its kernel module.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::Rxe => "rdma_rxe",
            Self::Siw => "siw",
        }
    }

    /// The RDMA devices, in the order of their ends.
    pub(crate) fn devices(self) -> [&'static str; 2] {
        match self {
            Self::Rxe => ["rxe0", "rxe1"],
            Self::Siw => ["siw0", "siw1"],
        }
    }

    /// The network links below them.
    pub(crate) fn netdevs(self) -> [&'static str; 2] {
        match self {
            Self::Rxe => ["veth-rxe0", "veth-rxe1"],
            Self::Siw => ["veth-siw0", "veth-siw1"],
        }
    }

    /// The last bytes of the links' MAC addresses. Natively both wires may be up at once.
    pub(crate) fn macs(self) -> [u8; 2] {
        match self {
            Self::Rxe => [1, 2],
            Self::Siw => [3, 4],
        }
    }

    /// The addresses natively, a network of two for each wire: reserved for documentation (RFC
    /// 5737), so no other network has them.
    pub(crate) fn native_addresses(self) -> [Ipv4Addr; 2] {
        let [first, second] = match self {
            Self::Rxe => [1, 2],
            Self::Siw => [5, 6],
        };
        [
            Ipv4Addr::new(192, 0, 2, first),
            Ipv4Addr::new(192, 0, 2, second),
        ]
    }

    /// How many GIDs a port has once it can be used: that of the link's MAC address, and with RoCE
    /// that of its IPv4 address.
    pub(crate) fn gids(self) -> usize {
        match self {
            Self::Rxe => 2,
            Self::Siw => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Driver;

    #[test]
    fn both_wires_can_be_up_at_once() {
        let [rxe, siw] = Driver::ALL;
        for (one, other) in [
            (rxe.devices(), siw.devices()),
            (rxe.netdevs(), siw.netdevs()),
        ] {
            assert!(one.iter().all(|name| !other.contains(name)));
            // As long as the kernel takes them.
            assert!(other.iter().all(|name| name.len() < 16));
        }
        let macs = [rxe.macs(), siw.macs()].concat();
        assert!((1..4).all(|at| !macs[..at].contains(&macs[at])));
        // Networks of four addresses, of which the first and the last are no host's.
        let hosts = [rxe, siw].map(|driver| driver.native_addresses().map(|at| at.octets()[3]));
        assert_eq!(
            hosts.map(|pair| pair.map(|host| host % 4)),
            [[1, 2], [1, 2]]
        );
        assert_ne!(hosts[0][0] / 4, hosts[1][0] / 4);
    }
}
