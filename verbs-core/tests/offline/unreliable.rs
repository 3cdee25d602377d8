//! Unreliable connections (UC): what differs from reliable ones.

use fake_libibverbs::{ladder, with};
use verbs_core::codes::QpType;
use verbs_core::error::EndpointError;
use verbs_core::{Error, PreparedQueuePair, QueuePair, QueuePairEndpoint};

fn prepared(qp_type: QpType) -> PreparedQueuePair {
    let (_, pd, cq) = ladder();
    let builder = QueuePair::builder(&pd, &cq, &cq).qp_type(qp_type);
    builder.build().unwrap()
}

#[test]
fn peer_of_an_unreliable_connection_may_write_and_that_is_all() {
    let _qp = prepared(QpType::Uc);
    let to_init = with(|library| library.modified.pop().unwrap().0);
    assert_eq!(to_init.qp_access_flags, 0b11);
}

#[test]
fn unreliable_connection_has_no_reads_whatever_its_peer_offers() {
    let qp = prepared(QpType::Uc);
    let endpoint = qp.endpoint();
    assert_eq!(endpoint.max_rd_atomic(), 0);
    assert_eq!(endpoint.max_dest_rd_atomic(), 0);
    let liar = QueuePairEndpoint::builder(endpoint.qp_num(), endpoint.psn())
        .qp_type(QpType::Uc)
        .gid(endpoint.gid())
        .max_rd_atomic(16)
        .max_dest_rd_atomic(16)
        .build()
        .unwrap();
    assert_eq!(qp.handshake(&liar).unwrap().max_rd_atomic(), 0);
    let (_, pd, cq) = ladder();
    let some = QueuePair::builder(&pd, &cq, &cq)
        .qp_type(QpType::Uc)
        .max_rd_atomic(1);
    assert!(some.build().is_err());
}

#[test]
fn queue_pairs_of_different_types_do_not_connect() {
    for (ours, theirs) in [(QpType::Rc, QpType::Uc), (QpType::Uc, QpType::Rc)] {
        let peer = prepared(theirs).endpoint();
        let peer = QueuePairEndpoint::from_bytes(&peer.to_bytes()).unwrap();
        let changes = with(|library| library.modified.len());
        let rejected = prepared(ours).handshake(&peer).unwrap_err();
        assert!(matches!(
            rejected.error(),
            Error::Endpoint(EndpointError::QpType { ours: o, theirs: t }) if (*o, *t) == (ours, theirs)
        ));
        let source = std::error::Error::source(rejected.error()).unwrap();
        assert_eq!(
            source.to_string(),
            format!(
                "this side's queue pair is of type {ours} and the peer's of type {theirs}: \
                 build both with the same qp_type"
            )
        );
        // Only what prepared it: no step of the handshake was tried.
        assert_eq!(with(|library| library.modified.len()), changes + 2);
        let prepared = rejected.into_given();
        let same = prepared.endpoint();
        assert!(prepared.handshake(&same).is_ok());
    }
}
