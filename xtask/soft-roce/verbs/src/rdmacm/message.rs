//! The connection manager's messages (volume 1, 12.6 to 12.11), and what `rdma_cm` puts in front of private data
//! (annex A11).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use soft_nic::ManagementDatagram;

/// Kinds of messages, in the order of their attribute identifiers.
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

/// The first attribute identifier.
const FIRST: u16 = 0x10;

/// Each kind, where its private data begins, and how much of it there is.
pub(super) const KINDS: [(Kind, usize, usize); 9] = [
    (Kind::Request, 140, 92),
    (Kind::Receipt, 10, 222),
    (Kind::Rejection, 84, 148),
    (Kind::Reply, 36, 196),
    (Kind::Ready, 8, 224),
    (Kind::DisconnectRequest, 12, 220),
    (Kind::DisconnectReply, 8, 224),
    (Kind::ServiceRequest, 16, 216),
    (Kind::ServiceReply, 96, 136),
];

/// Bytes of the header: base version 1, class 7 (communication management) of version 2, method 3 (send).
const HEADER: usize = 24;
const START: [u8; 4] = [1, 7, 2, 3];

/// A message; places are counted from behind the header.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) datagram: ManagementDatagram,
}

impl Message {
    pub(super) fn new(kind: Kind, transaction: u64) -> Self {
        let mut datagram = [0; 256];
        datagram[..4].copy_from_slice(&START);
        datagram[8..16].copy_from_slice(&transaction.to_be_bytes());
        datagram[16..18].copy_from_slice(&(FIRST + kind as u16).to_be_bytes());
        Self { kind, datagram }
    }

    pub(super) fn parse(datagram: ManagementDatagram) -> Option<Self> {
        let number = u16::from_be_bytes([datagram[16], datagram[17]]);
        let (kind, ..) = *KINDS.get(usize::from(number.checked_sub(FIRST)?))?;
        (datagram[..4] == START).then_some(Self { kind, datagram })
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
        let (_, at, room) = KINDS[self.kind as usize];
        (data.len() <= room).then(|| self.set(at, data))
    }

    pub(super) fn private_data(&self) -> &[u8] {
        let (_, at, room) = KINDS[self.kind as usize];
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
        let version = if self.source.is_ipv4() { 4 } else { 6 };
        bytes[1] = version << 4;
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
            let [.., a, b, c, d] = octets;
            match bytes[1] >> 4 {
                4 => Some(Ipv4Addr::new(a, b, c, d).into()),
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
