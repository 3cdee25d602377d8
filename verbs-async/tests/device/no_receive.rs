//! Sends for which the peer posts no receive.

use std::time::Instant;

use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::verbs_core::{MaxRnrRetries, MinRnrTimer};
use verbs_async::verbs_channel::{BufferPool, Channel};
use verbs_harness::{begin, context, faults};

use super::ends::{PATIENCE, Way, block, events, run, within};

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
