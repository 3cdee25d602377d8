//! The threads, their jobs, and calls that are abandoned.

use std::sync::mpsc::{self, Receiver, Sender};
use std::task::Wake;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::*;

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);

/// A pool of the test's own, so that the calls of others are not counted.
fn pool(max_threads: usize) -> &'static Pool {
    Box::leak(Box::new(Pool::new(max_threads, start)))
}

struct WakeSender(Sender<()>);

impl Wake for WakeSender {
    fn wake(self: Arc<Self>) {
        self.0.send(()).ok();
    }
}

fn block_on<T: Send>(mut call: Call<T>) -> Result<T> {
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(WakeSender(sender)));
    loop {
        let mut cx = Context::from_waker(&waker);
        if let Poll::Ready(returned) = Pin::new(&mut call).poll(&mut cx) {
            return returned;
        }
        woken.recv_timeout(LONG).expect("it hangs");
    }
}

/// A call that reports when it has begun, and returns when it is released.
fn blocked(pool: &'static Pool) -> (Call<()>, Receiver<()>, Sender<()>) {
    let (begins, begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let call = run_on(pool, None, move || {
        begins.send(()).unwrap();
        released.recv_timeout(LONG).expect("it is never released");
    });
    (call, begun, release)
}

/// Reports the thread that drops it.
struct Dropped(Sender<ThreadId>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.send(thread::current().id()).ok();
    }
}

#[test]
fn blocked_call_delays_no_other_until_all_threads_are_busy() {
    let pool = pool(8);
    let (calls, released): (Vec<_>, Vec<_>) = (0..7)
        .map(|_| {
            let (call, begun, release) = blocked(pool);
            begun.recv_timeout(LONG).expect("it never begins");
            (call, release)
        })
        .unzip();
    assert_eq!(block_on(run_on(pool, None, || 8)).unwrap(), 8);
    let (last, begun, release) = blocked(pool);
    begun.recv_timeout(LONG).expect("it never begins");
    let (queued, queued_begun, queued_release) = blocked(pool);
    assert_eq!(pool.state.lock().threads, 8);
    release.send(()).unwrap();
    queued_begun.recv_timeout(LONG).expect("it never begins");
    queued_release.send(()).unwrap();
    for release in released {
        release.send(()).unwrap();
    }
    for call in calls.into_iter().chain([last, queued]) {
        block_on(call).unwrap();
    }
    assert_eq!(pool.state.lock().threads, 8);
}

#[test]
fn calls_that_do_not_overlap_share_one_thread() {
    let pool = pool(8);
    for _ in 0..100 {
        block_on(run_on(pool, None, || ())).unwrap();
        // Until it waits for the next.
        while pool.state.lock().idle == 0 {
            thread::yield_now();
        }
    }
    assert_eq!(pool.state.lock().threads, 1);
}

#[test]
fn result_of_an_abandoned_call_is_dropped_on_the_helper_thread() {
    let pool = pool(1);
    let (drops, dropped) = mpsc::channel();
    let helper = block_on(run_on(pool, None, || thread::current().id())).unwrap();
    // While it runs.
    let (begins, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let result = Dropped(drops.clone());
    let call = run_on(pool, None, move || {
        begins.send(()).unwrap();
        released.recv_timeout(LONG).ok();
        result
    });
    begun.recv_timeout(LONG).unwrap();
    drop(call);
    release.send(()).unwrap();
    assert_eq!(dropped.recv_timeout(LONG).unwrap(), helper);
    // When it has returned.
    let result = Dropped(drops);
    let call = run_on(pool, None, move || result);
    while !matches!(*call.state.lock(), CallState::Returned(_)) {
        thread::yield_now();
    }
    drop(call);
    assert_eq!(dropped.recv_timeout(LONG).unwrap(), helper);
}

#[test]
fn call_abandoned_before_it_began_is_not_made() {
    let pool = pool(1);
    let (first, begun, release) = blocked(pool);
    begun.recv_timeout(LONG).unwrap();
    let (drops, dropped) = mpsc::channel();
    let argument = Dropped(drops);
    let (begins, begun) = mpsc::channel();
    drop(run_on(pool, None, move || {
        let _argument = &argument;
        begins.send(()).unwrap();
    }));
    assert!(dropped.try_recv().is_err());
    release.send(()).unwrap();
    dropped.recv_timeout(LONG).unwrap();
    assert!(begun.try_recv().is_err(), "it is made");
    block_on(first).unwrap();
}

#[test]
fn panic_resumes_in_the_awaiting_task_and_the_thread_continues() {
    let pool = pool(1);
    let panics = run_on(pool, None, || -> () {
        resume_unwind(Box::new("the call's"))
    });
    let caught = catch_unwind(AssertUnwindSafe(|| block_on(panics)));
    let panic = caught.map(Result::unwrap).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the call's"));
    assert_eq!(block_on(run_on(pool, None, || 1)).unwrap(), 1);
    assert_eq!(pool.state.lock().threads, 1);
}

#[test]
fn call_that_is_made_always_is_made_when_it_was_abandoned_and_without_a_thread() {
    let one = pool(1);
    let (first, begun, release) = blocked(one);
    begun.recv_timeout(LONG).unwrap();
    let (makes, made) = mpsc::channel();
    let call = || {
        let makes = makes.clone();
        move || makes.send(thread::current().id()).unwrap()
    };
    drop(run_always_on(one, call()));
    assert!(made.try_recv().is_err());
    release.send(()).unwrap();
    let helper = made.recv_timeout(LONG).expect("it is not made");
    assert_ne!(helper, thread::current().id());
    block_on(first).unwrap();
    block_on(run_always_on(pool_without_threads(), call())).unwrap();
    assert_eq!(made.try_recv().unwrap(), thread::current().id());
}

/// A pool that cannot start a thread.
fn pool_without_threads() -> &'static Pool {
    let refuses = |_: &'static Pool| Err(io::ErrorKind::WouldBlock.into());
    Box::leak(Box::new(Pool::new(8, refuses)))
}

#[test]
fn detached_call_is_made_on_a_helper_thread_or_here_if_there_is_none() {
    let (makes, made) = mpsc::channel();
    let call = |makes: &Sender<ThreadId>| {
        let makes = makes.clone();
        move || makes.send(thread::current().id()).unwrap()
    };
    let one = pool(1);
    let helper = block_on(run_on(one, None, || thread::current().id())).unwrap();
    detach_on(one, || resume_unwind(Box::new("the call's")));
    detach_on(one, call(&makes));
    assert_eq!(made.recv_timeout(LONG).unwrap(), helper);
    detach_on(pool_without_threads(), call(&makes));
    assert_eq!(made.try_recv().unwrap(), thread::current().id());
}

#[test]
fn call_without_a_thread_fails_and_drops_its_arguments() {
    let pool = pool_without_threads();
    let (drops, dropped) = mpsc::channel();
    let argument = Dropped(drops);
    let error = block_on(run_on(pool, None, move || drop(argument))).unwrap_err();
    assert!(
        matches!(&error, Error::Thread(error) if error.kind() == io::ErrorKind::WouldBlock),
        "{error}"
    );
    dropped.try_recv().unwrap();
    assert!(pool.state.lock().jobs.is_empty());
}

#[test]
fn transfer_that_gets_no_thread_waits_for_no_other_and_hands_its_value_back() {
    let refuses = |_: &'static Pool| Err(io::ErrorKind::WouldBlock.into());
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(UNBOUNDED, refuses)));
    pool.state.lock().threads = 1;
    let Err((error, value)) = run_transfer_on(pool, 7, drop) else {
        panic!("it waits for the thread of another");
    };
    assert_eq!((error.kind(), value), (io::ErrorKind::WouldBlock, 7));
    assert!(pool.state.lock().jobs.is_empty());
}

#[test]
fn abandoned_calls_leave_the_queue_at_once() {
    let releasing = pool(1);
    let calling: &'static Pool = Box::leak(Box::new(Pool::new(1, start).releasing_on(releasing)));
    let (first, begun, release) = blocked(calling);
    begun.recv_timeout(LONG).unwrap();
    let (drops, dropped) = mpsc::channel();
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let argument = Dropped(drops.clone());
            run_on(calling, None, move || drop(argument))
        })
        .collect();
    let stays = run_on(calling, None, || 1);
    assert_eq!(calling.state.lock().jobs.len(), 101);
    drop(calls);
    assert_eq!(calling.state.lock().jobs.len(), 1);
    // While all threads of their pool are busy.
    let helper = block_on(run_on(releasing, None, || thread::current().id())).unwrap();
    for _ in 0..100 {
        assert_eq!(dropped.recv_timeout(LONG).expect("it is kept"), helper);
    }
    release.send(()).unwrap();
    block_on(first).unwrap();
    assert_eq!(block_on(stays).unwrap(), 1);
}

#[test]
fn result_of_an_abandoned_call_is_dropped_while_all_threads_of_its_pool_are_busy() {
    let releasing = pool(1);
    let calling: &'static Pool = Box::leak(Box::new(Pool::new(1, start).releasing_on(releasing)));
    let (drops, dropped) = mpsc::channel();
    let result = Dropped(drops);
    let call = run_on(calling, None, move || result);
    while !matches!(*call.state.lock(), CallState::Returned(_)) {
        thread::yield_now();
    }
    let (busy, begun, release) = blocked(calling);
    begun.recv_timeout(LONG).unwrap();
    drop(call);
    dropped.recv_timeout(LONG).expect("it is kept");
    release.send(()).unwrap();
    block_on(busy).unwrap();
}

#[test]
fn source_gets_a_share_of_the_threads_and_others_get_the_rest() {
    let pool = pool(8);
    let source = |number| Some(Source::Datagrams(number));
    let (begins, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let blocks = |source| {
        let (begins, released) = (begins.clone(), Arc::clone(&released));
        run_on(pool, source, move || {
            begins.send(()).unwrap();
            released.lock().recv_timeout(LONG).ok();
        })
    };
    let mut calls: Vec<_> = (0..20).map(|_| blocks(source(1))).collect();
    for _ in 0..2 {
        begun.recv_timeout(LONG).expect("it never begins");
    }
    block_on(run_on(pool, None, || ())).unwrap();
    block_on(run_on(pool, source(2), || ())).unwrap();
    assert!(begun.try_recv().is_err(), "it has more than its share");
    // An abandoned one does not use up the share.
    drop(calls.pop());
    drop(release);
    for call in calls {
        block_on(call).unwrap();
    }
}

#[test]
fn timed_call_is_made_in_time_while_other_threads_are_busy() {
    let pool = pool(3);
    let (makes, made) = mpsc::channel();
    let begun_at = Instant::now();
    let at = |millis| begun_at + Duration::from_millis(millis);
    let sends = |number: u32| {
        let makes = makes.clone();
        guarded(move || makes.send(number).unwrap())
    };
    let withdrawn = pool.submit_at(at(10), sends(0)).unwrap();
    assert!(pool.withdraw_timed(withdrawn).is_some());
    pool.submit_at(at(60), sends(2)).unwrap();
    pool.submit_at(at(30), sends(1)).unwrap();
    let (first, begun, release) = blocked(pool);
    begun.recv_timeout(LONG).unwrap();
    let (second, begun, release_second) = blocked(pool);
    begun.recv_timeout(LONG).unwrap();
    for number in [1, 2] {
        assert_eq!(made.recv_timeout(LONG / 8), Ok(number));
    }
    assert!(begun_at.elapsed() >= Duration::from_millis(60));
    for (call, release) in [(first, release), (second, release_second)] {
        release.send(()).unwrap();
        block_on(call).unwrap();
    }
    let none = pool_without_threads();
    assert!(none.submit_at(at(0), sends(3)).is_none());
}
