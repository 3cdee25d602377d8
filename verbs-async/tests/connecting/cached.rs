//! Slices of cached memory: who registers, who waits for room, and what a dropped future leaves.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use fake_libibverbs::{assert_all_is_well, share};
use verbs_async::verbs_channel::RegistrationCache;
use verbs_async::verbs_channel::buffer::SharedSlice;
use verbs_async::verbs_channel::registration_cache::CachedMemory;
use verbs_async::verbs_channel::verbs_core::error::Rejected;
use verbs_async::verbs_channel::verbs_core::{self, AccessFlags, Context as Device, SharedRegion};
use verbs_async::{Result, cached_slice};
use verbs_harness::allocations::allocations;

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);
const PART: usize = 64;

/// Counts how often it is woken, and wakes the thread of the test.
struct Woken {
    count: AtomicUsize,
    thread: thread::Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::Release);
        self.thread.unpark();
    }
}

/// A slice that is awaited.
struct Task<'m> {
    future: Pin<Box<dyn Future<Output = Result<SharedSlice>> + 'm>>,
    woken: Arc<Woken>,
}

impl<'m> Task<'m> {
    /// Awaits a part.
    fn new(memory: &'m CachedMemory, part: usize) -> Self {
        Self {
            future: Box::pin(cached_slice(memory, part * PART..part * PART + 8)),
            woken: Arc::new(Woken {
                count: AtomicUsize::new(0),
                thread: thread::current(),
            }),
        }
    }

    fn poll(&mut self) -> Poll<Result<SharedSlice>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn was_woken(&self) -> usize {
        self.woken.count.load(Ordering::Acquire)
    }

    /// Waits until it was woken so often.
    fn waits_for_wake(&self, count: usize) {
        let start = Instant::now();
        while self.was_woken() < count {
            thread::park_timeout(LONG / 100);
            assert!(start.elapsed() < LONG, "it is not woken");
        }
    }

    /// Waits until there is no room for it.
    fn waits(mut self) -> Self {
        assert!(self.poll().is_pending());
        self
    }

    /// Polls it when it is woken, until it is ready.
    fn ends(mut self) -> Result<SharedSlice> {
        let start = Instant::now();
        loop {
            let woken = self.was_woken();
            if let Poll::Ready(slice) = self.poll() {
                return slice;
            }
            while self.was_woken() == woken {
                thread::park_timeout(LONG / 100);
                assert!(start.elapsed() < LONG, "it hangs");
            }
        }
    }
}

/// A cache with room for `parts` parts.
fn cache(parts: usize) -> RegistrationCache {
    let pd = Device::first_active().unwrap().alloc_pd().unwrap();
    let builder = RegistrationCache::builder(&pd, parts * PART);
    builder.part_len(PART).build()
}

/// Memory of ten parts. Each registration is of other memory, which no test can see.
fn memory(cache: &RegistrationCache, before: impl Fn() + Send + Sync + 'static) -> CachedMemory {
    cache.memory(10 * PART, move |pd, part| {
        before();
        let bytes = vec![0_u8; part.len()];
        let region = pd.reg_shared(bytes, AccessFlags::LOCAL_WRITE);
        region.map_err(Rejected::into_error)
    })
}

/// Memory whose registrations report their threads, and wait until they are released.
fn held(cache: &RegistrationCache) -> (CachedMemory, Receiver<ThreadId>, Sender<()>) {
    let (begins, begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let memory = memory(cache, move || {
        begins.send(thread::current().id()).unwrap();
        let released = released.lock().unwrap().recv_timeout(LONG);
        released.expect("it is never released");
    });
    (memory, begun, release)
}

#[test]
fn slice_of_what_is_registered_is_ready_at_once_and_allocates_nothing() {
    let _shared = share();
    let cache = cache(1);
    let memory = memory(&cache, || {});
    drop(Task::new(&memory, 0).ends().unwrap());
    let waker = Waker::noop();
    for at in 0..100 {
        let before = allocations();
        let mut future = std::pin::pin!(cached_slice(&memory, at % 8..8));
        let mut cx = Context::from_waker(waker);
        let mut polled = future.as_mut().poll(&mut cx);
        if polled.is_pending() {
            // It yields now and then.
            polled = future.as_mut().poll(&mut cx);
        }
        let Poll::Ready(Ok(slice)) = polled else {
            panic!("{polled:?}");
        };
        assert_eq!(slice.len(), 8 - at % 8);
        drop(slice);
        assert_eq!(allocations(), before);
    }
}

#[test]
fn registration_runs_on_a_helper_thread() {
    let _shared = share();
    let cache = cache(1);
    let (memory, begun, release) = held(&cache);
    let task = Task::new(&memory, 3).waits();
    let thread = begun.recv_timeout(LONG).unwrap();
    assert_ne!(thread, thread::current().id());
    assert_eq!(task.was_woken(), 0);
    release.send(()).unwrap();
    task.waits_for_wake(1);
    assert_eq!(task.ends().unwrap().len(), 8);
    assert_eq!(cache.registered_regions(), 1);
}

#[test]
fn registration_of_a_dropped_future_stays_in_the_cache() {
    let _shared = share();
    let cache = cache(1);
    let (memory, begun, release) = held(&cache);
    let dropped = Task::new(&memory, 3).waits();
    begun.recv_timeout(LONG).unwrap();
    drop(dropped);
    // It waits for the same registration.
    let task = Task::new(&memory, 3).waits();
    release.send(()).unwrap();
    let slice = task.ends().unwrap();
    assert!(begun.try_recv().is_err(), "it was registered again");
    drop(slice);
    // Nothing is in use: the other part finds room.
    release.send(()).unwrap();
    drop(Task::new(&memory, 4).ends().unwrap());
    drop((memory, cache));
}

#[test]
fn task_waits_for_room_until_a_slice_is_dropped_in_any_thread() {
    let _shared = share();
    let cache = cache(2);
    let memory = memory(&cache, || {});
    let in_use = [0, 1].map(|part| Task::new(&memory, part).ends().unwrap());
    // The region has a place for one slice: this one is in none.
    let more = in_use[0].clone();
    let task = Task::new(&memory, 2).waits();
    let [first, second] = in_use;
    let kept = first.memory();
    drop(first);
    assert_eq!(task.was_woken(), 1);
    let task = task.waits();
    drop(more);
    assert_eq!(task.was_woken(), 2);
    let task = task.waits();
    thread::scope(|scope| scope.spawn(|| drop(kept)).join().unwrap());
    assert_eq!(task.was_woken(), 3);
    drop(task.ends().unwrap());
    drop(second);
    drop((memory, cache));
    assert_all_is_well();
}

#[test]
fn memory_that_is_dropped_makes_room_with_its_last_slice() {
    let _shared = share();
    let cache = cache(1);
    let gone = memory(&cache, || {});
    let slice = Task::new(&gone, 0).ends().unwrap();
    drop(gone);
    let memory = memory(&cache, || {});
    let task = Task::new(&memory, 0).waits();
    drop(slice);
    task.waits_for_wake(1);
    drop(task.ends().unwrap());
}

#[test]
fn registration_that_fails_makes_room() {
    let _shared = share();
    let cache = cache(1);
    let (begins, begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let fails = cache.memory(PART, move |_, _| {
        begins.send(()).unwrap();
        released.lock().unwrap().recv_timeout(LONG).unwrap();
        Err::<SharedRegion<Vec<u8>>, _>(verbs_core::Error::RemoteAccess)
    });
    let failing = Task::new(&fails, 0).waits();
    begun.recv_timeout(LONG).unwrap();
    let memory = memory(&cache, || {});
    let task = Task::new(&memory, 0).waits();
    release.send(()).unwrap();
    task.waits_for_wake(1);
    drop(task.ends().unwrap());
    assert!(failing.ends().is_err());
}

#[test]
fn waiting_tasks_get_room_one_after_the_other() {
    let _shared = share();
    let cache = cache(1);
    let memory = memory(&cache, || {});
    let mut in_use = Some(Task::new(&memory, 0).ends().unwrap());
    let tasks = (1..4).map(|part| Task::new(&memory, part).waits());
    let mut tasks: VecDeque<_> = tasks.collect();
    while let Some(first) = tasks.pop_front() {
        drop(in_use.take());
        first.waits_for_wake(1);
        in_use = Some(first.ends().unwrap());
        // The others were woken, too, and find no room.
        tasks.iter().for_each(|task| task.waits_for_wake(1));
        tasks = tasks.into_iter().map(Task::waits).collect();
    }
}

#[test]
fn woken_task_that_is_dropped_leaves_the_room_to_others() {
    let _shared = share();
    let cache = cache(1);
    let memory = memory(&cache, || {});
    let in_use = Task::new(&memory, 0).ends().unwrap();
    let [first, second, third] = [1, 2, 3].map(|part| Task::new(&memory, part).waits());
    drop(first);
    drop(in_use);
    second.waits_for_wake(1);
    drop(second);
    assert_eq!(third.was_woken(), 1);
    drop(third.ends().unwrap());
}

#[test]
fn range_longer_than_the_cache_fails_at_once() {
    let _shared = share();
    let cache = cache(1);
    let memory = memory(&cache, || {});
    let waker = Waker::noop();
    for range in [0..PART + 1, 0..11 * PART] {
        let mut future = std::pin::pin!(cached_slice(&memory, range));
        let polled = future.as_mut().poll(&mut Context::from_waker(waker));
        let Poll::Ready(Err(error)) = polled else {
            panic!("{polled:?}");
        };
        assert!(!error.is_backpressure(), "{error}");
    }
}
