//! Tasks that tests poll by hand, on a driver of their own.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use verbs_channel::Queue;
pub(crate) use verbs_harness::WakeCounter;

use crate::driver::{Driver, Submission};
use crate::ring::{End, FakeDevice, FakeRing, Outcome, Request, Ticket, poll};

/// Far longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(10);

/// A device and the driver of its ring.
pub(crate) struct Bench {
    pub(crate) device: Arc<FakeDevice>,
    pub(crate) driver: Arc<Driver<FakeRing>>,
}

impl Bench {
    /// Two channels, whose queues have this many places each.
    pub(crate) fn new(places: usize) -> Self {
        Self::with_shares(places, usize::MAX / 2, 0)
    }

    /// The same with `share` places of their own, and `common` places in common.
    pub(crate) fn with_shares(places: usize, share: usize, common: usize) -> Self {
        let device = FakeDevice::with_shares(2, places, share, common);
        let driver = Arc::new(Driver::new(FakeRing(Arc::clone(&device))));
        Self { device, driver }
    }

    /// Begins an operation in the first queue of the first channel.
    pub(crate) fn start(&self, id: usize) -> Submission<Ticket> {
        self.start_on(0, self.device.request(id, 0))
    }

    pub(crate) fn start_on(&self, channel: usize, request: Request) -> Submission<Ticket> {
        self.driver.start(channel, request, usize::MAX)
    }

    /// A batch of this many in the first queue of the first channel.
    pub(crate) fn start_batch(&self, id: usize, places: usize) -> Submission<Ticket> {
        let request = self.device.request(id, 0);
        self.start_on(0, Request { places, ..request })
    }

    pub(crate) fn poll(
        &self,
        key: Submission<Ticket>,
        counter: &Arc<WakeCounter>,
    ) -> Poll<Outcome> {
        self.poll_with(key, &Waker::from(Arc::clone(counter)))
    }

    pub(crate) fn poll_with(&self, key: Submission<Ticket>, waker: &Waker) -> Poll<Outcome> {
        let mut cx = Context::from_waker(waker);
        poll(&self.driver, &key, &mut cx)
    }

    /// Whether the first channel's first queue is empty. If not, this is woken when it is, once.
    pub(crate) fn is_drained(&self, counter: &Arc<WakeCounter>) -> bool {
        let waker = Waker::from(Arc::clone(counter));
        let mut cx = Context::from_waker(&waker);
        let drained = self
            .driver
            .poll_drained(0, &[Queue::Send], &mut None, &mut cx);
        drained.is_ready()
    }

    /// The id and the end of the outcome, if there is one.
    pub(crate) fn end(&self, key: Submission<Ticket>) -> Option<(usize, End)> {
        match self.poll_with(key, Waker::noop()) {
            Poll::Ready(outcome) => Some((outcome.id, outcome.end)),
            Poll::Pending => None,
        }
    }

    /// The device completes these, and raises an event if the queue is armed.
    pub(crate) fn complete(&self, ids: impl IntoIterator<Item = usize>) {
        for id in ids {
            if self.device.complete(id) {
                self.driver.on_event();
            }
        }
    }

    /// The ids that were posted, in order.
    pub(crate) fn posted(&self) -> Vec<usize> {
        self.device.lock().posted.clone()
    }
}

/// Runs a function that must return by itself. If it hangs, the process is aborted.
pub(crate) fn bounded<T>(what: impl FnOnce() -> T) -> T {
    verbs_harness::bounded(LONG, what)
}
