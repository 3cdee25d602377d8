//! The key that a datagram must carry.

use std::fmt;

use crate::error::{Error, Result};
use crate::ffi::random;

/// A Q_Key: a queue pair accepts a datagram only if it carries the queue pair's own key.
///
/// A key has 31 bits. If the top bit were set, the device would replace the key in a request with
/// that of the sending queue pair, so such a key is not a valid value here. A datagram with a wrong
/// key is dropped silently, and its send succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "qkey")]
#[doc(alias = "remote_qkey")]
pub struct QKey(u32);

impl QKey {
    /// The largest key.
    pub const MAX: Self = Self(0x7fff_ffff);

    /// Checks a key: 0 to 0x7fffffff.
    ///
    /// ```
    /// use verbs_core::path::QKey;
    ///
    /// assert_eq!(QKey::new(0x1111_1111)?.get(), 0x1111_1111);
    /// assert!(QKey::new(0x8000_0000).is_err());
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a key with its top bit set.
    pub const fn new(qkey: u32) -> Result<Self> {
        if qkey <= Self::MAX.0 {
            return Ok(Self(qkey));
        }
        Err(Error::OutOfRange {
            what: "qkey",
            value: qkey as u64,
            min: 0,
            max: Self::MAX.0 as u64,
        })
    }

    /// The key of every datagram service and multicast group that a connection manager finds by an IP
    /// address.
    #[cfg(feature = "rdmacm")]
    #[doc(alias = "RDMA_UDP_QKEY")]
    pub const RDMA_UDP: Self = Self(verbs_sys::RDMA_UDP_QKEY);

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// An error unless it is the one that peers use.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn check_is(self, wanted: Self) -> Result<()> {
        if self == wanted {
            return Ok(());
        }
        Err(Error::OutOfRange {
            what: "qkey",
            value: self.0.into(),
            min: wanted.0.into(),
            max: wanted.0.into(),
        })
    }

    /// Another one each time, so that datagrams for an earlier queue pair of the same number are
    /// dropped.
    pub(crate) fn random() -> Self {
        let [a, b, c, d, ..] = random().to_ne_bytes();
        Self(u32::from_ne_bytes([a, b, c, d]) & Self::MAX.0)
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({:#010x})", self.0)
    }
}
