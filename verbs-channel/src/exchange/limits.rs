//! The version and the limits of the protocol.

use std::time::{Duration, Instant};

pub(super) const VERSION: u16 = 1;

/// The most bytes of private data that a side can send with its endpoint.
pub const MAX_PRIVATE_DATA: usize = 1024;

/// Used if a deadline cannot be computed.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The deadline of an exchange that begins now.
pub(crate) fn deadline(now: Instant, timeout: Duration) -> Instant {
    now.checked_add(timeout).unwrap_or(now + LONGEST)
}
