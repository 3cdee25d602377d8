//! Errors for the tests of this crate and of those above.

#[cfg(feature = "rdmacm")]
use super::cm_failure::CmFailure;
use super::post_error::{Queue, Reason};
use super::{PollError, PostError, WorkError};
use crate::codes::WcStatus;
use crate::codes::wc_status::Kind;

/// A peer that did not answer.
#[must_use]
pub const fn work_error() -> WorkError {
    WorkError {
        status: WcStatus::RETRY_EXC_ERR,
        vendor_err: 0x81,
        wr_id: 2,
        qp_num: 3,
        kind: Kind::Any,
    }
}

/// A driver's own code.
#[must_use]
pub const fn poll_error() -> PollError {
    PollError::new(-2)
}

/// One of each reason.
#[must_use]
pub fn post_errors() -> [PostError; 8] {
    // Exhaustive: a reason that is new does not compile until it is listed here.
    match Reason::Full {
        Reason::Full
        | Reason::Inline
        | Reason::Elements
        | Reason::TooLong
        | Reason::NoRequest
        | Reason::OtherDomain
        | Reason::Operation
        | Reason::Unknown => {}
    }
    [
        Reason::Full,
        Reason::Inline,
        Reason::Elements,
        Reason::TooLong,
        Reason::NoRequest,
        Reason::OtherDomain,
        Reason::Operation,
        Reason::Unknown,
    ]
    .map(|reason| PostError::new(Queue::Send, 1, libc::EINVAL, (3, 2, reason)))
}

/// Those of the guide: the address is of no RDMA device, and no program listens.
#[cfg(feature = "rdmacm")]
#[must_use]
pub const fn cm_failures() -> [CmFailure; 2] {
    [CmFailure::no_device(None), CmFailure::REFUSED]
}
