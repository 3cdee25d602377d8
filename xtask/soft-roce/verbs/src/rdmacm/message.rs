//! The connection manager's messages (volume 1, 12.6 to 12.11), and what `rdma_cm` puts in front of private data
//! (annex A11).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use soft_nic::ManagementDatagram;

/// Kinds of messages, by their attribute identifiers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Request,
    Receipt,
    Rejection,
    Reply,
    Ready,
    DisconnectRequest,
    DisconnectReply,
    ServiceRequest,
    ServiceReply,
}

const KINDS: [(u16, Kind); 9] = [
    (0x10, Kind::Request),
    (0x11, Kind::Receipt),
    (0x12, Kind::Rejection),
    (0x13, Kind::Reply),
    (0x14, Kind::Ready),
    (0x15, Kind::DisconnectRequest),
    (0x16, Kind::DisconnectReply),
    (0x17, Kind::ServiceRequest),
    (0x18, Kind::ServiceReply),
];

impl Kind {
    /// Where its private data begins, and how much of it there is.
    pub(super) const fn room(self) -> (usize, usize) {
        match self {
            Self::Request => (140, 92),
            Self::Receipt => (10, 222),
            Self::Rejection => (84, 148),
            Self::Reply => (36, 196),
            Self::Ready | Self::DisconnectReply => (8, 224),
            Self::DisconnectRequest => (12, 220),
            Self::ServiceRequest => (16, 216),
            Self::ServiceReply => (96, 136),
        }
    }
}

/// Bytes of the header: base version 1, class 7 (communication management) of version 2, method 3 (send).
const HEADER: usize = 24;
const START: [u8; 4] = [1, 7, 2, 3];

/// A message; places are counted from behind the header.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    datagram: ManagementDatagram,
}

impl Message {
    pub(super) fn new(kind: Kind, transaction: u64) -> Self {
        let mut datagram = [0; 256];
        datagram[..4].copy_from_slice(&START);
        datagram[8..16].copy_from_slice(&transaction.to_be_bytes());
        let number = KINDS.iter().find(|(_, other)| *other == kind);
        let number = number.map_or(0, |(number, _)| *number);
        datagram[16..18].copy_from_slice(&number.to_be_bytes());
        Self { kind, datagram }
    }

    pub(super) fn parse(datagram: ManagementDatagram) -> Option<Self> {
        let number = u16::from_be_bytes([datagram[16], datagram[17]]);
        let (_, kind) = KINDS.iter().find(|(other, _)| *other == number)?;
        let kind = *kind;
        (datagram[..4] == START).then_some(Self { kind, datagram })
    }

    pub(super) const fn datagram(&self) -> ManagementDatagram {
        self.datagram
    }

    /// The transaction, which the answer to a message has, too.
    pub(super) fn transaction(&self) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|index| self.datagram[8 + index]))
    }

    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.datagram[HEADER + at + index])
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.datagram[HEADER + at]
    }

    pub(super) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at)) >> 8
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    pub(super) fn set(mut self, at: usize, bytes: &[u8]) -> Self {
        self.datagram[HEADER + at..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn set_u24(self, at: usize, number: u32) -> Self {
        self.set(at, &number.to_be_bytes()[1..])
    }

    pub(super) fn set_u32(self, at: usize, number: u32) -> Self {
        self.set(at, &number.to_be_bytes())
    }

    /// Puts in private data; `None` if it does not fit.
    pub(super) fn set_private_data(self, data: &[u8]) -> Option<Self> {
        let (at, room) = self.kind.room();
        (data.len() <= room).then(|| self.set(at, data))
    }

    pub(super) fn private_data(&self) -> &[u8] {
        let (at, room) = self.kind.room();
        &self.datagram[HEADER + at..][..room]
    }
}

/// Addresses that `rdma_cm` has in front of the private data of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Addresses {
    pub(super) source: SocketAddr,
    pub(super) destination: IpAddr,
}

impl Addresses {
    pub(super) const SIZE: usize = 36;

    pub(super) fn write(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[1] = if self.source.is_ipv4() {
            4 << 4
        } else {
            6 << 4
        };
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        for (at, address) in [(4, self.source.ip()), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => bytes[at + 12..][..4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..][..16].copy_from_slice(&address.octets()),
            }
        }
        bytes
    }

    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = data.first_chunk()?;
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = bytes[at..][..16].try_into().ok()?;
            match bytes[1] >> 4 {
                4 => {
                    let [.., a, b, c, d] = octets;
                    Some(Ipv4Addr::new(a, b, c, d).into())
                }
                6 => Some(Ipv6Addr::from(octets).into()),
                _ => None,
            }
        };
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(Self {
            source: SocketAddr::new(address(4)?, port),
            destination: address(20)?,
        })
    }
}
