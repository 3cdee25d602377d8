//! The version and the limits of the protocol.

pub(super) const VERSION: u16 = 1;

/// The most bytes of private data that a side can send with its endpoint.
pub const MAX_PRIVATE_DATA: usize = 1024;
