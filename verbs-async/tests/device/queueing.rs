//! Backlogs: operations wait for room in their queue, first come, first served.

use verbs_async::verbs_channel::BufferPool;
use verbs_async::verbs_channel::error::Queue;
use verbs_harness::begin;

use super::ends::{WAYS, block, narrow_pair, poll_once, run};

#[test]
#[ignore = "needs an RDMA device"]
fn cancelled_queued_send_is_not_sent_and_returns_its_buffer_at_once() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = narrow_pair(way, 4);
            let pool = BufferPool::new(group.pd(), 4, 64).unwrap();
            let number = |at: u32| block(&pool, &at.to_le_bytes());
            let places = left.credits(Queue::Send);
            // The peer posts no receive yet: the queue stays full.
            let first: Vec<_> = (0..places).map(|at| left.send(number(at))).collect();
            let mut line: Vec<_> = (places..places + 12)
                .map(|at| Some(left.send(number(at))))
                .collect();
            let taken = pool.available();
            // The head of the backlog, its end and others, some of which have been polled.
            for at in [0, 1, 5, 6, 11] {
                let mut cancelled = line[at].take().unwrap();
                assert!(at % 2 == 0 || !poll_once(&mut cancelled));
                drop(cancelled);
            }
            assert_eq!(pool.available(), taken + 5);
            let left_over = first.into_iter().chain(line.into_iter().flatten());
            for send in left_over {
                let receive = right.receive(number(0));
                let (sent, own) = send.await;
                sent.unwrap();
                let (received, bytes) = receive.await;
                received.unwrap();
                assert_eq!(bytes[..], own[..]);
            }
            left.close().await.unwrap();
            right.close().await.unwrap();
            assert_eq!(pool.available(), pool.capacity());
        });
    }
}
