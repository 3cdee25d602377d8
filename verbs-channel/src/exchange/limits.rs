//! The numbers of the protocol.

pub(super) const VERSION: u16 = 1;

/// The most private data that a peer can give with its endpoint, in bytes.
pub const MAX_PRIVATE_DATA: usize = 1024;
