//! Endpoints: the addresses and limits that two queue pairs exchange to connect.

use super::settings::Config;
use super::timers::PacketSequenceNumber;
use crate::codes::{Gid, MaximumTransferUnit, QpType};
use crate::error::{ENDPOINT_VERSION, EndpointError};
use crate::path::LocalPath;
use crate::path::wire::{check_address, check_version, put, take, version_of, within};

/// The data that a peer needs to connect to a queue pair.
///
/// Send it by any means: as serde data (feature `serde`), or as [`to_bytes`](Self::to_bytes). Both
/// forms carry a version. Numbers are checked when an endpoint is made or received.
///
/// The endpoint of this side also has the port, GID and limits that were chosen for it.
#[derive(bon::Builder, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[builder(
    builder_type(doc {
        /// Builder for an endpoint, from [`QueuePairEndpoint::builder`].
    }),
    start_fn(doc {
        /// Starts to build an endpoint from parts that were received in some other protocol.
        ///
        /// `qp_num` is the peer's queue pair, 24 bits, and `psn` the number of its first packet.
        ///
        /// ```
        /// use verbs_core::{PacketSequenceNumber, QueuePairEndpoint};
        ///
        /// let endpoint = QueuePairEndpoint::builder(0x11, PacketSequenceNumber::new(7)?)
        ///     .lid(4)
        ///     .build()?;
        /// assert_eq!(endpoint.qp_num(), 0x11);
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
pub struct QueuePairEndpoint {
    #[builder(start_fn)]
    qp_num: u32,
    #[builder(start_fn)]
    psn: PacketSequenceNumber,
    /// The queue pair's type; [`QpType::Rc`] unless set.
    #[builder(default = QpType::Rc, setters(option_fn(vis = "")))]
    qp_type: QpType,
    /// The port's LID; 0, none, unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    lid: u16,
    /// The port's GID; none unless set.
    #[builder(default = None, with = |value: impl Into<Option<Gid>>| value.into(), setters(option_fn(vis = "")))]
    gid: Option<Gid>,
    /// The index of the GID in the port's table; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    gid_index: u8,
    /// The number of the port; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    port_num: u8,
    /// The largest path MTU; 4096 bytes unless set, so that the other side's decides.
    #[builder(default = MaximumTransferUnit::Mtu4096, setters(option_fn(vis = "")))]
    path_mtu: MaximumTransferUnit,
    /// How many reads and atomics it has in flight at once; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    max_rd_atomic: u8,
    /// How many reads and atomics of its peer it serves at once; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    max_dest_rd_atomic: u8,
}

impl<S: queue_pair_endpoint_builder::IsComplete> QueuePairEndpointBuilder<S> {
    /// Checks the numbers, and returns the endpoint.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] if a number is out of its range, or there is neither a LID nor a GID.
    pub fn build(self) -> Result<QueuePairEndpoint, EndpointError> {
        self.unchecked().checked()
    }
}

impl QueuePairEndpoint {
    /// The endpoint of a queue pair of this side.
    pub(super) fn chosen(
        qp_num: u32,
        psn: PacketSequenceNumber,
        path: &LocalPath,
        config: &Config,
    ) -> Self {
        Self {
            qp_type: config.qp_type,
            qp_num,
            psn,
            lid: path.lid,
            gid: path.gid.map(|entry| entry.gid()),
            gid_index: path.sgid_index().unwrap_or(0),
            port_num: path.port_num,
            path_mtu: config.path_mtu.unwrap_or(path.active_mtu),
            max_rd_atomic: config.max_rd_atomic,
            max_dest_rd_atomic: config.max_dest_rd_atomic,
        }
    }

    /// How many reads and atomics it has in flight to a peer at once.
    pub(super) fn depth_to(&self, remote: &Self) -> u8 {
        self.max_rd_atomic.min(remote.max_dest_rd_atomic)
    }

    /// Sets how many reads and atomics of its peer it serves.
    pub(super) const fn serve(&mut self, max_dest_rd_atomic: u8) {
        self.max_dest_rd_atomic = max_dest_rd_atomic;
    }

    /// The same with what a connection manager has agreed on.
    #[cfg(feature = "rdmacm")]
    pub(super) const fn agreed(
        mut self,
        psn: PacketSequenceNumber,
        path_mtu: MaximumTransferUnit,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
    ) -> Self {
        self.psn = psn;
        self.path_mtu = path_mtu;
        self.max_rd_atomic = max_rd_atomic;
        self.max_dest_rd_atomic = max_dest_rd_atomic;
        self
    }

    /// The same for the peer of a connection manager: it is not checked, and on iWARP all is zero.
    #[cfg(feature = "rdmacm")]
    pub(super) const fn of_peer(mut self, qp_num: u32, lid: u16, gid: Option<Gid>) -> Self {
        self.qp_num = qp_num;
        self.lid = lid;
        self.gid = gid;
        self.gid_index = 0;
        self.port_num = 0;
        self
    }

    /// How many bytes [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = 37;

    /// The queue pair's type.
    #[must_use]
    pub const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// The queue pair's number.
    #[must_use]
    pub const fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The number of its first packet.
    #[must_use]
    pub const fn psn(&self) -> PacketSequenceNumber {
        self.psn
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

    /// The index of the GID in the port's table.
    #[must_use]
    #[doc(alias = "sgid_index")]
    pub const fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The number of the port.
    #[must_use]
    pub const fn port_num(&self) -> u8 {
        self.port_num
    }

    /// The largest path MTU: the port's active MTU, or the one that was set in the builder.
    #[must_use]
    pub const fn path_mtu(&self) -> MaximumTransferUnit {
        self.path_mtu
    }

    /// How many reads and atomics it has in flight at once.
    #[must_use]
    pub const fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic
    }

    /// How many reads and atomics of its peer it serves at once.
    #[must_use]
    pub const fn max_dest_rd_atomic(&self) -> u8 {
        self.max_dest_rd_atomic
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
        put(&wire.psn.to_be_bytes());
        put(&wire.lid.to_be_bytes());
        put(&[u8::from(wire.gid.is_some()), wire.gid_index]);
        put(&wire.gid.unwrap_or_default());
        let path_mtu = u8::try_from(wire.path_mtu).unwrap_or(0);
        put(&[
            wire.port_num,
            path_mtu,
            wire.max_rd_atomic,
            wire.max_dest_rd_atomic,
            wire.qp_type,
        ]);
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
        let psn = u32::from_be_bytes(take(&mut rest));
        let lid = u16::from_be_bytes(take(&mut rest));
        let [has_gid, gid_index] = take(&mut rest);
        let gid = take::<16>(&mut rest);
        let [port_num, path_mtu, max_rd_atomic, max_dest_rd_atomic] = take(&mut rest);
        let [qp_type] = take(&mut rest);
        Self::try_from(Wire {
            version: ENDPOINT_VERSION,
            qp_num,
            psn,
            lid,
            gid: (has_gid != 0).then_some(gid),
            gid_index,
            port_num,
            path_mtu: path_mtu.into(),
            max_rd_atomic,
            max_dest_rd_atomic,
            qp_type,
        })
    }

    fn checked(self) -> Result<Self, EndpointError> {
        within("port_num", self.port_num.into(), 1, 255)?;
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
    serde(default, rename = "QueuePairEndpoint")
)]
struct Wire {
    version: u32,
    qp_num: u32,
    psn: u32,
    lid: u16,
    gid: Option<[u8; 16]>,
    gid_index: u8,
    port_num: u8,
    path_mtu: u32,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    qp_type: u8,
}

impl TryFrom<Wire> for QueuePairEndpoint {
    type Error = EndpointError;

    fn try_from(wire: Wire) -> Result<Self, EndpointError> {
        check_version(wire.version)?;
        within(
            "psn",
            wire.psn.into(),
            0,
            PacketSequenceNumber::MAX.get().into(),
        )?;
        within("path_mtu", wire.path_mtu.into(), 1, 5)?;
        let (rc, uc) = (QpType::Rc.code(), QpType::Uc.code());
        within("qp_type", wire.qp_type.into(), rc.into(), uc.into())?;
        Self {
            qp_type: QpType::from_code(wire.qp_type).unwrap_or_default(),
            qp_num: wire.qp_num,
            psn: PacketSequenceNumber::new(wire.psn).unwrap_or(PacketSequenceNumber::MAX),
            lid: wire.lid,
            gid: wire.gid.map(Gid::new),
            gid_index: wire.gid_index,
            port_num: wire.port_num,
            path_mtu: MaximumTransferUnit::from_raw(wire.path_mtu)
                .unwrap_or(MaximumTransferUnit::Mtu256),
            max_rd_atomic: wire.max_rd_atomic,
            max_dest_rd_atomic: wire.max_dest_rd_atomic,
        }
        .checked()
    }
}

impl From<QueuePairEndpoint> for Wire {
    fn from(endpoint: QueuePairEndpoint) -> Self {
        Self {
            version: ENDPOINT_VERSION,
            qp_num: endpoint.qp_num,
            psn: endpoint.psn.get(),
            lid: endpoint.lid,
            gid: endpoint.gid.map(Gid::raw),
            gid_index: endpoint.gid_index,
            port_num: endpoint.port_num,
            path_mtu: endpoint.path_mtu.as_raw(),
            max_rd_atomic: endpoint.max_rd_atomic,
            max_dest_rd_atomic: endpoint.max_dest_rd_atomic,
            qp_type: endpoint.qp_type.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> QueuePairEndpoint {
        QueuePairEndpoint::builder(0x1234, PacketSequenceNumber::new(0xab_cdef).unwrap())
            .gid(Gid::new([1; 16]))
            .gid_index(1)
            .path_mtu(MaximumTransferUnit::Mtu1024)
            .max_rd_atomic(16)
            .max_dest_rd_atomic(8)
            .build()
            .unwrap()
    }

    #[test]
    fn bytes_survive_a_round_trip() {
        let bytes = endpoint().to_bytes();
        assert_eq!(
            bytes[..12],
            [0, 0, 0, 2, 0, 0, 0x12, 0x34, 0, 0xab, 0xcd, 0xef]
        );
        assert_eq!(QueuePairEndpoint::from_bytes(&bytes), Ok(endpoint()));
        let lid = QueuePairEndpoint::builder(2, PacketSequenceNumber::MAX)
            .qp_type(QpType::Uc)
            .lid(9);
        let lid = lid.build().unwrap();
        assert_eq!(QueuePairEndpoint::from_bytes(&lid.to_bytes()), Ok(lid));
    }

    #[test]
    fn another_version_is_named_whatever_its_length() {
        let mut bytes = endpoint().to_bytes().to_vec();
        bytes[3] = 1;
        let version = EndpointError::Version { version: 1 };
        assert_eq!(QueuePairEndpoint::from_bytes(&bytes), Err(version));
        assert_eq!(QueuePairEndpoint::from_bytes(&bytes[..7]), Err(version));
        assert_eq!(
            version.to_string(),
            "endpoint version 1 is unknown: this library has version 2"
        );
    }

    #[test]
    fn text_is_not_another_version() {
        let length = EndpointError::Length {
            len: 5,
            expected: QueuePairEndpoint::BYTES,
        };
        assert_eq!(QueuePairEndpoint::from_bytes(b"hello"), Err(length));
    }

    #[test]
    fn a_wrong_length_is_an_error() {
        let bytes = endpoint().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(
                QueuePairEndpoint::from_bytes(&bytes[..len]),
                Err(EndpointError::Length { len, expected: 37 })
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(QueuePairEndpoint::from_bytes(&longer).is_err());
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        let with = |at: usize, value: u8| {
            let mut bytes = endpoint().to_bytes();
            bytes[at] = value;
            QueuePairEndpoint::from_bytes(&bytes).unwrap_err()
        };
        let what = |error| match error {
            EndpointError::Number { what, .. } => what,
            other => panic!("{other}"),
        };
        assert_eq!(what(with(4, 1)), "qp_num");
        assert_eq!(what(with(8, 1)), "psn");
        assert_eq!(what(with(32, 0)), "port_num");
        assert_eq!(what(with(33, 0)), "path_mtu");
        assert_eq!(what(with(33, 6)), "path_mtu");
        assert_eq!(what(with(36, 1)), "qp_type");
        assert_eq!(what(with(36, 4)), "qp_type");
        assert_eq!(with(14, 0), EndpointError::NoAddress);
        let mut zero = endpoint().to_bytes();
        zero[16..32].fill(0);
        let refused = Err(EndpointError::NoAddress);
        assert_eq!(QueuePairEndpoint::from_bytes(&zero), refused);
        let mut multicast = endpoint().to_bytes();
        multicast[16] = 0xff;
        assert_eq!(QueuePairEndpoint::from_bytes(&multicast), refused);
        assert_eq!(what(with(12, 0xc0)), "lid");
        let psn = PacketSequenceNumber::MAX;
        assert!(
            QueuePairEndpoint::builder(0xff_ffff, psn)
                .lid(1)
                .build()
                .is_err()
        );
        assert!(QueuePairEndpoint::builder(1, psn).lid(1).build().is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_checks_too() {
        let json = serde_json::to_string(&endpoint()).unwrap();
        assert!(json.starts_with(r#"{"version":2,"qp_num":4660,"#), "{json}");
        assert_eq!(
            serde_json::from_str::<QueuePairEndpoint>(&json).unwrap(),
            endpoint()
        );
        let refused = |json: &str| {
            serde_json::from_str::<QueuePairEndpoint>(json)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(r#"{"version":7,"new":true}"#).contains("version 7 is unknown"));
        assert!(refused("{}").contains("version 0 is unknown"));
        assert!(refused(&json.replace("4660", "16777216")).contains("qp_num 16777216"));
        assert!(refused(&json.replace(r#""path_mtu":3"#, r#""path_mtu":9"#)).contains("path_mtu"));
    }
}
