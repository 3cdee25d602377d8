//! Completion queues: capacity, resizing under load, vectors, and what too many completions do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use verbs_core::device::{EventElement, EventType};
use verbs_core::error::ErrorKind;
use verbs_core::work_request::WorkRequest;
use verbs_core::{
    CompletionQueue, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest, WorkCompletion,
};
use verbs_harness::pair::{Pair, Side};
use verbs_harness::{PATIENCE, assert_silent, begin, faults, until, wait_for};

#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_is_resized_under_load_and_loses_nothing() {
    let test = begin!();
    let pair = Pair::new();
    let cq = pair.a.side.send_cq.clone();
    if let Err(error) = cq.resize(512) {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return test.skip(error);
    }
    assert!(cq.min_capacity() >= 512);
    let (done, resized) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let count = resized.fetch_add(1, Ordering::Relaxed);
                cq.resize(if count % 2 == 0 { 256 } else { 1024 }).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut round = 0;
        while round < 300 || resized.load(Ordering::Relaxed) < 4 {
            for _ in 0..4 {
                pair.b.receive(ReceiveWorkRequest::empty());
            }
            let mut chain: [WorkRequest<'_>; 4] = std::array::from_fn(|index| {
                let wr_id = round * 4 + u64::try_from(index).unwrap();
                SendWorkRequest::empty().wr_id(wr_id).into()
            });
            pair.a.post(&mut chain).unwrap();
            let sent = wait_for(&cq, 4);
            let ids: Vec<_> = sent
                .iter()
                .map(|sent| sent.result().unwrap().wr_id())
                .collect();
            assert_eq!(ids, (round * 4..round * 4 + 4).collect::<Vec<_>>());
            wait_for(&pair.b.side.recv_cq, 4);
            round += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_that_overruns_reports_it() {
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let (a, b) = (Side::here(), Side::here());
    let small = CompletionQueue::create(&a.context, 1).unwrap();
    let build = |side: &Side, cq: &CompletionQueue| {
        let builder = QueuePair::builder(&side.pd, cq, &side.recv_cq);
        builder.max_send_wr(64).max_recv_wr(64).build().unwrap()
    };
    let (qa, qb) = (build(&a, &small), build(&b, &b.send_cq));
    let (ea, eb) = (qa.endpoint(), qb.endpoint());
    let (qa, qb) = (qa.handshake(&eb).unwrap(), qb.handshake(&ea).unwrap());
    let count = usize::try_from(small.min_capacity()).unwrap() + 20;
    if count > 60 {
        return test.skip("the driver's smallest queue is too large to overrun");
    }
    let mut receives: Vec<_> = (0..count).map(|_| ReceiveWorkRequest::empty()).collect();
    // SAFETY: the requests name no memory.
    unsafe { qb.post_receive(&mut receives) }.unwrap();
    let mut sends: Vec<_> = (0..count).map(|_| SendWorkRequest::empty()).collect();
    let start = Instant::now();
    // SAFETY: the requests name no memory.
    unsafe { qa.post_send(&mut sends) }.unwrap();
    let mut reported = None;
    let arrived = until(PATIENCE, || {
        reported = a
            .context
            .get_async_event(Some(Duration::from_millis(10)))
            .unwrap();
        reported.is_some_and(|event| event.event_type() == EventType::CQ_ERR)
    });
    assert!(arrived, "no event: {reported:?}");
    let event = reported.unwrap().event_type();
    faults::text(faults::OVERRUN, "core", event, faults::at_once(start));
    let handle = small.handle();
    assert_eq!(reported.unwrap().element(), EventElement::Cq { handle });
    // Each lost completion may be another event; all of them are acknowledged, or this hangs.
    while a
        .context
        .get_async_event(Some(Duration::from_millis(10)))
        .unwrap()
        .is_some()
    {}
    qa.close().unwrap();
    small.close().unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn when_a_queue_pair_is_gone_no_more_completions_of_it_come() {
    let _test = begin!(iwarp lacks "receives without an element");
    for _ in 0..10 {
        let Pair { a, b } = Pair::new();
        for wr_id in 0..30 {
            a.receive(ReceiveWorkRequest::empty().wr_id(wr_id));
            b.receive(ReceiveWorkRequest::empty());
            a.post_one(SendWorkRequest::empty().wr_id(wr_id));
        }
        let number = a.qp.qp_num();
        a.qp.close().unwrap();
        // The driver may remove earlier completions, or leave them in the queue.
        let mut slots = [const { PollSlot::new() }; 64];
        for cq in [&a.side.send_cq, &a.side.recv_cq] {
            let left = cq.poll(&mut slots).unwrap();
            assert!(left.iter().all(|done| done.qp_num() == number), "{left:?}");
            assert!(
                left.iter()
                    .map(WorkCompletion::wr_id)
                    .eq(0..left.len() as u64),
                "{left:?}"
            );
            assert_silent(cq);
        }
    }
}
