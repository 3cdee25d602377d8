//! Groups that many runtimes share, and runtimes that many groups share.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use verbs_async::verbs_channel::{BufferPool, Channel};
use verbs_async::{AsyncGroup, CqEvents};
use verbs_harness::{begin, context};

use super::ends::{WAYS, block, events, run, within};

/// Longer than any wait that ends by itself.
const LATE: Duration = Duration::from_secs(20);

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A group that a runtime watches.
fn group_in(runtime: &Runtime) -> AsyncGroup {
    let context = context();
    let _inside = runtime.enter();
    let events = CqEvents::create_tokio(&context).unwrap();
    let pd = context.alloc_pd().unwrap();
    AsyncGroup::new(Channel::builder(&pd), 16, &events).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn runtimes_share_a_group() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let (watches, another) = (runtime(), runtime());
    let group = group_in(&watches);
    let pool = BufferPool::new(group.pd(), 8, 64).unwrap();
    // Tasks of two runtimes and of none, on channels of their own and on both ends of one.
    let (left, right) = group.loopback().unwrap();
    let own = || block(&pool, &[1; 8]);
    let receiver = {
        let pool = pool.clone();
        another.spawn(async move {
            for at in 0..200_u64 {
                let (received, bytes) = right.receive(block(&pool, &[0; 8])).await;
                received.unwrap();
                assert_eq!(bytes[..], at.to_le_bytes());
            }
            right
        })
    };
    let sender = {
        let pool = pool.clone();
        watches.spawn(async move {
            for at in 0..200_u64 {
                left.send(block(&pool, &at.to_le_bytes())).await.0.unwrap();
            }
            left
        })
    };
    let (a, b) = group.loopback().unwrap();
    let neither = async {
        for _ in 0..200 {
            let receive = b.receive(own());
            a.send(own()).await.0.unwrap();
            receive.await.0.unwrap();
        }
    };
    pollster::block_on(within(LATE, neither)).expect("it hangs");
    let left = pollster::block_on(within(LATE, sender)).unwrap().unwrap();
    let right = pollster::block_on(within(LATE, receiver)).unwrap().unwrap();
    // A runtime without the notifier may end, which affects no operation.
    drop(another);
    let receive = right.receive(own());
    pollster::block_on(left.send(own())).0.unwrap();
    pollster::block_on(within(LATE, receive))
        .unwrap()
        .0
        .unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn many_groups_on_one_completion_channel() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let context = context();
            let events = events(way, &context);
            let pd = context.alloc_pd().unwrap();
            let groups: Vec<_> = (0..16)
                .map(|_| AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap())
                .collect();
            drop(events);
            let pool = BufferPool::new(&pd, 8, 64).unwrap();
            let pairs: Vec<_> = groups
                .iter()
                .map(|group| group.loopback().unwrap())
                .collect();
            let mut receives: Vec<_> = pairs
                .iter()
                .map(|(_, right)| Some(right.receive(block(&pool, &[0; 8]))))
                .collect();
            let mut rounds = Vec::new();
            for (at, (left, _)) in pairs.iter().enumerate() {
                let receive = receives[at].take().unwrap();
                let number = at.to_le_bytes();
                let pool = &pool;
                rounds.push(async move {
                    let sending = left.send(block(pool, &number));
                    let (received, bytes) = receive.await;
                    received.unwrap();
                    assert_eq!(bytes[..], number);
                    sending.await.0.unwrap();
                });
            }
            within(LATE, join_all(rounds)).await.expect("some hang");
            // Some groups are dropped with events on their way; the others are not affected.
            let mut pairs = pairs.into_iter();
            for (left, right) in pairs.by_ref().take(8) {
                let receive = right.receive(block(&pool, &[0; 8]));
                drop((left.send(block(&pool, &[0; 8])), receive));
                drop((right, left));
            }
            drop(groups);
            for (left, right) in pairs {
                let receive = right.receive(block(&pool, &[0; 8]));
                left.send(block(&pool, b"still")).await.0.unwrap();
                assert_eq!(&receive.await.1[..5], b"still");
                let _ended = (left.close().await, right.close().await);
            }
            // Helper threads drop the buffers of the groups that were dropped.
            let blocks = join_all((0..64).map(|_| pool.take_when_free()));
            let blocks = within(LATE, blocks).await.expect("blocks are missing");
            assert_eq!(blocks.len(), pool.capacity());
        });
    }
}
