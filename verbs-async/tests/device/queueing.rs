//! Backlogs: operations wait for room in their queue, first come, first served.

use futures_util::future::join;
use verbs_async::Operation;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{BufferPool, Outgoing, OwnedRequest};
use verbs_harness::begin;

use super::ends::{WAYS, block, narrow_pair, poll_once, run};

/// Awaits operations that succeed, with the numbers from 0 on in their buffers.
async fn succeed_in_order(operations: Vec<Operation>) {
    for (at, operation) in (0_u32..).zip(operations) {
        let (result, bytes) = operation.await;
        result.unwrap();
        assert_eq!(bytes[..], at.to_le_bytes());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn thousand_sends_through_a_queue_of_four_arrive_in_order() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = narrow_pair(way, 4);
            assert!(left.credits(Queue::Send) < 32 && right.credits(Queue::Receive) < 32);
            let pool = BufferPool::new(group.pd(), 4, 2000).unwrap();
            let number = |at: u32| block(&pool, &at.to_le_bytes());
            // All of them at once, on both ends.
            let receives: Vec<_> = (0..1000).map(|_| right.receive(number(0))).collect();
            let sends: Vec<_> = (0..1000).map(|at| left.send(number(at))).collect();
            assert_eq!(pool.available(), 0);
            join(succeed_in_order(sends), succeed_in_order(receives)).await;
            left.close().await.unwrap();
            right.close().await.unwrap();
            assert_eq!(pool.available(), pool.capacity());
        });
    }
}

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

#[test]
#[ignore = "needs an RDMA device"]
fn batch_waits_for_all_its_room_and_is_not_overtaken() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = narrow_pair(way, 4);
            let pool = BufferPool::new(group.pd(), 4, 64).unwrap();
            let number = |at: u32| block(&pool, &at.to_le_bytes());
            let places = left.credits(Queue::Send);
            let first: Vec<_> = (0..places - 1).map(|at| left.send(number(at))).collect();
            let works = (places - 1..2 * places - 1)
                .map(|at| OwnedRequest::from(Outgoing::send(number(at))))
                .collect();
            let batch = left.batch(works);
            // There is room for it, but others are before it.
            let behind = left.send(number(2 * places - 1));
            assert_eq!(left.credits(Queue::Send), 1);
            let receives: Vec<_> = (0..2 * places).map(|_| right.receive(number(0))).collect();
            succeed_in_order(first).await;
            let (ended, works) = batch.await;
            ended.unwrap();
            assert_eq!(works.len(), places as usize);
            behind.await.0.unwrap();
            succeed_in_order(receives).await;
        });
    }
}
