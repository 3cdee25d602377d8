//! Device events that the device sends by itself; those of a broken wire are in `wire`.

use std::time::{Duration, Instant};

use verbs_core::codes::QpState;
use verbs_core::device::{EventElement, EventType};
use verbs_core::queue_pair::QpAttr;
use verbs_core::{ReceiveWorkRequest, SendWorkRequest};
use verbs_harness::pair::Pair;
use verbs_harness::{PATIENCE, begin, context};

#[test]
#[ignore = "needs an RDMA device"]
fn waiting_ends_with_its_time() {
    let _test = begin!(alone);
    let context = context();
    let (start, timeout) = (Instant::now(), Duration::from_millis(100));
    while let Some(event) = context.get_async_event(Some(timeout)).unwrap() {
        // A GID or a port that came to life just now.
        assert!(
            matches!(event.element(), EventElement::Port { .. }),
            "{event:?}"
        );
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(start.elapsed() >= timeout);
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
    let event = loop {
        let event = pair
            .a
            .side
            .context
            .get_async_event(Some(PATIENCE))
            .unwrap()
            .unwrap();
        if !matches!(event.element(), EventElement::Port { .. }) {
            break event;
        }
    };
    assert_eq!(event.event_type(), EventType::SQ_DRAINED);
    assert_eq!(
        event.element(),
        EventElement::Qp {
            qp_num: pair.a.qp.qp_num()
        }
    );
    // The event is acknowledged: ending the queue pair does not wait for it.
    pair.a
        .qp
        .modify(&QpAttr::new().with_qp_state(QpState::RTS))
        .unwrap();
    pair.b.receive(ReceiveWorkRequest::empty());
    pair.a.post_one(SendWorkRequest::empty());
    pair.a.sent();
    pair.a.qp.close().unwrap();
}
