//! A completion queue that is awaited by code that posts with `verbs_core`.

use std::time::{Duration, Instant};

use verbs_async::verbs_channel::verbs_core::memory::Sge;
use verbs_async::verbs_channel::verbs_core::{QueuePair, ReceiveWorkRequest, SendWorkRequest};
use verbs_async::{AsyncCq, CqEvents, DeviceEvents};
use verbs_harness::{begin, context, faults};

use super::ends::{Way, events, run, within};

/// Longer than any wait that ends by itself.
const LATE: Duration = Duration::from_secs(20);

/// A timeout that passes.
const SOON: Duration = Duration::from_millis(200);

/// Two queue pairs that are connected to each other, on one completion queue. Messages are
/// empty.
struct Wired {
    left: QueuePair,
    right: QueuePair,
    cq: AsyncCq,
}

impl Wired {
    fn new(cq: AsyncCq) -> Self {
        let pd = cq.cq().context().alloc_pd().unwrap();
        let prepared = || {
            let builder = QueuePair::builder(&pd, cq.cq(), cq.cq());
            builder.max_send_wr(64).max_recv_wr(64).build().unwrap()
        };
        let (left, right) = (prepared(), prepared());
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        Self {
            left: left.handshake(&to_right).unwrap(),
            right: right.handshake(&to_left).unwrap(),
            cq: cq.clone(),
        }
    }

    fn receive(&self, wr_id: u64) {
        let request = ReceiveWorkRequest::new::<Sge>(&mut []).wr_id(wr_id);
        // SAFETY: there is no memory.
        unsafe { self.right.post_receive(&mut [request]) }.unwrap();
    }

    fn send(&self, wr_id: u64) {
        let request = SendWorkRequest::new::<Sge>(&mut []).wr_id(wr_id);
        // SAFETY: there is no memory.
        unsafe { self.left.post(&mut [request.into()]) }.unwrap();
    }
}

/// The completion that is waited for is lost.
#[test]
#[ignore = "needs an RDMA device"]
fn overrun_ends_waits_only_with_device_events() {
    let test = begin!(iwarp lacks "receives without an element");
    for is_watched in [true, false] {
        let context = context();
        let cq = AsyncCq::create(&events(Way::Thread, &context), 1).unwrap();
        let count = u64::from(cq.cq().min_capacity()) + 20;
        if count > 60 {
            return test.skip("the driver's smallest queue is too large to overrun");
        }
        run(Way::Thread, async move {
            let wired = Wired::new(cq);
            let device_events = is_watched.then(|| {
                DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap()
            });
            if let Some(events) = &device_events {
                events.watch_cq(&wired.cq).unwrap();
            }
            let start = Instant::now();
            for wr_id in 0..count {
                wired.receive(wr_id);
                wired.send(100 + wr_id);
            }
            let lost = wired.cq.poll_wr_id(100 + count - 1);
            if is_watched {
                let ended = within(LATE, lost).await.expect("nothing comes");
                let (layer, error) = ("async with `DeviceEvents`", ended.unwrap_err());
                faults::error(faults::OVERRUN, layer, &error, faults::at_once(start));
            } else {
                assert!(within(SOON, lost).await.is_none());
                let caller = faults::caller(start, SOON);
                faults::seen(faults::OVERRUN, "async", faults::NOTHING, caller);
            }
        });
    }
}
