//! The texts of errors, alone and with their sources: no part of a chain repeats another.
//!
//! After a variant is added, this fails until the variant is listed.

use std::io;
use std::time::Duration;

use verbs_core::__private::{poll_error, post_errors, work_error};
use verbs_core::device::{EventType, TransportType};
use verbs_core::error::EndpointError;
use verbs_harness::chains::{
    Explained, assert_debug_is_text, assert_explained, assert_repeats_nothing, parts,
};

use crate::channel_id::ChannelId;
use crate::engine::TransferError;
use crate::error::{DownReason, Error, Queue, RejectReason, Rejected, ScopeError, TransportError};
use crate::exchange::{ExchangeError, RefusalCode};

fn reasons() -> Vec<DownReason> {
    let mut all = vec![
        DownReason::Work {
            queue: Queue::Send,
            error: work_error(),
        },
        DownReason::Work {
            queue: Queue::Receive,
            error: work_error(),
        },
        DownReason::Poll(poll_error()),
        DownReason::TimedOut {
            queue: Queue::Receive,
            after: Duration::from_secs(1),
        },
        DownReason::Abandoned,
        DownReason::Device(5),
        DownReason::Unflushed,
        DownReason::Event(EventType::QP_FATAL),
        DownReason::TooManyEarly,
        DownReason::ReceivesLost,
        DownReason::PeerClosed,
        DownReason::PeerLost,
        DownReason::NotifierFailed,
        DownReason::Closed,
    ];
    all.extend(post_errors().map(DownReason::Post));
    all
}

fn transport_errors() -> Vec<TransportError> {
    let mut all = vec![
        TransportError::Work {
            queue: Queue::Send,
            error: work_error(),
        },
        TransportError::Stuck,
        TransportError::Taken,
    ];
    all.extend(reasons().into_iter().map(TransportError::Aborted));
    all.extend(reject_reasons().into_iter().map(TransportError::Rejected));
    all
}

fn reject_reasons() -> Vec<RejectReason> {
    let (len, max, count, local, remote) = (10, 9, 10, 2, 1);
    let mut all = vec![
        RejectReason::Backpressure(Queue::Send),
        RejectReason::NoCapacity(Queue::Receive),
        RejectReason::Budget(Queue::Send),
        RejectReason::Untaken,
        RejectReason::TimedOut,
        RejectReason::BatchTooLong { asked: 10, max },
        RejectReason::EmptyBatch,
        RejectReason::ReceiveInBatch,
        RejectReason::MessageTooLong { len, max },
        RejectReason::DatagramTooLong { len, max },
        RejectReason::ReceiveTooLong { len },
        RejectReason::InlineTooLong { len, max },
        RejectReason::SharedInline,
        RejectReason::OtherDomain,
        RejectReason::TooManyElements { count, max },
        RejectReason::NoReads,
        RejectReason::RemoteTooShort { local, remote },
        RejectReason::ElementTooLong { len },
        RejectReason::Misaligned { addr: 1, len },
        RejectReason::SharedReceives,
        RejectReason::NoRequest { index: 3, len: 2 },
        RejectReason::LeaseAccess,
        RejectReason::NoWindow { max },
        RejectReason::InvalidatingWrite,
        RejectReason::UnknownRemote,
        RejectReason::UnknownChannel,
    ];
    all.extend(post_errors().map(RejectReason::Post));
    all.extend(reasons().into_iter().map(RejectReason::Down));
    all
}

fn exchange_errors() -> Vec<ExchangeError> {
    vec![
        ExchangeError::Tcp {
            what: "connect to",
            source: io::Error::other("the cause"),
        },
        ExchangeError::NoAddress,
        ExchangeError::Lookup {
            address: "\"server\"".into(),
            source: io::ErrorKind::InvalidInput.into(),
        },
        ExchangeError::Lookup {
            address: "\"server:7471\"".into(),
            source: io::Error::other("the cause"),
        },
        ExchangeError::NotListening {
            after: None,
            source: io::ErrorKind::ConnectionRefused.into(),
        },
        ExchangeError::TimedOut {
            what: "write",
            after: None,
        },
        ExchangeError::TimedOut {
            what: "answer",
            after: None,
        },
        ExchangeError::HungUp {
            got: 1,
            expected: 2,
        },
        ExchangeError::Refused {
            code: RefusalCode::HANDSHAKE,
            words: "no room: the group is full".into(),
        },
        ExchangeError::NotOurs(*b"HTTP"),
        ExchangeError::Version(7),
        ExchangeError::Kind {
            got: 1,
            expected: 2,
        },
        ExchangeError::TooLong { len: 2, max: 1 },
        ExchangeError::PrivateData(1000),
        ExchangeError::PrivateDataBeyondMtu { len: 200, max: 185 },
        ExchangeError::PrivateDataBeyondManager { len: 50, max: 49 },
        ExchangeError::Manager(verbs_core::Error::Endpoint(EndpointError::NoLid)),
        ExchangeError::OtherDevice {
            needed: "rxe1".to_owned(),
            ours: "rxe0".to_owned(),
        },
        ExchangeError::OtherKey,
        ExchangeError::OtherTransport {
            peer: TransportType::IWARP,
            ours: TransportType::IB,
        },
        ExchangeError::Proposal("an address for rdma_cm that cannot be used"),
        ExchangeError::Stranger,
        ExchangeError::Endpoint(EndpointError::NoAddress),
        ExchangeError::Over,
    ]
}

fn errors() -> Vec<Error> {
    let endpoint = || verbs_core::Error::Endpoint(EndpointError::NoLid);
    let mut all = vec![
        Error::StaleTicket,
        Error::InFlight {
            queue: Queue::Receive,
            after: Duration::from_secs(5),
        },
        Error::ForeignMember,
        Error::UnknownChannel(ChannelId::NONE),
        Error::GroupFull(endpoint()),
        Error::GroupFailed(DownReason::ReceivesLost),
        Error::Unpolled(1024),
        Error::Capacity {
            channels: 300,
            max_send_wr: 64,
            max_recv_wr: 64,
            shared_receives: 0,
            max_cqe: 32767,
        },
        Error::BlockTooShort {
            len: 5000,
            block_len: 4096,
        },
        Error::CacheFull {
            len: 4096,
            max_bytes: 8192,
            max_regions: 2,
        },
        Error::CacheFull {
            len: 16384,
            max_bytes: 8192,
            max_regions: 2,
        },
        Error::CacheTimedOut {
            after: Duration::from_millis(10),
        },
        Error::CacheRecursion,
        Error::PeerTimeout(Duration::from_millis(10)),
        Error::NotDeregistered { regions: 1 },
        Error::Core(endpoint()),
    ];
    all.extend(transport_errors().into_iter().map(Error::Transport));
    all.extend(exchange_errors().into_iter().map(Error::from));
    all
}

/// The types whose variants are all listed above, as their sources list them.
const TYPES: [Explained<'_>; 5] = [
    ("Error", &[""], include_str!("error/mod.rs")),
    (
        "TransportError",
        &["Transport"],
        include_str!("error/transport.rs"),
    ),
    (
        "RejectReason",
        &["Rejected"],
        include_str!("error/reject_reason.rs"),
    ),
    (
        "DownReason",
        &["Aborted", "Down"],
        include_str!("error/down_reason.rs"),
    ),
    (
        "ExchangeError",
        &["Exchange"],
        include_str!("exchange/error.rs"),
    ),
];

fn check<E: std::error::Error + 'static>(all: &[E]) {
    for error in all {
        assert_repeats_nothing(error);
        assert_debug_is_text(error);
    }
}

#[test]
fn no_error_repeats_its_source() {
    let debugs: Vec<_> = errors().iter().map(|error| format!("{error:?}")).collect();
    assert_explained(&TYPES, &debugs, &[]);
    check(&reasons());
    check(&transport_errors());
    check(&reject_reasons());
    check(&exchange_errors());
    check(&errors());
    let (failed, of, first) = (1, 2, RejectReason::Untaken.into());
    let stuck = TransferError::Stuck { stuck: 1, of };
    let leases = TransferError::LeasesStuck {
        leases: 1,
        failed,
        of,
        first,
    };
    check(&[stuck, leases, TransferError::Failed { failed, of, first }]);
    for reason in reject_reasons() {
        assert_eq!(parts(&Rejected::new(reason, ())), parts(&reason));
    }
    for error in transport_errors() {
        let scope = ScopeError::<Error>::AutoPollError(error);
        assert_repeats_nothing(&scope);
        assert_debug_is_text(&scope);
    }
    for error in errors() {
        let alone = parts(&error);
        let scope = ScopeError::ClosureError(error);
        // The closure's error has nothing in front of it.
        assert_eq!(parts(&scope), alone);
        assert_debug_is_text(&scope);
        // The I/O error that it converts into repeats nothing either.
        let io = io::Error::from(Error::from(scope));
        assert_eq!(parts(&io), alone);
    }
}

#[test]
fn debug_is_the_chain_and_the_variants_to_match() {
    let down = || Error::from(RejectReason::Down(DownReason::PeerClosed));
    let text = "the channel is down: the peer closed the connection [Transport(Rejected(Down(PeerClosed)))]";
    assert_eq!(format!("{:?}", down()), text);
    assert_eq!(format!("{:?}", ScopeError::ClosureError(down())), text);
    let rejected = Rejected::new(RejectReason::EmptyBatch, ());
    assert_eq!(
        format!("{rejected:?}"),
        "the batch or chain is empty [EmptyBatch]"
    );
    let failed = ScopeError::<Error>::AutoPollError(TransportError::Aborted(DownReason::PeerLost));
    assert_eq!(
        format!("{failed:?}"),
        "an operation that was left to the scope did not succeed: the operation was aborted: \
         the peer's host does not answer any more [Aborted(PeerLost)]"
    );
    let over = Error::from(ExchangeError::Over);
    assert_eq!(format!("{over:?}"), "the exchange is over [Exchange(Over)]");
}

#[test]
fn peer_that_left_is_found_in_each_error() {
    const LEFT: DownReason = DownReason::PeerClosed;
    let rejected = || Error::from(RejectReason::Down(LEFT));
    let aborted = || Error::Transport(TransportError::Aborted(LEFT));
    let reasons = [
        RejectReason::Down(LEFT).down_reason(),
        TransportError::Aborted(LEFT).down_reason(),
        rejected().down_reason(),
        aborted().down_reason(),
        ScopeError::ClosureError(rejected()).down_reason(),
        ScopeError::<Error>::AutoPollError(TransportError::Aborted(LEFT)).down_reason(),
    ];
    assert_eq!(reasons, [Some(LEFT); 6]);
    assert!(LEFT.is_peer_closed() && !DownReason::PeerLost.is_peer_closed());
    // The failure itself is not a consequence.
    assert_eq!(transport_errors()[0].down_reason(), None);
    assert_eq!(Error::StaleTicket.down_reason(), None);
}

#[test]
fn channels_id_is_a_name() {
    let id = ChannelId::new(3);
    let text = id.to_string();
    assert!(text.starts_with("channel 3."), "{text}");
    assert_eq!(format!("{id:?}"), format!("ChannelId({})", &text[8..]));
    assert_eq!(
        Error::UnknownChannel(id).to_string(),
        format!("there is no {text} in this group: it was removed, or belongs to another group")
    );
}
