//! How a channel ends: closed in order, closed in vain, or dropped with operations in flight.

use std::time::Duration;

use futures_util::future::join_all;
use verbs_async::Operation;
use verbs_async::verbs_channel::{BufferPool, DownReason, RejectReason, TransportError};
use verbs_harness::begin;

use super::ends::{WAYS, block, narrow_pair, pair, run, within};

/// A short time, and one longer than any wait that ends by itself.
const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(10);

/// Asserts that all operations end soon because the channel was closed, and return their buffers.
async fn all_say_closed(operations: Vec<Operation>) {
    let ended = within(LATE, join_all(operations)).await;
    for (result, buffer) in ended.expect("some do not end") {
        let closed = matches!(
            result,
            Err(TransportError::Aborted(DownReason::Closed))
                | Err(TransportError::Rejected(RejectReason::Down(
                    DownReason::Closed
                )))
        );
        assert!(closed, "{result:?}");
        assert_eq!(buffer[..], [1; 8]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn close_under_a_timeout_ends_with_a_silent_peer() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = narrow_pair(way, 4);
            let pool = BufferPool::new(group.pd(), 8, 128).unwrap();
            let own = || block(&pool, &[1; 8]);
            // No receive is posted, and the device retries forever.
            let operations: Vec<_> = (0..12)
                .flat_map(|_| [left.send(own()), left.receive(own())])
                .collect();
            assert!(within(SOON, left.close()).await.is_none());
            all_say_closed(operations).await;
            assert_eq!(pool.available(), pool.capacity());
            // The other end and the group still work.
            assert!(!right.is_down());
            drop(group.prepare().unwrap());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn operations_outlive_their_channel_and_its_group() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = pair(way);
            let pool = BufferPool::new(group.pd(), 8, 16).unwrap();
            let own = || block(&pool, &[1; 8]);
            let receives = (0..4).map(|_| right.receive(own())).collect();
            let lost: Vec<_> = (0..4).map(|_| left.receive(own())).collect();
            drop((left, right));
            group.destroyed().await.unwrap();
            drop(group);
            all_say_closed(receives).await;
            // The order of drops does not matter.
            assert_eq!(pool.available(), 12);
            drop(lost);
            assert_eq!(pool.available(), pool.capacity());
        });
    }
}
