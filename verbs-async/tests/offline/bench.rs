//! The base of these tests: a device, and a notifier and tasks that a test drives by hand.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use fake_libibverbs::{announce_last, with};
use verbs_async::notifier::ThreadNotifier;
use verbs_async::{AsyncChannel, AsyncCq, AsyncGroup, CqEvents, CqNotifier};
use verbs_channel::error::CloseError;
use verbs_core::completion::CompletionChannel;
use verbs_core::verbs_sys::{IBV_WC_SUCCESS, ibv_qp_state, ibv_wc};
use verbs_core::{CompletionQueue, Device};
pub(crate) use verbs_harness::WakeCounter;

/// A completion channel, watched by hand.
pub(crate) struct Bench {
    pub(crate) context: verbs_core::Context,
    pub(crate) events: CqEvents,
    pub(crate) hand: Hand,
    pub(crate) device: Hand,
}

/// A notifier whose readiness the test sets.
#[derive(Clone, Default)]
pub(crate) struct Hand(Arc<Mutex<Readiness>>);

#[derive(Default)]
struct Readiness {
    readable: bool,
    over: bool,
    waker: Option<Waker>,
    // The notifier of the device.
    device: Option<Hand>,
}

impl CqNotifier for Hand {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut readiness = self.0.lock().unwrap();
        if readiness.over {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if std::mem::take(&mut readiness.readable) {
            return Poll::Ready(Ok(()));
        }
        readiness.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        let device = self.0.lock().unwrap().device.take();
        Ok(match device {
            Some(device) => Box::new(device),
            None => Box::new(ThreadNotifier::new(descriptor)?),
        })
    }
}

impl Hand {
    /// The descriptor has become readable.
    pub(crate) fn readable(&self) {
        self.change(|readiness| readiness.readable = true);
    }

    /// The notifier fails from now on.
    pub(crate) fn over(&self) {
        self.change(|readiness| readiness.over = true);
    }

    fn change(&self, what: impl FnOnce(&mut Readiness)) {
        let waker = {
            let mut readiness = self.0.lock().unwrap();
            what(&mut readiness);
            readiness.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let context = Device::by_name("fake0").unwrap().open().unwrap();
        let (hand, device) = (Hand::default(), Hand::default());
        hand.change(|readiness| readiness.device = Some(device.clone()));
        let channel = CompletionChannel::create(&context).unwrap();
        let events = CqEvents::new(channel, hand.clone()).unwrap();
        Self {
            context,
            events,
            hand,
            device,
        }
    }

    pub(crate) fn cq(&self) -> AsyncCq {
        AsyncCq::create(&self.events, 64).unwrap()
    }

    /// Delivers these events, and notifies.
    pub(crate) fn announce<'a>(&self, queues: impl IntoIterator<Item = &'a CompletionQueue>) {
        queues.into_iter().for_each(fake_libibverbs::announce);
        self.hand.readable();
    }
}

/// Calls of some verbs: each waits until it is released, or this is dropped.
pub(crate) struct Held {
    begun: Receiver<(&'static str, ThreadId)>,
    release: Sender<()>,
}

impl Held {
    pub(crate) fn new(verbs: &'static [&'static str]) -> Self {
        Self::when(move |verb, _state| verbs.contains(&verb))
    }

    /// Only calls for which this is true.
    pub(crate) fn when(
        is_held: impl Fn(&'static str, Option<ibv_qp_state>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (begins, begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let released = Mutex::new(released);
        let before = move |verb: &'static str, state| {
            if is_held(verb, state) {
                begins.send((verb, thread::current().id())).ok();
                released.lock().unwrap().recv_timeout(LONG).ok();
            }
        };
        with(|library| library.before = Some(Arc::new(before)));
        Self { begun, release }
    }

    /// Waits until a call of this verb has begun, on a helper thread.
    pub(crate) fn begins(&self, verb: &str) {
        let (begun, thread) = self.begun.recv_timeout(LONG).expect("it does not begin");
        assert_eq!(begun, verb);
        assert_ne!(thread, thread::current().id(), "the caller is blocked");
    }

    /// Whether another call has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.try_recv().is_ok()
    }

    /// Lets one return.
    pub(crate) fn returns(&self) {
        self.release.send(()).unwrap();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        with(|library| library.before = None);
    }
}

/// Queue pairs that are destroyed only when they are released.
pub(crate) fn held_destroys() -> Held {
    Held::new(&["ibv_destroy_qp"])
}

/// Aborts a channel, and waits until the device is done with its memory.
pub(crate) async fn at_once(channel: &AsyncChannel) -> Result<(), CloseError> {
    channel.abort();
    channel.close().await
}

/// Delivers the event of the queue that was created last, and notifies.
pub(crate) fn announce(bench: &Bench) {
    assert!(announce_last());
    bench.hand.readable();
}

/// A channel of this group that is connected to itself.
pub(crate) fn join(group: &AsyncGroup) -> AsyncChannel {
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    group.join(member.handshake(&endpoint).unwrap()).unwrap()
}

/// Adds these completions to the queue.
pub(crate) fn done(ids: impl IntoIterator<Item = u64>) {
    let done = ids.into_iter().map(|wr_id| ibv_wc {
        wr_id,
        status: IBV_WC_SUCCESS,
        ..Default::default()
    });
    with(|library| library.done.extend(done));
}

/// How often the queue was armed, and how often an event was requested.
pub(crate) fn system_calls() -> (usize, usize) {
    with(|library| {
        let taken = library.calls.iter();
        let taken = taken.filter(|call| **call == "ibv_get_cq_event").count();
        (library.armed.len(), taken)
    })
}

/// A task that is polled by hand, and counts how often it was woken.
pub(crate) struct Task<F: ?Sized> {
    counter: Arc<WakeCounter>,
    // Before the last poll.
    woken_before: usize,
    future: Pin<Box<F>>,
}

impl<F: Future> Task<F> {
    pub(crate) fn new(future: F) -> Self {
        Self {
            counter: Arc::default(),
            woken_before: 0,
            future: Box::pin(future),
        }
    }

    /// Polls it, and again if it yielded to other tasks: there are none here.
    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.counter));
        let mut cx = Context::from_waker(&waker);
        loop {
            let before = self.counter.wakes();
            self.woken_before = before;
            let polled = self.future.as_mut().poll(&mut cx);
            let woken = self.counter.wakes() - before;
            if polled.is_ready() || woken == 0 {
                return polled;
            }
            self.counter.forget(woken);
        }
    }

    pub(crate) fn future(&mut self) -> Pin<&mut F> {
        self.future.as_mut()
    }

    /// Polls it, and asserts that it is pending.
    pub(crate) fn waits(mut self) -> Self {
        assert!(self.poll().is_pending());
        self
    }

    /// Polls it, and asserts that it is ready.
    pub(crate) fn ends(&mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it is not done"),
        }
    }

    /// Polls it whenever it is woken, until it is ready: helper threads have something to do before. If it
    /// is not woken, it panics.
    pub(crate) fn ends_when_woken(&mut self) -> F::Output {
        let start = Instant::now();
        loop {
            if let Poll::Ready(output) = self.poll() {
                return output;
            }
            while !self.is_woken() {
                assert!(start.elapsed() < LONG, "it is not woken");
                thread::yield_now();
            }
        }
    }

    pub(crate) fn was_woken(&self) -> usize {
        self.counter.wakes()
    }

    /// How often it had been woken when it was polled last.
    pub(crate) const fn woken_before(&self) -> usize {
        self.woken_before
    }

    /// Whether it was woken after its last poll began.
    pub(crate) fn is_woken(&self) -> bool {
        self.was_woken() > self.woken_before
    }
}

/// The output of a future that is ready when helper threads have done their part.
pub(crate) fn later<T>(future: impl Future<Output = T>) -> T {
    Task::new(future).ends_when_woken()
}

/// The output of a future that must be ready at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    // The first poll may yield to other tasks.
    for _ in 0..2 {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
    panic!("it is not there")
}

/// Runs a function that must return by itself, on this thread, which has the library. If it hangs,
/// the process is aborted.
pub(crate) fn bounded<T>(what: impl FnOnce() -> T) -> T {
    verbs_harness::bounded(LONG, what)
}

/// Far longer than any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
