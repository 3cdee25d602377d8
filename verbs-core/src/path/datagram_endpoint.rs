//! Endpoints of datagrams: the data that a peer needs to send to a queue pair.

use super::qkey::QKey;
use super::wire::{check_address, check_version, put, take, version_of, within};
use crate::codes::{Gid, MaximumTransferUnit};
use crate::error::{ENDPOINT_VERSION, EndpointError};

/// The data that a peer needs to send datagrams to a queue pair.
///
/// Send it by any means: as serde data (feature `serde`), or as [`to_bytes`](Self::to_bytes). Both
/// forms carry a version. Numbers are checked when an endpoint is made or received.
#[derive(bon::Builder, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[builder(
    builder_type(doc {
        /// Builder for a datagram endpoint, from [`DatagramEndpoint::builder`].
    }),
    start_fn(doc {
        /// Starts to build an endpoint from parts that were received in some other protocol.
        ///
        /// `qp_num` is the peer's queue pair, 24 bits, and `qkey` its key.
        ///
        /// ```
        /// use verbs_core::path::{DatagramEndpoint, QKey};
        ///
        /// let endpoint = DatagramEndpoint::builder(0x11, QKey::new(0x1111_1111)?).lid(4).build()?;
        /// let received = DatagramEndpoint::from_bytes(&endpoint.to_bytes())?;
        /// assert_eq!(received.qp_num(), 0x11);
        /// # Ok::<(), verbs_core::Error>(())
        /// ```
    }),
    finish_fn(name = unchecked, vis = ""),
    derive(Clone, Debug),
    on(_, required),
    on(_, setters(doc(default(skip)))),
)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "Wire", into = "Wire")
)]
pub struct DatagramEndpoint {
    #[builder(start_fn)]
    qp_num: u32,
    #[builder(start_fn)]
    qkey: QKey,
    /// The port's LID; 0, none, unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    lid: u16,
    /// The port's GID; none unless set.
    #[builder(default = None, with = |value: impl Into<Option<Gid>>| value.into(), setters(option_fn(vis = "")))]
    gid: Option<Gid>,
    /// The port's active MTU: the length in bytes of the longest datagram that it can receive;
    /// 4096 unless set, so that the sender's MTU decides.
    #[builder(default = MaximumTransferUnit::Mtu4096, setters(option_fn(vis = "")))]
    mtu: MaximumTransferUnit,
}

impl<S: datagram_endpoint_builder::IsComplete> DatagramEndpointBuilder<S> {
    /// Checks the numbers, and returns the endpoint.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] if a number is out of its range, or there is neither a LID nor a GID.
    pub fn build(self) -> Result<DatagramEndpoint, EndpointError> {
        self.unchecked().checked()
    }
}

impl DatagramEndpoint {
    /// The endpoint of a queue pair of this side: its number and key, its port's LID and GID. Or that of a
    /// multicast group, whose numbers are those of no queue pair and of no port.
    pub(crate) const fn chosen(
        (qp_num, qkey): (u32, QKey),
        (lid, gid): (u16, Option<Gid>),
        mtu: MaximumTransferUnit,
    ) -> Self {
        Self {
            qp_num,
            qkey,
            lid,
            gid,
            mtu,
        }
    }

    /// How many bytes [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = 32;

    /// The queue pair's number.
    #[must_use]
    pub const fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The key of the datagrams that the queue pair accepts.
    #[must_use]
    pub const fn qkey(&self) -> QKey {
        self.qkey
    }

    /// The port's LID; 0 if it has none.
    #[must_use]
    pub const fn lid(&self) -> u16 {
        self.lid
    }

    /// The port's GID; `None` if the port is addressed by LID.
    #[must_use]
    pub const fn gid(&self) -> Option<Gid> {
        self.gid
    }

    /// The port's active MTU: the length in bytes of the longest datagram that it can receive.
    #[must_use]
    pub const fn mtu(&self) -> MaximumTransferUnit {
        self.mtu
    }

    /// The endpoint as bytes: a version, then its numbers, each with its most significant byte first.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let wire = Wire::from(*self);
        let mut bytes = [0; Self::BYTES];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| put(&mut rest, field);
        put(&wire.version.to_be_bytes());
        put(&wire.qp_num.to_be_bytes());
        put(&wire.qkey.to_be_bytes());
        put(&wire.lid.to_be_bytes());
        let mtu = u8::try_from(wire.mtu).unwrap_or(0);
        put(&[u8::from(wire.gid.is_some()), mtu]);
        put(&wire.gid.unwrap_or_default());
        bytes
    }

    /// The endpoint from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`EndpointError`] for another version, another length, or a number out of its range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let bytes: &[u8; Self::BYTES] = version_of(bytes)?;
        let mut rest = &bytes[4..];
        let qp_num = u32::from_be_bytes(take(&mut rest));
        let qkey = u32::from_be_bytes(take(&mut rest));
        let lid = u16::from_be_bytes(take(&mut rest));
        let [has_gid, mtu] = take(&mut rest);
        let gid = take::<16>(&mut rest);
        Self::try_from(Wire {
            version: ENDPOINT_VERSION,
            qp_num,
            qkey,
            lid,
            gid: (has_gid != 0).then_some(gid),
            mtu: mtu.into(),
        })
    }

    fn checked(self) -> Result<Self, EndpointError> {
        check_address(self.qp_num, self.lid, self.gid)?;
        Ok(self)
    }
}

/// The wire format, unchecked. The version comes first, and missing fields are zeros, so that
/// another version is reported as such.
#[derive(Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, rename = "DatagramEndpoint")
)]
struct Wire {
    version: u32,
    qp_num: u32,
    qkey: u32,
    lid: u16,
    gid: Option<[u8; 16]>,
    mtu: u32,
}

impl TryFrom<Wire> for DatagramEndpoint {
    type Error = EndpointError;

    fn try_from(wire: Wire) -> Result<Self, EndpointError> {
        check_version(wire.version)?;
        within("qkey", wire.qkey.into(), 0, QKey::MAX.get().into())?;
        within("mtu", wire.mtu.into(), 1, 5)?;
        Self {
            qp_num: wire.qp_num,
            qkey: QKey::new(wire.qkey).unwrap_or(QKey::MAX),
            lid: wire.lid,
            gid: wire.gid.map(Gid::new),
            mtu: MaximumTransferUnit::from_raw(wire.mtu).unwrap_or(MaximumTransferUnit::Mtu256),
        }
        .checked()
    }
}

impl From<DatagramEndpoint> for Wire {
    fn from(endpoint: DatagramEndpoint) -> Self {
        Self {
            version: ENDPOINT_VERSION,
            qp_num: endpoint.qp_num,
            qkey: endpoint.qkey.get(),
            lid: endpoint.lid,
            gid: endpoint.gid.map(Gid::raw),
            mtu: endpoint.mtu.as_raw(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> DatagramEndpoint {
        DatagramEndpoint::builder(0x1234, QKey::new(0x1111_1111).unwrap())
            .gid(Gid::new([1; 16]))
            .mtu(MaximumTransferUnit::Mtu1024)
            .build()
            .unwrap()
    }

    #[test]
    fn bytes_survive_a_round_trip() {
        let bytes = endpoint().to_bytes();
        assert_eq!(bytes[..8], [0, 0, 0, 2, 0, 0, 0x12, 0x34]);
        assert_eq!(DatagramEndpoint::from_bytes(&bytes), Ok(endpoint()));
        let lid = DatagramEndpoint::builder(2, QKey::MAX).lid(9);
        let lid = lid.build().unwrap();
        assert_eq!(DatagramEndpoint::from_bytes(&lid.to_bytes()), Ok(lid));
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        let with = |at: usize, value: u8| {
            let mut bytes = endpoint().to_bytes();
            bytes[at] = value;
            DatagramEndpoint::from_bytes(&bytes).unwrap_err()
        };
        let what = |error| match error {
            EndpointError::Number { what, .. } => what,
            other => panic!("{other}"),
        };
        assert_eq!(with(3, 1), EndpointError::Version { version: 1 });
        assert_eq!(what(with(4, 1)), "qp_num");
        assert_eq!(what(with(8, 0x80)), "qkey");
        assert_eq!(what(with(12, 0xc0)), "lid");
        assert_eq!(with(14, 0), EndpointError::NoAddress);
        assert_eq!(what(with(15, 0)), "mtu");
        assert_eq!(what(with(15, 6)), "mtu");
        assert_eq!(with(16, 0xff), EndpointError::NoAddress, "multicast");
    }

    #[test]
    fn endpoint_of_a_connection_is_no_datagram_endpoint() {
        let bytes = [&endpoint().to_bytes()[..], &[0; 5]].concat();
        for len in (0..DatagramEndpoint::BYTES).chain([37]) {
            assert_eq!(
                DatagramEndpoint::from_bytes(&bytes[..len]),
                Err(EndpointError::Length { len, expected: 32 })
            );
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_checks_too() {
        let json = serde_json::to_string(&endpoint()).unwrap();
        assert!(json.starts_with(r#"{"version":2,"qp_num":4660,"#), "{json}");
        let back: DatagramEndpoint = serde_json::from_str(&json).unwrap();
        assert_eq!(back, endpoint());
        let refused = |json: &str| {
            let error = serde_json::from_str::<DatagramEndpoint>(json).unwrap_err();
            error.to_string()
        };
        assert!(refused("{}").contains("version 0 is unknown"));
        assert!(refused(&json.replace("286331153", "2415919104")).contains("qkey 2415919104"));
    }
}
