//! Operations allocate nothing, once their channel is warm: counted in all threads of a process that
//! does nothing else.

use std::mem;

use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_async::verbs_channel::{BufferPool, OwnedBuffer};
use verbs_async::{AsyncChannel, IncomingMessages};
use verbs_harness::allocations::{allocations, allocations_of_all};
use verbs_harness::begin;
use verbs_harness::child::{Child, role};

use super::ends::{WAYS, Way, block, buffer, given, narrow_pair, run};

/// The number of allocations in some rounds of all operations, and of messages that arrive in a window, after
/// some other rounds.
async fn counted_by(way: Way, count: fn() -> usize) -> usize {
    let (group, left, right) = narrow_pair(way, 16);
    let pool = BufferPool::new(group.pd(), 8, 200).unwrap();
    let target = given(group.pd(), &[0; 8]);
    let owned = (0..20).map(|_| buffer(group.pd(), &[0; 8]));
    let mut owned: Vec<_> = owned.collect();
    longest_backlog(&pool, &left, &right).await;
    for _ in 0..5 {
        round(&pool, &left, &right, target.remote(), &mut owned).await;
    }
    let before = count();
    for _ in 0..5 {
        round(&pool, &left, &right, target.remote(), &mut owned).await;
    }
    let operations = count() - before;
    let blocks = (0..8).map(|_| block(&pool, &[0; 8]));
    let mut incoming = right.into_incoming(blocks.chain(owned.drain(..8)));
    for _ in 0..5 {
        messages(&pool, &left, &mut incoming).await;
    }
    let before = count();
    for _ in 0..5 {
        messages(&pool, &left, &mut incoming).await;
    }
    operations + (count() - before)
}

/// Makes room in the backlogs for more operations than a round may have there: how many it has depends on how soon
/// the device completes the first ones.
async fn longest_backlog(pool: &BufferPool, left: &AsyncChannel, right: &AsyncChannel) {
    let receives: [_; 150] = std::array::from_fn(|_| right.receive(block(pool, &[0; 8])));
    for receiving in receives {
        left.send(block(pool, &[1; 8])).await.0.unwrap();
        receiving.await.0.unwrap();
    }
    // Without a receive, the first of them wait in the device's queue, and the others behind it.
    let sends: [_; 100] = std::array::from_fn(|_| left.send(block(pool, &[1; 8])));
    for sending in sends {
        right.receive(block(pool, &[0; 8])).await.0.unwrap();
        sending.await.0.unwrap();
    }
}

/// Each buffer of the window is used more than once.
async fn messages(pool: &BufferPool, left: &AsyncChannel, incoming: &mut IncomingMessages) {
    for _ in 0..20 {
        let sending = left.send(block(pool, &[1; 8]));
        let message = incoming.next().await.unwrap().unwrap();
        assert_eq!(message[..], [1; 8]);
        drop(message);
        sending.await.0.unwrap();
    }
}

async fn round(
    pool: &BufferPool,
    left: &AsyncChannel,
    right: &AsyncChannel,
    target: RemoteMemoryRegion,
    owned: &mut [OwnedBuffer],
) {
    // Completions that tasks sleep for, in blocks and in registered buffers.
    for buffer in owned {
        let receiving = right.receive(mem::take(buffer));
        let sending = left.send(block(pool, &[1; 8]));
        let (result, received) = receiving.await;
        assert_eq!(
            (result.unwrap().byte_len(), &received[..]),
            (8, &[1; 8][..])
        );
        *buffer = received;
        sending.await.0.unwrap();
    }
    for _ in 0..20 {
        let receiving = right.receive(block(pool, &[0; 8]));
        let sending = left.send(block(pool, &[1; 8]));
        receiving.await.0.unwrap();
        sending.await.0.unwrap();
    }
    // More than there is room for, so that some are in the backlog.
    let receives: [_; 60] = std::array::from_fn(|_| right.receive(block(pool, &[0; 8])));
    let sends: [_; 60] = std::array::from_fn(|_| left.send(block(pool, &[1; 8])));
    // Abandoned: in the backlog, and in flight.
    drop(left.write(block(pool, &[1; 8]), target));
    drop(right.write(block(pool, &[1; 8]), target));
    for operation in sends.into_iter().chain(receives) {
        operation.await.0.unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_operation_allocates() {
    if let Some((way, mut line)) = role() {
        let way = named(&way);
        let count = match way {
            // Its reactor allocates a list of wakers after each sleep: in a thread of its own
            // if no other thread is in its `block_on`.
            Way::AsyncIo => pollster::block_on(counted_by(way, allocations)),
            _ => run(way, counted_by(way, allocations_of_all)),
        };
        return line.write(&count.to_string());
    }
    let test = begin!(iwarp lacks "sends that wait for a receive");
    let before = allocations_of_all();
    drop(std::hint::black_box(vec![1_u8]));
    assert!(allocations_of_all() > before);
    for way in WAYS {
        let mut child = Child::start(&test, &format!("{way:?}"));
        let count: usize = child.line.read().parse().unwrap();
        assert_eq!(count, 0, "{way:?}");
    }
}

fn named(way: &str) -> Way {
    let found = WAYS.into_iter().find(|each| format!("{each:?}") == way);
    found.expect("a way")
}
