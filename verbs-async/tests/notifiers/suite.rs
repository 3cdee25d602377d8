//! The promises, one test each, for each notifier.

use std::io::{self, PipeReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use verbs_async::CqNotifier;
use verbs_harness::child::{fork, in_the_child};

use crate::fixture::{WakeCounter, block_on, drain, pipe, wait_readable, within_limit, write};

type Make = fn(BorrowedFd<'_>) -> Box<dyn CqNotifier>;

/// It is ready no more often than there was something to read, except for a few times.
fn readiness_ends(make: Make) {
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    write(&writer);
    wait_readable(&*notifier).unwrap();
    drain(&reader);
    let (_counter, waker) = WakeCounter::new();
    let mut cx = Context::from_waker(&waker);
    let pending = (0..10).any(|_| {
        thread::sleep(Duration::from_millis(5));
        notifier.poll_readable(&mut cx).is_pending()
    });
    assert!(pending);
}

fn nothing_is_missed_between_return_and_read(make: Make) {
    const BYTES: usize = 20_000;
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    let writes = thread::spawn(move || {
        for nth in 0..BYTES {
            write(&writer);
            for _ in 0..nth % 61 {
                std::hint::spin_loop();
            }
        }
        // The end of the pipe is reported, too, but only after all bytes.
        writer
    });
    let mut taken = 0;
    while taken < BYTES {
        wait_readable(&*notifier).unwrap();
        taken += drain(&reader);
    }
    drop(writes.join().unwrap());
}

fn the_last_waker_is_woken(make: Make) {
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    for _ in 0..10 {
        let (_first, waker) = WakeCounter::new();
        let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    let (last, waker) = WakeCounter::new();
    let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    write(&writer);
    last.wait();
}

/// A waker that calls the notifier again: when it is woken, and when it is dropped.
struct CallsAgain {
    notifier: Arc<Box<dyn CqNotifier>>,
}

impl CallsAgain {
    fn call(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = self.notifier.poll_readable(&mut cx);
        assert!(!matches!(polled, Poll::Ready(Err(_))));
    }
}

impl Wake for CallsAgain {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

impl Drop for CallsAgain {
    fn drop(&mut self) {
        self.call();
    }
}

fn replaced_waker_may_call_the_notifier(make: Make) {
    let (reader, writer) = pipe();
    let notifier = Arc::new(make(reader.as_fd()));
    for _ in 0..10 {
        let calls_again = CallsAgain {
            notifier: Arc::clone(&notifier),
        };
        let waker = Waker::from(Arc::new(calls_again));
        let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    let polled = notifier.poll_readable(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    write(&writer);
    wait_readable(&**notifier).unwrap();
}

/// Polls, reads and polls again, all within `wake`.
struct Drives {
    reader: PipeReader,
    notifier: Box<dyn CqNotifier>,
    taken: Mutex<usize>,
    counter: Arc<WakeCounter>,
    over: AtomicBool,
}

impl Drives {
    fn drive(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut cx = Context::from_waker(&waker);
        while let Poll::Ready(readable) = self.notifier.poll_readable(&mut cx) {
            readable.unwrap();
            *self.taken.lock().unwrap() += drain(&self.reader);
            self.counter.wake_by_ref();
            // After the end the pipe is closed, and always readable.
            if self.over.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

impl Wake for Drives {
    fn wake(self: Arc<Self>) {
        self.drive();
    }
}

fn waker_may_poll_in_place(make: Make) {
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    let drives = Arc::new(Drives {
        reader,
        notifier,
        taken: Mutex::default(),
        counter: Arc::default(),
        over: AtomicBool::new(false),
    });
    drives.drive();
    for written in 1..=1_000 {
        write(&writer);
        while *drives.taken.lock().unwrap() < written {
            drives.counter.wait();
        }
    }
    drives.over.store(true, Ordering::Relaxed);
}

#[derive(Default)]
struct Panics {
    was_woken: AtomicBool,
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Ordering::Relaxed);
        panic!("a waker that panics, as this test wants it");
    }
}

/// As if it was woken on another thread than its executor's, which it cannot bear.
fn waker_that_panics_fails_its_notifier_and_no_other(make: Make) {
    let (reader, writer) = pipe();
    let other = make(reader.as_fd());
    for _ in 0..3 {
        let notifier = make(reader.as_fd());
        let panics = Arc::new(Panics::default());
        let waker = Waker::from(Arc::clone(&panics));
        let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        write(&writer);
        wait_readable(&*other).unwrap();
        while Arc::strong_count(&panics) > 2 || !panics.was_woken.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let error = loop {
            match notifier.poll_readable(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Err(error)) => break error,
                _ => thread::yield_now(),
            }
        };
        assert!(error.to_string().contains("waker"), "{error}");
        wait_readable(&*notifier).unwrap_err();
        drain(&reader);
    }
}

fn dropped_notifier_releases_its_descriptor_and_waker(make: Make) {
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    let (counter, waker) = WakeCounter::new();
    let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let readable = notifier.readable();
    drop(reader);
    drop(readable);
    drop(notifier);
    // When there is no reader any more.
    let refused = loop {
        match (&writer).write_all(&[7]) {
            // A reactor's thread may be about to drop it.
            Ok(()) => thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    // The waker is not kept either.
    while Arc::strong_count(&counter) > 2 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A waker that drops its notifier.
struct Drops {
    notifier: Arc<Mutex<Option<Box<dyn CqNotifier>>>>,
    counter: Arc<WakeCounter>,
}

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        let notifier = self.notifier.lock().unwrap().take();
        drop(notifier);
        self.counter.wake_by_ref();
    }
}

fn waker_may_drop_the_notifier(make: Make) {
    let (reader, writer) = pipe();
    for _ in 0..100 {
        let notifier = Arc::new(Mutex::new(Some(make(reader.as_fd()))));
        let counter = Arc::new(WakeCounter::default());
        let drops = Drops {
            notifier: Arc::clone(&notifier),
            counter: Arc::clone(&counter),
        };
        let waker = Waker::from(Arc::new(drops));
        let mut cx = Context::from_waker(&waker);
        let polled = notifier
            .lock()
            .unwrap()
            .as_ref()
            .map(|notifier| notifier.poll_readable(&mut cx));
        assert!(matches!(polled, Some(Poll::Pending)));
        write(&writer);
        counter.wait();
        drain(&reader);
    }
    write(&writer);
    wait_readable(&*make(reader.as_fd())).unwrap();
}

fn concurrent_readable_futures_are_all_woken(make: Make) {
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    for _ in 0..50 {
        let mut waiting = [(); 3].map(|()| (notifier.readable(), WakeCounter::new()));
        for (readable, (_, waker)) in &mut waiting {
            let polled = readable.as_mut().poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending());
        }
        drop(notifier.readable());
        let (counter, waker) = WakeCounter::new();
        let mut cx = Context::from_waker(&waker);
        let mut given_up = notifier.readable();
        assert!(given_up.as_mut().poll(&mut cx).is_pending());
        drop(given_up);
        while notifier.poll_readable(&mut cx).is_ready() {}
        write(&writer);
        counter.wait();
        for (_, (counter, _)) in &waiting {
            counter.wait();
        }
        // No byte is read before all were woken.
        wait_readable(&*notifier).unwrap();
        for (mut readable, _) in waiting {
            block_on(|cx| readable.as_mut().poll(cx)).unwrap();
        }
        drain(&reader);
    }
}

/// The trait requires one call at a time only; concurrent calls must not lose readiness.
fn concurrent_calls_lose_no_readiness(make: Make) {
    const BYTES: usize = 5_000;
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    let (counter, waker) = WakeCounter::new();
    let taken = Mutex::new(0);
    let take = || {
        let mut taken = taken.lock().unwrap();
        *taken += drain(&reader);
        // No more bytes wake the thread that counts them.
        if *taken == BYTES {
            waker.wake_by_ref();
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..BYTES / 2 {
                    write(&writer);
                    // Like a task that posts and then polls for the completion at once.
                    let mut cx = Context::from_waker(&waker);
                    while notifier.poll_readable(&mut cx).is_ready() {
                        take();
                    }
                }
            });
        }
        let mut cx = Context::from_waker(&waker);
        while *taken.lock().unwrap() < BYTES {
            while notifier.poll_readable(&mut cx).is_ready() {
                take();
            }
            if *taken.lock().unwrap() < BYTES {
                counter.wait();
            }
        }
    });
}

/// The child of a fork has the same epoll sets.
fn drop_in_a_child_leaves_the_parents_descriptor_watched(make: Make) {
    let (reader, writer) = pipe();
    let notifier = make(reader.as_fd());
    let (counter, waker) = WakeCounter::new();
    let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let mut notifier = Some(notifier);
    in_the_child(fork(), || drop(notifier.take()));
    write(&writer);
    counter.wait();
    wait_readable(&*notifier.unwrap()).unwrap();
}

macro_rules! suite {
    ($make:expr; $($promise:ident),+ $(,)?) => {
        $(
            #[test]
            fn $promise() {
                within_limit(|| super::$promise($make));
            }
        )+
    };
    ($($name:ident: $make:expr;)+) => {
        $(
            mod $name {
                use super::within_limit;
                suite! {
                    $make;
                    readiness_ends,
                    nothing_is_missed_between_return_and_read,
                    the_last_waker_is_woken,
                    replaced_waker_may_call_the_notifier,
                    waker_may_poll_in_place,
                    waker_that_panics_fails_its_notifier_and_no_other,
                    dropped_notifier_releases_its_descriptor_and_waker,
                    waker_may_drop_the_notifier,
                    drop_in_a_child_leaves_the_parents_descriptor_watched,
                    concurrent_readable_futures_are_all_woken,
                    concurrent_calls_lose_no_readiness,
                }
            }
        )+
    };
}

suite! {
    by_thread: |descriptor| {
        Box::new(verbs_async::notifier::ThreadNotifier::new(descriptor).unwrap())
    };
}

#[cfg(feature = "async-io")]
suite! {
    by_async_io: |descriptor| {
        Box::new(verbs_async::notifier::AsyncIoNotifier::new(descriptor).unwrap())
    };
}

#[cfg(feature = "tokio")]
suite! {
    by_tokio: |descriptor| {
        let _entered = crate::tokio::runtime().enter();
        Box::new(verbs_async::notifier::TokioNotifier::new(descriptor).unwrap())
    };
}
