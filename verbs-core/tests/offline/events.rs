//! Device events, those included that no software device sends.

use std::time::{Duration, Instant};

use fake_libibverbs::{connected, report, with};
use verbs_core::device::{EventElement, EventType};
use verbs_core::verbs_sys::{ibv_async_event, ibv_event_type, ibv_srq, ibv_wq};
use verbs_core::{PollSlot, SendWorkRequest};
use verbs_harness::faults;

const SOON: Option<Duration> = Some(Duration::from_millis(20));

#[test]
fn every_event_type_has_its_element() {
    let qp = connected();
    let context = qp.pd().context();
    let (mut srq, mut wq) = (ibv_srq::default(), ibv_wq::default());
    (srq.handle, wq.handle) = (71, 72);
    let of = |set: &dyn Fn(&mut ibv_async_event)| {
        let mut event = ibv_async_event::default();
        set(&mut event);
        event
    };
    let (qp_num, handle) = (qp.qp_num(), qp.send_cq().handle());
    type Kind<'a> = (ibv_async_event, EventElement, &'a [EventType]);
    let kinds: [Kind<'_>; 6] = [
        (
            of(&|event| event.element.qp = qp.as_ptr()),
            EventElement::Qp { qp_num },
            &[
                EventType::QP_FATAL,
                EventType::QP_REQ_ERR,
                EventType::QP_ACCESS_ERR,
                EventType::COMM_EST,
                EventType::SQ_DRAINED,
                EventType::PATH_MIG,
                EventType::PATH_MIG_ERR,
                EventType::QP_LAST_WQE_REACHED,
            ],
        ),
        (
            of(&|event| event.element.cq = qp.send_cq().as_ptr()),
            EventElement::Cq { handle },
            &[EventType::CQ_ERR],
        ),
        (
            of(&|event| event.element.srq = (&raw const srq).cast_mut()),
            EventElement::Srq { handle: 71 },
            &[EventType::SRQ_ERR, EventType::SRQ_LIMIT_REACHED],
        ),
        (
            of(&|event| event.element.wq = (&raw const wq).cast_mut()),
            EventElement::Wq { handle: 72 },
            &[EventType::WQ_FATAL],
        ),
        (
            of(&|event| event.element.port_num = 3),
            EventElement::Port { port_num: 3 },
            &[
                EventType::PORT_ACTIVE,
                EventType::PORT_ERR,
                EventType::LID_CHANGE,
                EventType::PKEY_CHANGE,
                EventType::SM_CHANGE,
                EventType::CLIENT_REREGISTER,
                EventType::GID_CHANGE,
            ],
        ),
        (
            of(&|_| {}),
            EventElement::Device,
            // One is of a library that is newer than this crate: whatever its union holds, it is not read.
            &[EventType::DEVICE_FATAL, EventType::from_raw(99)],
        ),
    ];
    let mut count = 0;
    for (event, element, types) in kinds {
        for event_type in types {
            let start = Instant::now();
            report(context, ibv_event_type(event_type.as_raw()), event);
            let event = context.get_async_event(SOON).unwrap().unwrap();
            assert_eq!(
                (event.event_type(), event.element()),
                (*event_type, element)
            );
            if *event_type == EventType::QP_FATAL {
                let within = faults::at_once(start);
                faults::text(faults::QP_FATAL, "core", event_type, within);
            }
            count += 1;
        }
    }
    assert_eq!(
        with(|library| library.async_acks),
        count,
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
