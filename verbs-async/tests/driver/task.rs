//! Tasks that tests poll by hand, on a driver of their own.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use verbs_channel::Queue;

use crate::driver::{Driver, Submission};
use crate::ring::{End, FakeDevice, FakeRing, Outcome, Request, Ticket, poll};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 10 });

/// A device and the driver of its ring.
pub(crate) struct Bench {
    pub(crate) device: Arc<FakeDevice>,
    pub(crate) driver: Arc<Driver<FakeRing>>,
}

/// A task that counts how often it is woken.
#[derive(Default)]
pub(crate) struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn rings(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Bench {
    /// Two channels, whose queues have this many places each.
    pub(crate) fn new(places: usize) -> Self {
        let device = FakeDevice::new(2, places);
        let driver = Arc::new(Driver::new(FakeRing(Arc::clone(&device))));
        Self { device, driver }
    }

    /// Begins work in the first queue of the first channel.
    pub(crate) fn start(&self, id: usize) -> Submission<Ticket> {
        self.start_on(0, self.device.request(id, 0))
    }

    pub(crate) fn start_on(&self, channel: usize, request: Request) -> Submission<Ticket> {
        self.driver.start(channel, request, usize::MAX)
    }

    /// A batch of so many in the first queue of the first channel.
    pub(crate) fn start_batch(&self, id: usize, places: usize) -> Submission<Ticket> {
        let request = self.device.request(id, 0);
        self.start_on(0, Request { places, ..request })
    }

    pub(crate) fn poll(&self, key: Submission<Ticket>, bell: &Arc<Bell>) -> Poll<Outcome> {
        self.poll_with(key, &Waker::from(Arc::clone(bell)))
    }

    pub(crate) fn poll_with(&self, key: Submission<Ticket>, waker: &Waker) -> Poll<Outcome> {
        let mut cx = Context::from_waker(waker);
        poll(&self.driver, &key, &mut cx)
    }

    /// Whether nothing is left in the first channel's first queue; else this is told when that is so.
    pub(crate) fn is_drained(&self, bell: &Arc<Bell>) -> bool {
        let waker = Waker::from(Arc::clone(bell));
        let mut cx = Context::from_waker(&waker);
        let drained = self.driver.poll_drained(0, &[Queue::Send], &mut cx);
        drained.is_ready()
    }

    /// The outcome's id and end, if it is done.
    pub(crate) fn end(&self, key: Submission<Ticket>) -> Option<(usize, End)> {
        match self.poll_with(key, Waker::noop()) {
            Poll::Ready(outcome) => Some((outcome.id, outcome.end)),
            Poll::Pending => None,
        }
    }

    /// The device ends these, and announces it if it was asked to.
    pub(crate) fn complete(&self, ids: impl IntoIterator<Item = usize>) {
        for id in ids {
            if self.device.complete(id) {
                self.driver.on_event();
            }
        }
    }

    /// The ids that were posted, in their order.
    pub(crate) fn posted(&self) -> Vec<usize> {
        self.device.lock().posted.clone()
    }
}

/// Runs what must end by itself; if it does not, the process is aborted.
pub(crate) fn bounded<T>(what: impl FnOnce() -> T) -> T {
    let (done, waits) = mpsc::channel::<()>();
    let name = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if waits.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
            // Past the harness, which keeps what a test prints until it has ended.
            let line = format!("\nFAILED {name}: it hangs, {LONG:?} were not enough\n");
            drop(std::io::stderr().write_all(line.as_bytes()));
            std::process::abort();
        }
    });
    let result = what();
    drop(done);
    result
}
