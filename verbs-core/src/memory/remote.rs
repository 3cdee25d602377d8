//! Remote regions: memory of the peer, as data.

use std::ops::RangeBounds;

use super::range::within;
use crate::error::{Error, Result};

/// Memory of the peer that this side may reach: an address, a length and a key.
///
/// It is plain data. The owner of the memory gets it from
/// [`SharedRegion::remote`](crate::SharedRegion::remote), and sends it to the peer by any means: as
/// [`to_bytes`](Self::to_bytes), or as serde data (feature `serde`). The peer can access the memory
/// with it until the owner deregisters the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "Wire", into = "Wire")
)]
pub struct RemoteMemoryRegion {
    addr: u64,
    len: u64,
    rkey: u32,
}

impl RemoteMemoryRegion {
    /// A region from an address, a length and a key that the peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `addr + len` overflows.
    pub const fn new(addr: u64, len: u64, rkey: u32) -> Result<Self> {
        match addr.checked_add(len) {
            Some(_) => Ok(Self { addr, len, rkey }),
            None => Err(Error::OutOfRange {
                what: "a remote region of length",
                value: len,
                min: 0,
                max: u64::MAX - addr,
            }),
        }
    }

    /// The region of a buffer of this program, which ends at an address.
    pub(super) const fn of_memory(addr: u64, len: u64, rkey: u32) -> Self {
        Self { addr, len, rkey }
    }

    /// Its first address, as the peer's device sees it.
    #[must_use]
    #[doc(alias = "remote_addr")]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "C has a length")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The key that remote access needs (C: `rkey`).
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// How many bytes [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = 20;

    /// The region as bytes: the address (8 bytes), the length (8 bytes) and the key (4 bytes), each
    /// with its most significant byte first.
    ///
    /// The format carries no version and does not change.
    ///
    /// ```
    /// use verbs_core::RemoteMemoryRegion;
    ///
    /// let region = RemoteMemoryRegion::new(0x1000, 4096, 7)?;
    /// let bytes: [u8; RemoteMemoryRegion::BYTES] = region.to_bytes();
    /// assert_eq!(RemoteMemoryRegion::from_bytes(&bytes)?, region);
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// The region from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`Error::RemoteLength`] if there are not exactly [`BYTES`](Self::BYTES) bytes, otherwise as
    /// [`new`](Self::new).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let length = Error::RemoteLength {
            len: bytes.len(),
            expected: Self::BYTES,
        };
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(length);
        };
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        let addr = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let [a, b, c, d, e, f, g, h, rkey @ ..] = rest;
        let len = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        Self::new(addr, len, u32::from_be_bytes(rkey))
    }

    /// A part of the region. The range counts bytes from its start.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range ends after the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self> {
        let (start, end) = within(self.len, range)?;
        Ok(Self {
            addr: self.addr + start,
            len: end - start,
            rkey: self.rkey,
        })
    }
}

/// The wire format, checked when it is read.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "RemoteMemoryRegion")]
struct Wire {
    addr: u64,
    len: u64,
    rkey: u32,
}

#[cfg(feature = "serde")]
impl TryFrom<Wire> for RemoteMemoryRegion {
    type Error = Error;

    fn try_from(Wire { addr, len, rkey }: Wire) -> Result<Self> {
        Self::new(addr, len, rkey)
    }
}

#[cfg(feature = "serde")]
impl From<RemoteMemoryRegion> for Wire {
    fn from(RemoteMemoryRegion { addr, len, rkey }: RemoteMemoryRegion) -> Self {
        Self { addr, len, rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_bounded() {
        let region = RemoteMemoryRegion::new(0x1000, 100, 5).unwrap();
        let part = region.slice(10..30).unwrap();
        assert_eq!((part.addr(), part.len(), part.rkey()), (0x100a, 20, 5));
        assert_eq!(part.slice(..).unwrap(), part);
        assert!(part.slice(..=20).is_err());
        assert!(part.slice(21..).is_err());
        assert!(part.slice(..=u64::MAX).is_err());
    }

    #[test]
    fn the_last_address_is_the_end() {
        assert!(RemoteMemoryRegion::new(u64::MAX, 0, 0).is_ok());
        assert!(RemoteMemoryRegion::new(u64::MAX, 1, 0).is_err());
    }

    #[test]
    fn bytes_survive_a_round_trip() {
        let region = RemoteMemoryRegion::new(0x0102_0304_0506_0708, 0x0a0b, 0xc0d0_e0f0).unwrap();
        let bytes = region.to_bytes();
        assert_eq!(
            bytes,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 10, 11, 0xc0, 0xd0, 0xe0, 0xf0
            ]
        );
        assert_eq!(RemoteMemoryRegion::from_bytes(&bytes).unwrap(), region);
    }

    #[test]
    fn bytes_are_checked() {
        for len in [0, 19, 21] {
            let error = RemoteMemoryRegion::from_bytes(&vec![0; len]).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::InvalidPeer);
            let text = format!("a remote region is 20 bytes long, not {len}");
            assert_eq!(error.to_string(), text);
        }
        assert!(RemoteMemoryRegion::from_bytes(&[0xff; 20]).is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn deserialized_regions_are_checked() {
        let region = RemoteMemoryRegion::new(0x1000, 100, 5).unwrap();
        let json = serde_json::to_string(&region).unwrap();
        assert_eq!(json, r#"{"addr":4096,"len":100,"rkey":5}"#);
        assert_eq!(
            serde_json::from_str::<RemoteMemoryRegion>(&json).unwrap(),
            region
        );
        let lie = r#"{"addr":18446744073709551615,"len":2,"rkey":5}"#;
        assert!(serde_json::from_str::<RemoteMemoryRegion>(lie).is_err());
    }
}
