//! The guide explains each error that is not rare.

use verbs_harness::chains::{Explained, assert_explained};

use crate::guide;

/// Errors that the guide does not explain, and why.
const RARE: &[(&str, &str)] = &[
    ("Error::BlockTooShort", CURED),
    ("Error::CacheFull", CURED),
    ("Error::CacheRecursion", MISTAKE),
    ("Error::CacheTimedOut", CURED),
    ("Error::ForeignMember", MISTAKE),
    ("Error::GroupFailed", DEVICE),
    ("Error::GroupFull", CURED),
    ("Error::NotDeregistered", DEVICE),
    ("Error::PeerTimeout", CURED),
    ("Error::StaleTicket", MISTAKE),
    ("Error::UnknownChannel", MISTAKE),
    ("Error::Unpolled", CURED),
    (
        "DownReason::Abandoned",
        "the program dropped what was in flight",
    ),
    ("DownReason::Closed", "the program closed the channel"),
    ("DownReason::Device", DEVICE),
    ("DownReason::Event", DEVICE),
    ("DownReason::NotifierFailed", "of verbs-async"),
    ("DownReason::Poll", DEVICE),
    ("DownReason::Post", DEVICE),
    ("DownReason::ReceivesLost", DEVICE),
    ("DownReason::TooManyEarly", CURED),
    ("DownReason::Work", "the first failure, which is explained"),
    ("EndpointError::Length", BYTES),
    ("EndpointError::NoAddress", BYTES),
    ("EndpointError::Number", BYTES),
    ("ExchangeError::Kind", BYTES),
    ("ExchangeError::OtherKey", CURED),
    ("ExchangeError::Over", MISTAKE),
    ("ExchangeError::PrivateData", CURED),
    ("ExchangeError::PrivateDataBeyondManager", CURED),
    ("ExchangeError::PrivateDataBeyondMtu", CURED),
    ("ExchangeError::Proposal", BYTES),
    ("ExchangeError::TooLong", BYTES),
    ("RejectReason::BatchTooLong", CURED),
    ("RejectReason::Budget", CURED),
    ("RejectReason::DatagramTooLong", CURED),
    ("RejectReason::ElementTooLong", CURED),
    ("RejectReason::EmptyBatch", MISTAKE),
    ("RejectReason::InvalidatingWrite", MISTAKE),
    ("RejectReason::LeaseAccess", CURED),
    ("RejectReason::MessageTooLong", CURED),
    ("RejectReason::Misaligned", CURED),
    ("RejectReason::NoCapacity", CURED),
    ("RejectReason::NoRequest", MISTAKE),
    ("RejectReason::NoWindow", CURED),
    ("RejectReason::Post", DEVICE),
    ("RejectReason::ReceiveInBatch", CURED),
    ("RejectReason::ReceiveTooLong", CURED),
    ("RejectReason::SharedInline", CURED),
    ("RejectReason::SharedReceives", CURED),
    ("RejectReason::TooManyElements", CURED),
    ("RejectReason::UnknownChannel", CURED),
    ("RejectReason::UnknownRemote", CURED),
    ("TransportError::Stuck", DEVICE),
    ("TransportError::Taken", MISTAKE),
];
/// The same of verbs-core.
const RARE_IN_CORE: &[(&str, &str)] = &[
    ("Error::Destroyed", MISTAKE),
    ("Error::Endpoint", "explained as what an exchange gets"),
    ("Error::ForeignContext", CURED),
    ("Error::OtherProcess", MISTAKE),
    (
        "Error::ForeignParent",
        "of objects that another library made",
    ),
    ("Error::GidRemoved", CURED),
    ("Error::InUse", CURED),
    ("Error::Misaligned", CURED),
    ("Error::OutOfRange", CURED),
    ("Error::PkeyRemoved", CURED),
    ("Error::Poll", DEVICE),
    ("Error::RemoteLength", BYTES),
    (
        "Error::RemoteTooShort",
        "explained as what a channel rejects",
    ),
    (
        "Error::UnknownPlace",
        "of a CPU or PCI device that the program names",
    ),
    (
        "Error::Unreachable",
        "of datagrams; explained as what a channel gets",
    ),
];
const CURED: &str = "the text has the limit, or what to do";
const MISTAKE: &str = "a mistake of the program, which the text names";
const DEVICE: &str = "a fault of the device: in the chapter on faults";
const BYTES: &str = "of a peer that sends invalid bytes: in the chapter on faults";

#[test]
fn guide_explains_each_error_that_is_not_rare() {
    let errors = guide::errors();
    let core = &["Core", "Manager"][..];
    let core = [(
        "Error",
        core,
        include_str!("../../../verbs-core/src/error/mod.rs"),
    )];
    assert_explained(&core, &errors, RARE_IN_CORE);
    let endpoint = include_str!("../../../verbs-core/src/error/endpoint.rs");
    let transport = include_str!("../../src/error/transport.rs");
    let types: [Explained<'_>; 6] = [
        ("Error", &[""], include_str!("../../src/error/mod.rs")),
        (
            "RejectReason",
            &["Rejected"],
            include_str!("../../src/error/reject_reason.rs"),
        ),
        ("TransportError", &["Transport"], transport),
        (
            "DownReason",
            &["Aborted", "Down"],
            include_str!("../../src/error/down_reason.rs"),
        ),
        (
            "ExchangeError",
            &["Exchange"],
            include_str!("../../src/exchange/error.rs"),
        ),
        ("EndpointError", &["Endpoint"], endpoint),
    ];
    assert_explained(&types, &errors, RARE);
}
