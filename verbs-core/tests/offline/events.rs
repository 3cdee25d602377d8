//! Device events, those included that no software device sends.

use std::time::{Duration, Instant};

use fake_libibverbs::{connected, report, with};
use verbs_core::device::{EventElement, EventType};
use verbs_core::verbs_sys::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SM_CHANGE,
    IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_WQ_FATAL,
    ibv_async_event, ibv_event_type, ibv_srq, ibv_wq,
};
use verbs_core::{PollSlot, SendWorkRequest};
use verbs_harness::faults;

const SOON: Option<Duration> = Some(Duration::from_millis(20));

#[test]
fn every_event_type_has_its_element() {
    let qp = connected();
    let context = qp.pd().context();
    let srq = ibv_srq {
        handle: 71,
        ..Default::default()
    };
    let wq = ibv_wq {
        handle: 72,
        ..Default::default()
    };
    let of = |set: &dyn Fn(&mut ibv_async_event)| {
        let mut event = ibv_async_event::default();
        set(&mut event);
        event
    };
    let qp_event = of(&|event| event.element.qp = qp.as_ptr());
    let cq_event = of(&|event| event.element.cq = qp.send_cq().as_ptr());
    let srq_event = of(&|event| event.element.srq = (&raw const srq).cast_mut());
    let wq_event = of(&|event| event.element.wq = (&raw const wq).cast_mut());
    let port_event = of(&|event| event.element.port_num = 3);
    let device_event = of(&|_| {});
    let this = EventElement::Qp {
        qp_num: qp.qp_num(),
    };
    let cq = EventElement::Cq {
        handle: qp.send_cq().handle(),
    };
    let port = EventElement::Port { port_num: 3 };
    let about = [
        (IBV_EVENT_QP_FATAL, qp_event, this),
        (IBV_EVENT_QP_REQ_ERR, qp_event, this),
        (IBV_EVENT_QP_ACCESS_ERR, qp_event, this),
        (IBV_EVENT_COMM_EST, qp_event, this),
        (IBV_EVENT_SQ_DRAINED, qp_event, this),
        (IBV_EVENT_PATH_MIG, qp_event, this),
        (IBV_EVENT_PATH_MIG_ERR, qp_event, this),
        (IBV_EVENT_QP_LAST_WQE_REACHED, qp_event, this),
        (IBV_EVENT_CQ_ERR, cq_event, cq),
        (
            IBV_EVENT_SRQ_ERR,
            srq_event,
            EventElement::Srq { handle: 71 },
        ),
        (
            IBV_EVENT_SRQ_LIMIT_REACHED,
            srq_event,
            EventElement::Srq { handle: 71 },
        ),
        (
            IBV_EVENT_WQ_FATAL,
            wq_event,
            EventElement::Wq { handle: 72 },
        ),
        (IBV_EVENT_PORT_ACTIVE, port_event, port),
        (IBV_EVENT_PORT_ERR, port_event, port),
        (IBV_EVENT_LID_CHANGE, port_event, port),
        (IBV_EVENT_PKEY_CHANGE, port_event, port),
        (IBV_EVENT_SM_CHANGE, port_event, port),
        (IBV_EVENT_CLIENT_REREGISTER, port_event, port),
        (IBV_EVENT_GID_CHANGE, port_event, port),
        (IBV_EVENT_DEVICE_FATAL, device_event, EventElement::Device),
        // From a library that is newer than this crate: whatever its union holds, it is not read.
        (ibv_event_type(99), device_event, EventElement::Device),
    ];
    for (event_type, event, element) in about {
        let start = Instant::now();
        report(context, event_type, event);
        let event = context.get_async_event(SOON).unwrap().unwrap();
        assert_eq!(event.event_type(), EventType::from_raw(event_type.0));
        if event.event_type() == EventType::QP_FATAL {
            let within = faults::at_once(start);
            faults::text(faults::QP_FATAL, "core", event.event_type(), within);
        }
        assert_eq!(event.element(), element, "{event:?}");
    }
    assert_eq!(
        with(|library| library.async_acks),
        about.len(),
        "each acknowledged once"
    );
}

/// A post writes to memory that is still mapped, and a poll reads it.
#[test]
fn removed_device_takes_requests_and_completes_none() {
    let qp = connected();
    with(|library| library.refuse.push(("ibv_query_qp", libc::EIO)));
    let start = Instant::now();
    // SAFETY: it has no element.
    unsafe { qp.post_send(&mut [SendWorkRequest::empty()]) }.unwrap();
    let mut slots = [const { PollSlot::new() }; 1];
    let soon = SOON.unwrap();
    while start.elapsed() < soon {
        assert!(qp.send_cq().poll(&mut slots).unwrap().is_empty());
    }
    let caller = faults::caller(start, soon);
    faults::seen(faults::REMOVED, "core", faults::NOTHING, caller);
    assert_eq!(qp.query().unwrap_err().errno(), Some(libc::EIO));
}
