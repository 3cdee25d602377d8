//! Completion channels: each event has its queue, none is lost, and no destruction hangs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use verbs_core::codes::WcStatus;
use verbs_core::completion::{CompletionChannel, CqEvent};
use verbs_core::{
    CompletionQueue, Error, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
};
use verbs_harness::pair::Side;
use verbs_harness::{PATIENCE, begin};

/// A queue pair that is connected to itself, with its completions on `cq`.
fn looped(side: &Side, cq: &CompletionQueue) -> QueuePair {
    let prepared = QueuePair::builder(&side.pd, cq, cq).build().unwrap();
    let endpoint = prepared.endpoint();
    prepared.handshake(&endpoint).unwrap()
}

/// Sends an empty message to itself: two completions.
fn send(qp: &QueuePair, solicited: bool) {
    // SAFETY: the request names no memory.
    unsafe { qp.post_receive(&mut [ReceiveWorkRequest::empty()]) }.unwrap();
    let mut request = SendWorkRequest::empty();
    if solicited {
        request = request.solicited();
    }
    // SAFETY: the request names no memory.
    unsafe { qp.post_send(&mut [request]) }.unwrap();
}

fn on(channel: &CompletionChannel) -> CompletionQueue {
    let cq = CompletionQueue::builder(channel.context(), 64).channel(channel);
    cq.build().unwrap()
}

/// The next event within this time.
fn event(channel: &CompletionChannel, within: Duration) -> Option<CqEvent> {
    channel.get_cq_event(Some(within)).unwrap()
}

/// Polls until nothing is there; returns how many were.
fn drain(cq: &CompletionQueue) -> usize {
    let mut slots = [const { PollSlot::new() }; 16];
    let mut count = 0;
    loop {
        let polled = cq.poll(&mut slots).unwrap();
        if polled.is_empty() {
            return count;
        }
        for done in polled {
            assert_eq!(done.status(), WcStatus::SUCCESS);
            count += 1;
        }
    }
}

/// Sleeps on the channel until `cq` has had `count` completions.
fn sleep_until(channel: &CompletionChannel, cq: &CompletionQueue, count: usize) {
    let mut found = drain(cq);
    while found < count {
        cq.req_notify(false).unwrap();
        found += drain(cq);
        if found < count {
            let ready = event(channel, PATIENCE);
            assert!(ready.expect("an event for what is under way").is(cq));
            found += drain(cq);
        }
    }
    assert_eq!(found, count);
}

#[test]
#[ignore = "needs an RDMA device"]
fn none_of_thousands_of_events_is_lost() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let side = Side::here();
    let channel = CompletionChannel::create(&side.context).unwrap();
    let cq = on(&channel);
    let qp = looped(&side, &cq);
    for _ in 0..3000 {
        send(&qp, false);
        sleep_until(&channel, &cq, 2);
    }
    qp.close().unwrap();
    cq.close().unwrap();
    channel.close().unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn only_solicited_completions_raise_events_of_a_queue_armed_for_them() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let side = Side::here();
    let channel = CompletionChannel::create(&side.context).unwrap();
    let recv_cq = on(&channel);
    let prepared = QueuePair::builder(&side.pd, &side.send_cq, &recv_cq)
        .build()
        .unwrap();
    let endpoint = prepared.endpoint();
    let qp = prepared.handshake(&endpoint).unwrap();
    // Not armed yet.
    send(&qp, true);
    assert!(event(&channel, Duration::from_millis(100)).is_none());
    assert_eq!(drain(&recv_cq), 1);
    recv_cq.req_notify(true).unwrap();
    send(&qp, false);
    assert!(event(&channel, Duration::from_millis(200)).is_none());
    assert_eq!(drain(&recv_cq), 1, "it has come, without a word");
    send(&qp, true);
    assert!(event(&channel, PATIENCE).unwrap().is(&recv_cq));
    assert_eq!(drain(&recv_cq), 1);
}

#[test]
#[ignore = "needs an RDMA device"]
fn untaken_events_do_not_block_destruction() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let side = Side::here();
    // None, some, and a batch of acknowledgements and a bit.
    for taken in [0, 1, 63, 64, 70] {
        let channel = CompletionChannel::create(&side.context).unwrap();
        let cq = on(&channel);
        let qp = looped(&side, &cq);
        for _ in 0..taken {
            cq.req_notify(false).unwrap();
            send(&qp, false);
            assert!(event(&channel, PATIENCE).is_some());
            while drain(&cq) != 0 {}
        }
        // One more, which stays in the channel.
        cq.req_notify(false).unwrap();
        send(&qp, false);
        while drain(&cq) == 0 {}
        drop(qp);
        cq.close().unwrap();
        assert!(event(&channel, Duration::ZERO).is_none());
        channel.close().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn queues_end_while_another_thread_takes_their_events() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let side = Side::here();
    let channel = CompletionChannel::create(&side.context).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let timeout = Duration::from_millis(1);
                    let Some(event) = event(&channel, timeout) else {
                        continue;
                    };
                    // The queue may be gone by now, or the last handle of it may be the one here.
                    match event.req_notify(false) {
                        Ok(()) | Err(Error::Destroyed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for _ in 0..200 {
            let cq = on(&channel);
            let qp = looped(&side, &cq);
            for _ in 0..2 {
                cq.req_notify(false).unwrap();
                send(&qp, false);
                while drain(&cq) == 0 {}
            }
            drop((qp, cq));
        }
        done.store(true, Ordering::Relaxed);
    });
    channel.close().unwrap();
}
