//! Calls that may block in the kernel, made on helper threads.
//!
//! On RoCE the kernel resolves a peer's address while the queue pair is moved to RTR. The call
//! returns only when the peer has answered, or after about a second. The address is chosen by the
//! peer. So such calls run on threads of this crate, which need no runtime. A thread is started
//! when none is idle, up to [`MAX_THREADS`], and ends after it was idle for [`IDLE`]. Further calls
//! are queued, first come, first served: 64 concurrent peers that do not answer delay the next call
//! by one address resolution.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{process, thread};

use parking_lot::Condvar;

use crate::sync::Mutex;
use crate::wake;

/// How many calls can block at the same time.
const MAX_THREADS: usize = 64;

/// How long a thread waits for another call before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// Makes a call on a helper thread. The future is ready when the call has returned.
///
/// If the future is dropped earlier, a call that has not begun is not made, and the result of one
/// that has is dropped on the helper thread. A panic of the call resumes in the awaiting task.
pub(crate) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_on(&POOL, call)
}

/// The same, but the call is made in any case: also if the future is dropped, and on this thread if no other
/// can be started, and none runs.
#[cfg(feature = "rdmacm")]
pub(crate) fn run_always<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_always_on(&POOL, call)
}

#[cfg(any(feature = "rdmacm", test))]
fn run_always_on<T: Send + 'static>(
    pool: &'static Pool,
    call: impl FnOnce() -> T + Send + 'static,
) -> Call<T> {
    let state = Arc::new(Mutex::new(CallState::Running(None)));
    let shared = Arc::clone(&state);
    detach_on(pool, move || make(&shared, call));
    Call {
        state,
        refused: None,
        pool,
    }
}

/// Makes a call on a helper thread, and does not wait for it. If no thread can be started, and none
/// runs, the call is made before this returns.
pub(crate) fn detach(call: impl FnOnce() + Send + 'static) {
    detach_on(&POOL, call);
}

fn detach_on(pool: &'static Pool, call: impl FnOnce() + Send + 'static) {
    let job: Job = Box::new(move || {
        let _panicked = wake::panics(call);
    });
    if let Err((_error, job)) = pool.submit(job) {
        job();
    }
}

fn run_on<T: Send + 'static>(
    pool: &'static Pool,
    call: impl FnOnce() -> T + Send + 'static,
) -> Call<T> {
    let state = Arc::new(Mutex::new(CallState::Running(None)));
    let shared = Arc::clone(&state);
    let submitted = pool.submit(Box::new(move || make_unless_abandoned(&shared, call)));
    let refused = submitted.err().map(|(error, job)| {
        // Drops the arguments of the call.
        drop(job);
        error
    });
    Call {
        state,
        refused,
        pool,
    }
}

/// A call on a helper thread.
#[must_use = "dropping it abandons the call"]
pub(crate) struct Call<T: Send + 'static> {
    state: Arc<Mutex<CallState<T>>>,
    refused: Option<io::Error>,
    pool: &'static Pool,
}

enum CallState<T> {
    Running(Option<Waker>),
    Returned(Result<T, Box<dyn Any + Send>>),
    /// The result was taken, or the call was abandoned.
    Over,
}

fn make_unless_abandoned<T>(state: &Mutex<CallState<T>>, call: impl FnOnce() -> T) {
    let is_abandoned = matches!(*state.lock(), CallState::Over);
    match is_abandoned {
        true => wake::drop_guarded(call),
        false => make(state, call),
    }
}

fn make<T>(state: &Mutex<CallState<T>>, call: impl FnOnce() -> T) {
    let returned = catch_unwind(AssertUnwindSafe(call));
    let mut locked = state.lock();
    let waker = match &mut *locked {
        CallState::Running(waker) => waker.take(),
        CallState::Returned(_) | CallState::Over => {
            drop(locked);
            wake::drop_guarded(returned);
            return;
        }
    };
    *locked = CallState::Returned(returned);
    drop(locked);
    wake::wake_all(waker);
}

impl<T: Send + 'static> Future for Call<T> {
    /// What the call returned.
    ///
    /// # Errors
    ///
    /// No thread can be started, and none runs.
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = self.refused.take() {
            return Poll::Ready(Err(error));
        }
        let new = cx.waker().clone();
        let mut state = self.state.lock();
        if let CallState::Running(waker) = &mut *state {
            let replaced = waker.replace(new);
            drop(state);
            wake::drop_guarded(replaced);
            return Poll::Pending;
        }
        let returned = mem::replace(&mut *state, CallState::Over);
        drop(state);
        wake::drop_guarded(new);
        match returned {
            CallState::Returned(Ok(value)) => Poll::Ready(Ok(value)),
            CallState::Returned(Err(panic)) => resume_unwind(panic),
            CallState::Running(_) | CallState::Over => Poll::Ready(Err(io::Error::other(
                "the result of a call was taken already",
            ))),
        }
    }
}

impl<T: Send + 'static> Drop for Call<T> {
    fn drop(&mut self) {
        let left = mem::replace(&mut *self.state.lock(), CallState::Over);
        match left {
            CallState::Returned(returned) => {
                // Dropping it may block, too. If there is no thread, it is dropped here.
                detach_on(self.pool, move || drop(returned));
            }
            CallState::Running(waker) => wake::drop_guarded(waker),
            CallState::Over => {}
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

static POOL: Pool = Pool::new(MAX_THREADS, start);

fn start(pool: &'static Pool) -> io::Result<()> {
    let thread = thread::Builder::new().name("verbs-blocking".to_owned());
    thread.spawn(|| pool.work()).map(drop)
}

/// The helper threads and their jobs.
struct Pool {
    max_threads: usize,
    start: fn(&'static Self) -> io::Result<()>,
    state: Mutex<PoolState>,
    submitted: Condvar,
}

struct PoolState {
    // The owner of the threads: the child of a fork has its parent's memory, but not its threads.
    process: u32,
    jobs: VecDeque<Job>,
    threads: usize,
    // How many of them wait for a job.
    idle: usize,
}

impl Pool {
    const fn new(max_threads: usize, start: fn(&'static Self) -> io::Result<()>) -> Self {
        Self {
            max_threads,
            start,
            state: Mutex::new(PoolState {
                process: 0,
                jobs: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            submitted: Condvar::new(),
        }
    }

    /// Runs the job on one of the threads.
    fn submit(&'static self, job: Job) -> Result<(), (io::Error, Job)> {
        let mut state = self.state.lock();
        if state.process != process::id() {
            state.process = process::id();
            // The parent's jobs belong to the parent: they are not dropped here.
            mem::take(&mut state.jobs).into_iter().for_each(mem::forget);
            (state.threads, state.idle) = (0, 0);
        }
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            self.submitted.notify_one();
            return Ok(());
        }
        if state.threads == self.max_threads {
            return Ok(());
        }
        match (self.start)(self) {
            Ok(()) => state.threads += 1,
            // One of the running threads will take the job.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                if let Some(job) = state.jobs.pop_back() {
                    return Err((error, job));
                }
            }
        }
        Ok(())
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.submitted.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::task::Wake;
    use std::thread::ThreadId;

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

    fn block_on<T: Send>(mut call: Call<T>) -> io::Result<T> {
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
        let call = run_on(pool, move || {
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
        assert_eq!(block_on(run_on(pool, || 8)).unwrap(), 8);
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
            block_on(run_on(pool, || ())).unwrap();
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
        let helper = block_on(run_on(pool, || thread::current().id())).unwrap();
        // While it runs.
        let (begins, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let result = Dropped(drops.clone());
        let call = run_on(pool, move || {
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
        let call = run_on(pool, move || result);
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
        drop(run_on(pool, move || {
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
        let panics = run_on(pool, || -> () { resume_unwind(Box::new("the call's")) });
        let caught = catch_unwind(AssertUnwindSafe(|| block_on(panics)));
        let panic = caught.map(io::Result::unwrap).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the call's"));
        assert_eq!(block_on(run_on(pool, || 1)).unwrap(), 1);
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
        let helper = block_on(run_on(one, || thread::current().id())).unwrap();
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
        let error = block_on(run_on(pool, move || drop(argument))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        dropped.try_recv().unwrap();
        assert!(pool.state.lock().jobs.is_empty());
    }
}
