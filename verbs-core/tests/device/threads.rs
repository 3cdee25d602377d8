//! Objects that several threads use at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use verbs_core::codes::WcStatus;
use verbs_core::completion::CompletionChannel;
use verbs_core::{
    AccessFlags, CompletionQueue, Context, MemoryRegion, PollSlot, PreparedQueuePair,
    ProtectionDomain, QueuePair, ReceiveWorkRequest, SendWorkRequest, SharedRegion,
    WriteWorkRequest,
};
use verbs_harness::pair::{Pair, pattern};
use verbs_harness::{PATIENCE, begin, until};

/// Everything may be used from every thread.
const fn is_shared<T: Send + Sync>() {}

const _: () = {
    is_shared::<Context>();
    is_shared::<ProtectionDomain>();
    is_shared::<CompletionQueue>();
    is_shared::<CompletionChannel>();
    is_shared::<QueuePair>();
    is_shared::<PreparedQueuePair>();
    is_shared::<MemoryRegion<Vec<u8>>>();
    is_shared::<SharedRegion<Vec<u8>>>();
};

#[test]
#[ignore = "needs an RDMA device"]
fn four_threads_post_on_one_queue_pair_while_two_poll() {
    let _test = begin!(iwarp lacks "receives without an element");
    let pair = Pair::new();
    let each = 200;
    let [posted, sent, received] = [const { AtomicU32::new(0) }; 3];
    let poll = |cq: &CompletionQueue, count: &AtomicU32, all| {
        let mut slots = [const { PollSlot::new() }; 4];
        let came = until(PATIENCE, || {
            for done in cq.poll(&mut slots).unwrap() {
                assert_eq!(done.status(), WcStatus::SUCCESS);
                count.fetch_add(1, Ordering::Relaxed);
            }
            count.load(Ordering::Relaxed) == all
        });
        assert!(came, "{count:?} of {all}");
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..each {
                    let ticket = posted.fetch_add(1, Ordering::Relaxed);
                    let done = || {
                        sent.load(Ordering::Relaxed)
                            .min(received.load(Ordering::Relaxed))
                    };
                    // No more than the queues have room for.
                    assert!(until(PATIENCE, || ticket < done() + 32), "request {ticket}");
                    pair.b.receive(ReceiveWorkRequest::empty());
                    pair.a.post_one(SendWorkRequest::empty());
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| poll(&pair.a.side.send_cq, &sent, 4 * each));
            scope.spawn(|| poll(&pair.b.side.recv_cq, &received, 4 * each));
        }
    });
    assert_eq!(
        (sent.into_inner(), received.into_inner()),
        (4 * each, 4 * each)
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn data_written_before_a_flag_is_visible_with_the_flag() {
    let _test = begin!(iwarp lacks "an order of writes");
    let pair = Pair::new();
    let target = pair.b.given(vec![0_u64; 513], AccessFlags::REMOTE_WRITE);
    let (data, flag) = (target.remote().slice(..4096), target.remote().slice(4096..));
    let (data, flag) = (data.unwrap(), flag.unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..50_u64 {
                let seed = usize::try_from(round).unwrap();
                let bytes = pair.a.pd().reg_mr(pattern(seed, 4096)).unwrap();
                let number = pair.a.pd().reg_mr(vec![round]).unwrap();
                let mut list = [bytes.gather_element(..).unwrap()];
                pair.a.post_one(
                    WriteWorkRequest::new(&mut list, &data)
                        .unwrap()
                        .unsignaled(),
                );
                let mut list = [number.gather_element(..).unwrap()];
                pair.a
                    .post_one(WriteWorkRequest::new(&mut list, &flag).unwrap());
                pair.a.sent();
                // The other thread takes the flag down when it has looked.
                let seen = until(PATIENCE, || {
                    target.atomic_u64(4096).unwrap().load(Ordering::Acquire) == 0
                });
                assert!(seen, "round {round}");
            }
        });
        for round in 1..50_u64 {
            let mark = target.atomic_u64(4096).unwrap();
            assert!(
                until(PATIENCE, || mark.load(Ordering::Acquire) == round),
                "round {round}"
            );
            let mut bytes = vec![0; 4096];
            target.read(0, &mut bytes).unwrap();
            assert!(
                bytes == pattern(usize::try_from(round).unwrap(), 4096),
                "round {round}"
            );
            mark.store(0, Ordering::Release);
        }
    });
}
