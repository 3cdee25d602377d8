//! Failed work requests.

use std::fmt;

use super::ErrorDebug;
use crate::codes::wc_status::Kind;
use crate::codes::{WcOpcode, WcStatus};

/// A work request that failed, from its completion.
///
/// The `Display` is the status, its meaning and what to do about it: for requests of its kind if that was
/// [set](Self::for_opcode). A failed completion does not contain the opcode: only the `wr_id` identifies the request.
///
/// The queue pair is now in [`ERR`](crate::codes::QpState::ERR): all other requests that were posted on it
/// are flushed. A failed send on an unreliable connection, or of a datagram, may move it to
/// [`SQE`](crate::codes::QpState::SQE) instead: then only its sends are flushed.
///
/// `Debug` is the same text, with the `wr_id` in brackets.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{status:?} on QP {qp_num:#x}: {}{}", status.text(*kind), VendorCode(*vendor_err))]
#[non_exhaustive]
pub struct WorkError {
    /// The status: how the request failed.
    pub status: WcStatus,
    /// The vendor's own code for the failure, for the vendor's support; 0 if there is none.
    pub vendor_err: u32,
    /// The ID of the work request, as given when it was posted.
    pub wr_id: u64,
    /// The number of the queue pair it was posted on.
    pub qp_num: u32,
    // The kind of the request; `Any` in an error that a poll returns.
    pub(crate) kind: Kind,
}

impl WorkError {
    /// The same failure with a text about requests of this kind only, for those who know what was posted: the opcode
    /// of the completion if it had succeeded.
    #[must_use]
    pub const fn for_opcode(self, opcode: WcOpcode) -> Self {
        let kind = Kind::of(opcode);
        Self { kind, ..self }
    }
}

impl ErrorDebug for WorkError {
    fn write_variant(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkError of wr_id {}", self.wr_id)
    }
}

impl fmt::Debug for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_debug(f)
    }
}

/// The vendor's code in parentheses, if there is one.
struct VendorCode(u32);

impl fmt::Display for VendorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            code => write!(f, " (vendor code {code:#x})"),
        }
    }
}
