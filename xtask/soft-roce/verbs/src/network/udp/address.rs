//! Addresses of this process's cards, and the sockets that are bound to them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use soft_nic::Random;
use soft_nic::packet::ROCE_PORT;

/// The variable that has them.
pub(crate) const VARIABLE: &str = "SOFT_VERBS_ADDRESS";

/// Cards at loopback addresses.
const CARDS: usize = 2;

/// Two processes seldom choose the same of sixteen million addresses.
const TRIES: usize = 64;

/// Where the cards of this process are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// On a network of this process alone.
    Process,
    /// At two loopback addresses that no other process has.
    Loopback,
    /// One at each of these.
    Addresses(Vec<IpAddr>),
}

impl Place {
    /// The value of the variable.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        match text {
            "process" => Ok(Self::Process),
            "loopback" => Ok(Self::Loopback),
            _ => {
                let addresses: Result<Vec<IpAddr>, _> = text.split(',').map(str::parse).collect();
                let complaint = || {
                    format!(
                        "{VARIABLE} is `{text}`, not `process`, `loopback`, or addresses with commas between them"
                    )
                };
                addresses.map(Self::Addresses).ok().ok_or_else(complaint)
            }
        }
    }

    /// Binds a socket for each card.
    pub(super) fn bind(&self, seed: u64) -> Result<Vec<(IpAddr, UdpSocket)>, String> {
        match self {
            Self::Process => Ok(Vec::new()),
            Self::Loopback => {
                let mut random = Random::new(seed);
                (0..CARDS)
                    .map(|_| bind_loopback(&mut random, bind))
                    .collect()
            }
            Self::Addresses(addresses) => addresses.iter().map(|it| bind_to(*it)).collect(),
        }
    }
}

fn bind(address: IpAddr) -> io::Result<UdpSocket> {
    UdpSocket::bind((address, ROCE_PORT))
}

/// Finds a loopback address that nobody has.
fn bind_loopback<S>(
    random: &mut Random,
    bind: impl Fn(IpAddr) -> io::Result<S>,
) -> Result<(IpAddr, S), String> {
    let mut tries = (0..TRIES).map(|_| {
        let address = IpAddr::V4(loopback(random.number()));
        (address, bind(address))
    });
    let failed = |error: io::Error| {
        let text = format!("UDP port {ROCE_PORT} cannot be had at a loopback address: {error}");
        match error.kind() {
            ErrorKind::AddrNotAvailable => {
                format!("{text}; in a new network namespace, run `ip link set lo up` first")
            }
            _ => text,
        }
    };
    let taken = |(address, tried): (IpAddr, io::Result<S>)| match tried {
        Ok(socket) => Some(Ok((address, socket))),
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        Err(error) => Some(Err(failed(error))),
    };
    tries.find_map(taken).unwrap_or_else(|| {
        Err(format!(
            "UDP port {ROCE_PORT} is taken at all of {TRIES} loopback addresses that were tried: the kernel's \
             soft-RoCE has it for the whole network namespace, as soon as it has a device there; use that device, or \
             a namespace of its own: `unshare --map-root-user --net sh -c 'ip link set lo up; exec PROGRAM'`"
        ))
    })
}

/// An address of 127.1.0.0 to 127.254.255.254: those that programs know, 127.0.0.1, are not among them.
fn loopback(number: u64) -> Ipv4Addr {
    let [a, b, c, ..] = number.to_le_bytes();
    Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254))
}

fn bind_to(address: IpAddr) -> Result<(IpAddr, UdpSocket), String> {
    let bound = bind(address).map_err(|error| {
        let text = format!("{VARIABLE} has {address}, where UDP port {ROCE_PORT} cannot be had: {error}");
        match error.kind() {
            ErrorKind::AddrInUse => format!(
                "{text}; another process is there, or the kernel's soft-RoCE has it for the whole network namespace: \
                 choose another address, or use a namespace of its own (`unshare --net`)"
            ),
            ErrorKind::AddrNotAvailable => format!("{text}; no interface of this host has it"),
            _ => text,
        }
    });
    Ok((address, bound?))
}

#[cfg(test)]
mod tests {
    use super::{ErrorKind, Place, Random, TRIES, bind_loopback, bind_to, io, loopback};
    use std::cell::Cell;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn a_place_is_read_or_named() {
        assert_eq!(Place::read("process"), Ok(Place::Process));
        assert_eq!(Place::read("loopback"), Ok(Place::Loopback));
        let two = ["10.0.0.1", "fd00::2"].map(|text| text.parse().unwrap());
        assert_eq!(
            Place::read("10.0.0.1,fd00::2"),
            Ok(Place::Addresses(two.to_vec()))
        );
        for text in ["", "eth0", "10.0.0.1:4791", "10.0.0.1,"] {
            let complaint = Place::read(text).unwrap_err();
            assert!(
                complaint.starts_with(&format!("SOFT_VERBS_ADDRESS is `{text}`")),
                "{complaint}"
            );
        }
    }

    #[test]
    fn a_loopback_address_that_is_chosen_is_not_a_well_known_one() {
        for number in [0, 1, 0xff, 0x1_0000, u64::MAX] {
            let address = loopback(number);
            assert!(address.is_loopback());
            assert!(address.octets()[1] != 0, "{address}");
        }
    }

    #[test]
    fn processes_that_choose_the_same_addresses_take_others() {
        let [one, other] = [7, 7].map(|seed| Place::Loopback.bind(seed).unwrap());
        let mut all: Vec<IpAddr> = one.iter().chain(&other).map(|(it, _)| *it).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn a_port_that_is_taken_everywhere_is_an_error_that_names_soft_roce_and_a_way_on() {
        let tries = Cell::new(0);
        let taken = |_| -> io::Result<()> {
            tries.set(tries.get() + 1);
            Err(ErrorKind::AddrInUse.into())
        };
        let complaint = bind_loopback(&mut Random::new(1), taken).unwrap_err();
        assert_eq!(tries.get(), TRIES);
        let named = ["soft-RoCE", "unshare"].map(|word| complaint.contains(word));
        assert_eq!(named, [true; 2], "{complaint}");
        let down = |_| -> io::Result<()> { Err(ErrorKind::AddrNotAvailable.into()) };
        let complaint = bind_loopback(&mut Random::new(1), down).unwrap_err();
        assert!(complaint.contains("ip link set lo up"), "{complaint}");
    }

    #[test]
    fn an_address_that_cannot_be_had_is_named_with_a_way_on() {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 77, 9));
        let _first = bind_to(address).unwrap();
        let complaint = bind_to(address).unwrap_err();
        assert!(
            complaint.contains("127.0.77.9") && complaint.contains("unshare"),
            "{complaint}"
        );
        let complaint = bind_to("192.0.2.77".parse().unwrap()).unwrap_err();
        assert!(complaint.contains("no interface"), "{complaint}");
    }
}
