//! Errors of a peer's endpoint.

use crate::codes::QpType;

/// The version of the formats of a [`QueuePairEndpoint`](crate::QueuePairEndpoint): its bytes and
/// its serde data.
pub const ENDPOINT_VERSION: u32 = 2;

/// Why the endpoint that a peer sent cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The endpoint is in another version of this format.
    #[error(
        "endpoint version {version} is unknown: this library has version {}",
        ENDPOINT_VERSION
    )]
    Version {
        /// The peer's version.
        version: u32,
    },
    /// A number in the endpoint is out of its range.
    #[error("{what} {value} is impossible: {min} to {max} are valid")]
    Number {
        /// C's name of the field.
        what: &'static str,
        /// The value.
        value: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// The endpoint has no address: neither a LID nor a GID that a port can have.
    #[error("the endpoint has neither a LID nor a GID that one port can have")]
    NoAddress,
    /// This side's port needs a GID and the peer gave none.
    #[error("this side's port is addressed by GID and the peer gave none")]
    NoGid,
    /// This side's port is addressed by LID and the peer gave none.
    #[error("this side's port is addressed by LID and the peer gave none")]
    NoLid,
    /// The two queue pairs are of different types.
    #[error(
        "this side's queue pair is of type {ours} and the peer's of type {theirs}: build both with the same qp_type"
    )]
    QpType {
        /// This side's type.
        ours: QpType,
        /// The peer's type.
        theirs: QpType,
    },
    /// The bytes end too early, or go on after the end.
    #[error("an endpoint is {expected} bytes long, not {len}")]
    Length {
        /// The length received, in bytes.
        len: usize,
        /// The length of an endpoint of this version, in bytes.
        expected: usize,
    },
}

crate::error_debug!(EndpointError {
    Version,
    Number,
    NoAddress,
    NoGid,
    NoLid,
    QpType,
    Length
});
