//! Messages of shared receives, awaited: of many channels, by a task that keeps all blocks for a while.

use std::time::Duration;

use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason};
use verbs_harness::begin;

use super::ends::{WAYS, block, events, once_it_waits, run, within};

#[test]
#[ignore = "needs an RDMA device"]
fn eight_channels_share_four_blocks_and_lose_nothing() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let pd = verbs_harness::context().alloc_pd().unwrap();
            let events = events(way, pd.context());
            let pool = BufferPool::new(&pd, 64, 4).unwrap();
            let own = BufferPool::new(&pd, 8, 64).unwrap();
            let receives = Channel::builder(&pd).peer_timeout(None);
            let receives = receives.shared_receives(&pool, 4);
            let (group, mut messages) =
                AsyncGroup::with_shared_receives(&receives, 8, &events).unwrap();
            let pairs = [(); 4].map(|()| group.loopback().unwrap());
            for round in 0..4_u8 {
                let sends: Vec<_> = pairs
                    .iter()
                    .zip(0..)
                    .flat_map(|((left, right), number)| {
                        [left, right].map(|channel| channel.send(block(&own, &[round, number])))
                    })
                    .collect();
                let mut kept = Vec::new();
                for _ in 0..sends.len() {
                    let next = messages.next();
                    // All blocks are here: a thread drops them when the task sleeps.
                    let message = if kept.len() == 4 {
                        let blocks = std::mem::take(&mut kept);
                        once_it_waits(next, move || drop(blocks)).await.unwrap()
                    } else {
                        next.await.unwrap()
                    };
                    let pair = &pairs[usize::from(message.bytes().unwrap()[1])];
                    assert!([pair.0.id(), pair.1.id()].contains(&message.channel));
                    assert_eq!(message.bytes().unwrap()[0], round);
                    kept.push(message);
                }
                for send in sends {
                    send.await.0.unwrap();
                }
            }
            // A future that is dropped while it waits, and the end of a channel.
            let never = Duration::from_millis(1);
            assert!(within(never, messages.next()).await.is_none());
            pairs[0].0.abort();
            let end = messages.next().await.unwrap();
            assert_eq!(end.channel, pairs[0].0.id());
            assert_eq!(end.end(), Some(DownReason::Closed));
        });
    }
}
