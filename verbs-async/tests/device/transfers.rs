//! Awaited transfers on a device: at the timeout nothing is in flight.

use std::time::{Duration, Instant};

use async_io::Timer;
use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::verbs_core::{MaxRnrRetries, MinRnrTimer};
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, Outgoing};
use verbs_harness::{begin, context, faults};

use super::ends::{PATIENCE, WAYS, Way, block, events, narrow_pair, run, within};

/// A timeout that passes.
const SOON: Duration = Duration::from_millis(200);

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_takes_nothing_ends_a_transfer_at_its_timeout() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = narrow_pair(way, 4);
            let pool = BufferPool::new(group.pd(), 8, 20).unwrap();
            let mut transfer = left.transfer(20);
            // No receive is posted for them, and the device retries forever.
            for _ in 0..20 {
                transfer.add(left.id(), Outgoing::send(block(&pool, &[1; 8])));
            }
            // A timeout around the future, which is cancelled by it.
            assert!(within(SOON, transfer.finish()).await.is_none());
            assert!(!left.is_down() && !transfer.is_finished());
            let start = Instant::now();
            let ended = match way {
                Way::Tokio => {
                    transfer
                        .finish_by(Instant::now() + SOON, tokio::time::sleep)
                        .await
                }
                _ => {
                    transfer
                        .finish_by(Instant::now() + SOON, Timer::after)
                        .await
                }
            };
            assert!(start.elapsed() >= SOON);
            let reason = ended.unwrap_err().down_reason();
            assert!(reason.is_some_and(DownReason::is_timed_out));
            assert_eq!(transfer.drain().count(), 20);
            assert_eq!(pool.available(), 20);
            // One that is dropped: the drain returns its buffers.
            let mut transfer = right.transfer(2);
            transfer.add(right.id(), Outgoing::send(block(&pool, &[1; 8])));
            assert!(within(SOON, transfer.finish()).await.is_none());
            drop(transfer);
            assert_eq!(right.down_reason(), Some(DownReason::Abandoned));
            right.close().await.unwrap_err();
            assert_eq!(pool.available(), 20);
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn without_a_receive_a_send_ends_after_the_retries() {
    let _test = begin!(iwarp lacks "retries");
    run(Way::Thread, async {
        let pd = context().alloc_pd().unwrap();
        let rnr_retry = MaxRnrRetries::new(0).unwrap();
        let builder = Channel::builder(&pd).rnr_retry(rnr_retry);
        let group = AsyncGroup::new(builder, 2, &events(Way::Thread, pd.context())).unwrap();
        let (left, _right) = group.loopback().unwrap();
        let pool = BufferPool::new(&pd, 8, 1).unwrap();
        let start = Instant::now();
        let sending = within(PATIENCE, left.send(block(&pool, &[1; 8]))).await;
        let error = sending.expect("it waits on").0.unwrap_err();
        let retries = faults::rnr_retries(start, MinRnrTimer::default(), rnr_retry.get());
        faults::error(faults::NO_RECEIVE, "async", &error, retries);
    });
}
