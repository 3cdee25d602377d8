//! Unreliable connections (UC): what differs from reliable ones.

use fake_libibverbs::{ladder, with};
use verbs_core::codes::{QpAttrMask, QpType};
use verbs_core::error::EndpointError;
use verbs_core::{Error, PreparedQueuePair, QueuePair, QueuePairEndpoint};

const UC: u32 = 3;

fn prepared(qp_type: QpType) -> PreparedQueuePair {
    let (_, pd, cq) = ladder();
    let builder = QueuePair::builder(&pd, &cq, &cq).qp_type(qp_type);
    builder.build().unwrap()
}

#[test]
fn unreliable_connection_gets_no_attribute_of_acknowledgements() {
    let qp = prepared(QpType::Uc);
    let endpoint = qp.endpoint();
    let qp = qp.handshake(&endpoint).unwrap();
    assert_eq!(qp.qp_type(), QpType::Uc);
    let (made, modified) = with(|library| {
        let modified = std::mem::take(&mut library.modified);
        (library.qp_types.clone(), modified)
    });
    assert_eq!(made, [UC]);
    let masks: Vec<_> = modified
        .iter()
        .map(|(_, mask)| QpAttrMask::from_bits_retain(*mask) - QpAttrMask::STATE)
        .collect();
    let to_init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let to_rtr = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    let nothing = QpAttrMask::empty();
    assert_eq!(masks, [nothing, to_init, to_rtr, QpAttrMask::SQ_PSN]);
    // The peer may write, and that is all that it may do.
    assert_eq!(modified[1].0.qp_access_flags, 0b11);
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
