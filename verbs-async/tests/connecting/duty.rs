//! Waking others: a thread that came for something else is done with it after a while.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Instant;

use fake_libibverbs::with;
use verbs_async::verbs_channel::{BufferPool, Channel};
use verbs_async::{AsyncGroup, Operation};

use crate::bench::{Bench, announce, bounded, done, join};
use crate::gate::{LONG, alone};

/// Waits for something else whenever it is woken, on the thread that wakes it. That is there at once, and is found
/// there: so that thread finds the next task to wake, which is this one again.
struct Endless<B, F> {
    begins: B,
    found: F,
    wait: Mutex<Option<Wait>>,
    wakes: AtomicUsize,
    is_over: AtomicBool,
    has_ended: AtomicBool,
}

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<B, F> Endless<B, F>
where
    B: Fn(usize) -> Wait + Send + Sync + 'static,
    F: Fn() + Send + Sync + 'static,
{
    /// `begins` a wait, the first of all with 0, which ends when it is `found`.
    fn new(begins: B, found: F) -> Arc<Self> {
        Arc::new(Self {
            begins,
            found,
            wait: Mutex::new(None),
            wakes: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    fn goes_on(self: &Arc<Self>) {
        let Ok(mut own) = self.wait.try_lock() else {
            // A poll in here has yielded: it is repeated.
            return;
        };
        if let Some(mut ended) = own.take() {
            let polled = poll(ended.as_mut(), Waker::noop());
            assert!(polled.is_ready(), "it was woken before it has ended");
        }
        if self.is_over.load(Ordering::Relaxed) {
            self.has_ended.store(true, Ordering::Relaxed);
            return;
        }
        let wakes = self.wakes.fetch_add(1, Ordering::Relaxed);
        let wait = own.insert((self.begins)(wakes));
        let waker = Waker::from(Arc::clone(self));
        assert!(poll(wait.as_mut(), &waker).is_pending());
        drop(own);
        (self.found)();
    }

    /// The first wait returns, though there is always another task to wake: helper threads continue. Then it
    /// `is_over`.
    fn is_left_to_helper_threads(self: Arc<Self>, has_happened: impl Fn() -> bool) {
        self.goes_on();
        let until = |is_there: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is_there() {
                assert!(begun.elapsed() < LONG, "no helper thread continues");
                thread::yield_now();
            }
        };
        until(&has_happened);
        // Also beyond that which one call to a helper thread does.
        let wakes = || self.wakes.load(Ordering::Relaxed);
        let before = wakes();
        until(&|| wakes() > before + if cfg!(miri) { 200 } else { 10_000 });
        self.is_over.store(true, Ordering::Relaxed);
        // Without the lock: a wake-up that finds it taken does nothing.
        until(&|| self.has_ended.load(Ordering::Relaxed));
    }
}

impl<B, F> Wake for Endless<B, F>
where
    B: Fn(usize) -> Wait + Send + Sync + 'static,
    F: Fn() + Send + Sync + 'static,
{
    fn wake(self: Arc<Self>) {
        self.goes_on();
    }
}

/// Runs a test that leaves nothing, and does not hang.
fn within_limit(test: impl FnOnce()) {
    alone(|| bounded(test));
}

/// At most two polls yield, one after another.
const POLLS: usize = 3;

/// More than threads that drive, and wakers on each of them.
const RECEIVES: u32 = 16;

/// Polls more often than it may yield.
fn poll<F: Future + ?Sized>(mut future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    let mut cx = Context::from_waker(waker);
    for _ in 0..POLLS {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Poll::Ready(output);
        }
    }
    Poll::Pending
}

/// The id of the last request that was posted.
fn posted() -> u64 {
    with(|library| {
        let posted = library.posted.last().and_then(|posted| posted.last());
        let id = posted.unwrap().wr_id;
        library.posted.drain(..library.posted.len() - 1);
        id
    })
}

#[test]
fn thread_that_polls_a_channel_leaves_endless_waking_to_helper_threads() {
    /// Number of wakes after which a send is abandoned.
    const ABANDONED: usize = 10;
    within_limit(|| {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(4).max_recv_wr(RECEIVES);
        let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
        let channel = join(&group);
        let memory = BufferPool::new(&pd, 8, RECEIVES as usize + 2).unwrap();
        // Nothing comes: polling one drives the channel.
        let receives = (0..RECEIVES).map(|_| channel.receive(memory.take().unwrap()));
        let receives: Mutex<Vec<Operation>> = Mutex::new(receives.collect());
        let blocks = BufferPool::new(&pd, 8, 1).unwrap();
        let block = Mutex::new(blocks.take());
        let begins = move |wakes| -> Wait {
            if wakes == ABANDONED {
                let abandoned = channel.send(block.lock().unwrap().take().unwrap());
                let id = posted();
                drop(abandoned);
                done([id]);
            }
            let send = channel.send(memory.take().unwrap());
            Box::pin(async move { send.await.0.map(drop).unwrap() })
        };
        let found = move || {
            done([posted()]);
            let one = receives.lock().unwrap().pop();
            let mut one = one.expect("it recurses");
            assert!(poll(Pin::new(&mut one), Waker::noop()).is_pending());
            receives.lock().unwrap().push(one);
        };
        // Meanwhile, too, the block of an abandoned send is returned.
        Endless::new(begins, found).is_left_to_helper_threads(|| blocks.available() == 1);
    });
}

/// Calls a function when it is woken.
struct Calls<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[test]
fn waker_that_blocks_delays_no_task_that_another_thread_wakes() {
    within_limit(|| {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(4).max_recv_wr(1);
        let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
        let channel = join(&group);
        let memory = BufferPool::new(&pd, 8, 3).unwrap();
        let begins = || {
            let send = channel.send(memory.take().unwrap());
            (send, posted())
        };
        let ((mut first, first_id), (mut second, second_id)) = (begins(), begins());
        let (begun, blocks) = mpsc::channel();
        let (wakes, woken) = mpsc::channel();
        let woken = Mutex::new(woken);
        let waker = Waker::from(Arc::new(Calls(move || {
            begun.send(()).unwrap();
            // Until the task of the second is woken.
            let woken = woken.lock().unwrap().recv_timeout(LONG / 2);
            if woken.is_ok() {
                begun.send(()).unwrap();
            }
        })));
        assert!(poll(Pin::new(&mut first), &waker).is_pending());
        let waker = Waker::from(Arc::new(Calls(move || wakes.send(()).unwrap())));
        assert!(poll(Pin::new(&mut second), &waker).is_pending());
        // Both are found at once.
        done([first_id, second_id]);
        thread::scope(|scope| {
            scope.spawn(|| announce(&bench));
            blocks.recv_timeout(LONG).unwrap();
            let mut third = begins().0;
            assert!(poll(Pin::new(&mut third), Waker::noop()).is_pending());
            blocks.recv_timeout(LONG).expect("the second is not woken");
        });
        assert!(poll(Pin::new(&mut first), Waker::noop()).is_ready());
        assert!(poll(Pin::new(&mut second), Waker::noop()).is_ready());
    });
}
