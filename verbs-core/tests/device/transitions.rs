//! States of a queue pair: error, reset, and transitions by hand that are rejected.

use verbs_core::codes::{QpAttrMask, QpState, WcStatus};
use verbs_core::device::{EventElement, EventType};
use verbs_core::queue_pair::QpAttr;
use verbs_core::{AckTimeout, Error, MinRnrTimer, ReceiveWorkRequest, SendWorkRequest};
use verbs_harness::pair::{End, Pair, Side, works};
use verbs_harness::{PATIENCE, assert_says, begin, is_soft, wait_for};

#[test]
#[ignore = "needs an RDMA device"]
fn in_error_everything_posted_is_flushed() {
    let _test = begin!(iwarp lacks "the states that this goes through");
    let pair = Pair::new();
    let mut into = pair.a.pd().reg_mr(vec![0_u8; 64]).unwrap();
    let chunks = into.scatter_element(..).unwrap().chunks_mut(8).unwrap();
    for (chunk, wr_id) in chunks.zip(0..) {
        pair.a
            .receive(ReceiveWorkRequest::new(&mut [chunk]).wr_id(wr_id));
    }
    pair.a.qp.to_error().unwrap();
    let flushed = wait_for(&pair.a.side.recv_cq, 8);
    for (done, wr_id) in flushed.iter().zip(0..) {
        let error = done.result().unwrap_err();
        assert_eq!((error.status, error.wr_id), (WcStatus::WR_FLUSH_ERR, wr_id));
        assert_eq!(error.qp_num, pair.a.qp.qp_num());
        assert_says(&error, "look at the first failure");
    }
    assert_eq!(pair.a.qp.query().unwrap().qp_state(), QpState::ERR);
    // Requests posted from now on are flushed too, unsignalled or not.
    pair.a.post_one(SendWorkRequest::empty().wr_id(77));
    pair.a
        .post_one(SendWorkRequest::empty().unsignaled().wr_id(78));
    for wr_id in [77, 78] {
        let done = wait_for(&pair.a.side.send_cq, 1)[0];
        assert_eq!(
            (done.status(), done.wr_id()),
            (WcStatus::WR_FLUSH_ERR, wr_id)
        );
    }
    // Soft-RoCE takes no notice of receives that come this late.
    if !is_soft() {
        pair.a.receive(ReceiveWorkRequest::empty());
        assert_eq!(pair.a.receive_status(), WcStatus::WR_FLUSH_ERR);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn after_a_reset_it_connects_again() {
    let _test = begin!(iwarp lacks "the states that this goes through");
    let mut pair = Pair::new();
    works(&pair.a, &pair.b);
    pair.a.qp.to_error().unwrap();
    pair.b.qp.to_error().unwrap();
    let mut psns = Vec::new();
    for round in 0..5 {
        let numbers = [&pair.a, &pair.b].map(|end| end.qp.qp_num());
        let mut forgotten = pair.a.pd().reg_mr(vec![0_u8; 16]).unwrap();
        let mut list = [forgotten.scatter_element(..).unwrap()];
        // In ERR it would be flushed.
        if round > 0 {
            pair.a.receive(ReceiveWorkRequest::new(&mut list));
        }
        let ends = [pair.a, pair.b];
        let [a, b] = ends.map(|End { qp, side }| (side, qp.reset().unwrap()));
        // The device does not access it any more.
        drop(forgotten.dereg().unwrap());
        assert_eq!([a.1.qp_num(), b.1.qp_num()], numbers);
        assert_eq!(a.1.query().unwrap().qp_state(), QpState::INIT);
        psns.push(a.1.endpoint().psn());
        pair = Pair::connect(a, b);
        works(&pair.a, &pair.b);
        works(&pair.b, &pair.a);
    }
    assert!(psns.iter().any(|psn| *psn != psns[0]), "{psns:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejected_transition_names_the_attributes() {
    let _test = begin!(iwarp lacks "the states that this goes through");
    let side = Side::here();
    let qp = side.prepared();
    let attr = QpAttr::new()
        .with_qp_state(QpState::RTR)
        .with_timeout(AckTimeout::default());
    let error = qp.modify(&attr).unwrap_err();
    let Error::Transition {
        from,
        to,
        missing,
        extra,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (*from, *to, *extra),
        (QpState::INIT, QpState::RTR, QpAttrMask::TIMEOUT)
    );
    let needs = QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    assert_eq!(*missing, needs);
    assert_says(&error, "IBV_QP_DEST_QPN");
    // There is no transition from INIT to RTS.
    let error = qp
        .modify(&QpAttr::new().with_qp_state(QpState::RTS))
        .unwrap_err();
    assert_says(&error, "there is no such change of state");
    assert_eq!(qp.query().unwrap().qp_state(), QpState::INIT);
}

#[test]
#[ignore = "needs an RDMA device"]
fn connected_queue_pair_can_change_its_mutable_attributes() {
    let _test = begin!(iwarp lacks "the states that this goes through");
    let pair = Pair::new();
    let timer = MinRnrTimer::new(3).unwrap();
    let set = QpAttr::new().with_qp_state(QpState::RTS);
    pair.a.qp.modify(&set.with_min_rnr_timer(timer)).unwrap();
    assert_eq!(pair.a.qp.query().unwrap().min_rnr_timer(), 3);
    works(&pair.a, &pair.b);
    let error = pair.a.qp.modify(&set.with_dest_qp_num(5)).unwrap_err();
    assert_says(&error, "not allowed IBV_QP_DEST_QPN");
}

#[test]
#[ignore = "needs an RDMA device"]
fn drained_send_queue_raises_an_event() {
    let test = begin!(iwarp lacks "the state SQD");
    let pair = Pair::new();
    let drain = QpAttr::new()
        .with_qp_state(QpState::SQD)
        .with_en_sqd_async_notify(true);
    if let Err(error) = pair.a.qp.modify(&drain) {
        return test.skip(format!("the driver does not drain: {error}"));
    }
    let context = &pair.a.side.context;
    let next = || context.get_async_event(Some(PATIENCE)).unwrap().unwrap();
    let mut event = next();
    while matches!(event.element(), EventElement::Port { .. }) {
        event = next();
    }
    assert_eq!(event.event_type(), EventType::SQ_DRAINED);
    let qp_num = pair.a.qp.qp_num();
    assert_eq!(event.element(), EventElement::Qp { qp_num });
    // The event is acknowledged: ending the queue pair does not wait for it.
    let resume = QpAttr::new().with_qp_state(QpState::RTS);
    pair.a.qp.modify(&resume).unwrap();
    pair.b.receive(ReceiveWorkRequest::empty());
    pair.a.post_one(SendWorkRequest::empty());
    pair.a.sent();
    pair.a.qp.close().unwrap();
}
