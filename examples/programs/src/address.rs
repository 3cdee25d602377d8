//! The address that `ibv_rc_pingpong` and `ibv_srq_pingpong` exchange over TCP: text of a fixed length.
//!
//! `LID:QPN:PSN:GID` in hexadecimal, of 4, 6, 6 and 32 digits, and a NUL. The client sends its own,
//! the server answers with its own, and the client sends `done` and a NUL. A GID of zeros means that
//! there is none.

use std::fmt;

use verbs_core::codes::{Gid, QpType};
use verbs_core::path::{DatagramEndpoint, QKey};
use verbs_core::{PacketSequenceNumber, QueuePairEndpoint};

/// The address of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    lid: u16,
    qp_num: u32,
    psn: u32,
    gid: Gid,
}

/// The received bytes are not a valid address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// It is not in the format.
    Format,
    /// It is in the format, but no queue pair can have it: it has neither a LID nor a GID.
    Nowhere,
}

impl Address {
    /// Its length on the wire, with the NUL.
    pub const WIRE_LEN: usize = 52;

    /// No address: `ibv_srq_pingpong` always exchanges 256 of them.
    pub const NONE: Self = Self {
        lid: 0,
        qp_num: 0,
        psn: 0,
        gid: Gid::new([0; 16]),
    };

    /// The client's last message.
    pub const DONE: [u8; 5] = *b"done\0";

    /// Encodes it for the wire.
    #[must_use]
    pub fn to_wire(&self) -> [u8; Self::WIRE_LEN] {
        let Self {
            lid,
            qp_num,
            psn,
            gid,
        } = self;
        let gid = u128::from_be_bytes(gid.raw());
        let text = format!("{lid:04x}:{qp_num:06x}:{psn:06x}:{gid:032x}\0");
        let mut wire = [0; Self::WIRE_LEN];
        for (to, from) in wire.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        wire
    }

    /// Decodes received bytes.
    ///
    /// # Errors
    ///
    /// [`AddressError::Format`] for anything that C's program would not send.
    pub fn from_wire(wire: &[u8; Self::WIRE_LEN]) -> Result<Self, AddressError> {
        let (text, end) = wire.split_at(Self::WIRE_LEN - 1);
        let text = str::from_utf8(text).map_err(|_not_text| AddressError::Format)?;
        let mut fields = text.split(':');
        let mut field = |digits: usize| {
            let hex = fields.next().filter(|hex| hex.len() == digits);
            // `from_str_radix` takes a sign.
            let hex = hex.filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
            hex.and_then(|hex| u128::from_str_radix(hex, 16).ok())
        };
        let fields = (field(4), field(6), field(6), field(32));
        let (Some(lid), Some(qp_num), Some(psn), Some(gid)) = fields else {
            return Err(AddressError::Format);
        };
        match (
            u16::try_from(lid),
            u32::try_from(qp_num),
            u32::try_from(psn),
            end,
        ) {
            (Ok(lid), Ok(qp_num), Ok(psn), [0]) => Ok(Self {
                lid,
                qp_num,
                psn,
                gid: Gid::new(gid.to_be_bytes()),
            }),
            _ => Err(AddressError::Format),
        }
    }

    /// Converts it to an endpoint to connect to.
    ///
    /// # Errors
    ///
    /// The numbers are impossible, or there is neither a LID nor a GID.
    pub fn to_endpoint(&self) -> Result<QueuePairEndpoint, crate::Failure> {
        self.to_endpoint_of(QpType::Rc)
    }

    /// Converts it to an endpoint of this type to connect to: C's programs do not send the type.
    ///
    /// # Errors
    ///
    /// As [`to_endpoint`](Self::to_endpoint).
    pub fn to_endpoint_of(&self, qp_type: QpType) -> Result<QueuePairEndpoint, crate::Failure> {
        if self.lid == 0 && self.gid.is_zero() {
            return Err(AddressError::Nowhere.into());
        }
        let psn = PacketSequenceNumber::new(self.psn)?;
        let endpoint = QueuePairEndpoint::builder(self.qp_num, psn)
            .qp_type(qp_type)
            .lid(self.lid)
            .gid((!self.gid.is_zero()).then_some(self.gid));
        Ok(endpoint.build()?)
    }

    /// Converts it to an endpoint to send datagrams to: C's programs do not send the key.
    ///
    /// # Errors
    ///
    /// As [`to_endpoint`](Self::to_endpoint).
    pub fn to_datagram_endpoint(&self, qkey: QKey) -> Result<DatagramEndpoint, crate::Failure> {
        if self.lid == 0 && self.gid.is_zero() {
            return Err(AddressError::Nowhere.into());
        }
        let endpoint = DatagramEndpoint::builder(self.qp_num, qkey)
            .lid(self.lid)
            .gid((!self.gid.is_zero()).then_some(self.gid));
        Ok(endpoint.build()?)
    }
}

impl From<&DatagramEndpoint> for Address {
    fn from(endpoint: &DatagramEndpoint) -> Self {
        Self {
            lid: endpoint.lid(),
            qp_num: endpoint.qp_num(),
            // Datagrams have no use for it.
            psn: 0,
            gid: endpoint.gid().unwrap_or(Gid::new([0; 16])),
        }
    }
}

impl From<&QueuePairEndpoint> for Address {
    fn from(endpoint: &QueuePairEndpoint) -> Self {
        Self {
            lid: endpoint.lid(),
            qp_num: endpoint.qp_num(),
            psn: endpoint.psn().get(),
            gid: endpoint.gid().unwrap_or(Gid::new([0; 16])),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lid,
            qp_num,
            psn,
            gid,
        } = self;
        write!(
            f,
            "LID 0x{lid:04x}, QPN 0x{qp_num:06x}, PSN 0x{psn:06x}, GID {gid}"
        )
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => {
                "what came over TCP is no address of a pingpong: the peer is another program"
            }
            Self::Nowhere => {
                "the peer's address has neither a LID nor a GID: on RoCE, C's pingpongs need -g INDEX"
            }
        })
    }
}

impl std::error::Error for AddressError {}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: &[u8; Address::WIRE_LEN] = b"0004:00001a:00f0e1:00000000000000000000ffff0a0a0001\0";

    #[test]
    fn wire_format_is_that_of_c() {
        let address = Address::from_wire(WIRE).unwrap();
        assert_eq!(
            (address.lid, address.qp_num, address.psn),
            (4, 0x1a, 0xf0e1)
        );
        assert_eq!(&address.to_wire(), WIRE);
        assert_eq!(
            address.to_string(),
            "LID 0x0004, QPN 0x00001a, PSN 0x00f0e1, GID ::ffff:10.10.0.1"
        );
        let endpoint = address.to_endpoint().unwrap();
        assert_eq!(Address::from(&endpoint), address);
    }

    #[test]
    fn a_gid_of_zeros_is_none() {
        let wire = b"0004:00001a:00f0e1:00000000000000000000000000000000\0";
        let address = Address::from_wire(wire).unwrap();
        assert_eq!(address.to_endpoint().unwrap().gid(), None);
        assert_eq!(&address.to_wire(), wire);
        assert!(address.to_string().ends_with("GID ::"));
    }

    #[test]
    fn no_address_is_zeros_as_in_c() {
        let wire = b"0000:000000:000000:00000000000000000000000000000000\0";
        assert_eq!(&Address::NONE.to_wire(), wire);
        assert_eq!(Address::from_wire(wire), Ok(Address::NONE));
    }

    #[test]
    fn each_byte_that_is_wrong_is_refused() {
        for at in 0..Address::WIRE_LEN {
            // A sign, a separator, text that is not ASCII.
            for bad in [b'+', b'-', b' ', b'g', b':', 0x80, 0xff] {
                let mut wire = *WIRE;
                if wire[at] != bad {
                    wire[at] = bad;
                    assert_eq!(Address::from_wire(&wire), Err(AddressError::Format), "{at}");
                }
            }
        }
        let http = b"GET / HTTP/1.1\r\nHost: localhost:18515\r\nUser-Agent: x";
        let wire = http.first_chunk().unwrap();
        assert_eq!(Address::from_wire(wire), Err(AddressError::Format));
    }

    #[test]
    fn impossible_addresses_are_refused() {
        let nowhere = b"0000:00001a:00f0e1:00000000000000000000000000000000\0";
        let error = Address::from_wire(nowhere).unwrap().to_endpoint();
        assert!(error.unwrap_err().to_string().contains("-g INDEX"));
        let management = b"0004:000001:00f0e1:00000000000000000000000000000000\0";
        let error = Address::from_wire(management).unwrap().to_endpoint();
        assert!(error.unwrap_err().to_string().contains("qp_num 1"));
    }
}
