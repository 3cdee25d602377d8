//! Calls that may block in the kernel, made on helper threads.
//!
//! On RoCE the kernel resolves a peer's address while the queue pair is moved to RTR. The call
//! returns only when the peer has answered, or after about a second. The address is chosen by the
//! peer. So such calls run on threads of this crate, which need no runtime. There are three pools of them, so
//! that no call whose time others choose delays the release of something:
//!
//! | Pool      | Threads | Calls                                                                              |
//! |-----------|---------|------------------------------------------------------------------------------------|
//! | calling   | 64      | [`run`]: whose time others choose. RTR, steps of `rdma_cm`, registrations           |
//! | releasing | 32      | [`detach`], `run_always`: which release something. Destroys, drops, wake-ups        |
//! | lookups   | 8       | `look_up`: names of hosts, each for as long as the resolver of the system waits     |
//!
//! A release takes the driver's time, which is bounded, and that of users' wakers, loggers and
//! drops. Those run there, too: a drop wakes tasks, and [wake-ups that a thread has
//! left](crate::task::deferred) continue there, some thousands at a time. One that blocks may delay the
//! destruction of queue pairs, and does so until it returns if each thread runs one.
//!
//! A thread is started when none of its pool is idle, and ends after it was idle for [`IDLE`]. Further calls
//! are queued, first come, first served: 64 concurrent peers that do not answer delay the next handshake
//! by one address resolution, and no queue pair's destruction. A call that is abandoned in its queue leaves it
//! at once.

pub(crate) mod cached_slice;
pub(crate) mod drop_on_thread;

use std::any::Any;
use std::collections::BTreeMap;
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
use verbs_channel::verbs_core::Process;

use crate::task::sync::Mutex;
use crate::task::wake;

/// How many calls can block at the same time: the threads of each pool.
const CALLING: usize = 64;
const RELEASING: usize = 32;
const LOOKUPS: usize = 8;

/// How long a thread waits for another call before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// Makes a call on a helper thread. The future is ready when the call has returned.
///
/// If the future is dropped earlier, a call that has not begun is not made. Its arguments are dropped on a
/// helper thread, as is the result of one that has. A panic of the call resumes in the awaiting task.
pub(crate) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_on(&CALLS, call)
}

/// The same for a call that looks up the name of a host: it delays other lookups only.
pub(crate) fn look_up<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_on(&NAMES, call)
}

/// Makes a call that releases something on a helper thread. It is made in any case: also if the future is
/// dropped, and on this thread if no other can be started, and none runs.
#[cfg(feature = "rdmacm")]
pub(crate) fn run_always<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_always_on(&RELEASES, call)
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
        queued: None,
        pool,
        process: Process::current(),
    }
}

/// Makes a call that releases something on a helper thread, and does not wait for it. If no thread can be
/// started, and none runs, the call is made before this returns.
pub(crate) fn detach(call: impl FnOnce() + Send + 'static) {
    detach_on(&RELEASES, call);
}

/// The same, but if no thread can be started, and none runs, the call is not made. Returns whether it will be.
pub(crate) fn try_detach(call: impl FnOnce() + Send + 'static) -> bool {
    try_detach_on(&RELEASES, call).is_ok()
}

/// The same for callers that hold a lock: if no thread can be started, and none runs, the call is made with the next
/// one that releases something.
#[cfg(feature = "rdmacm")]
pub(crate) fn detach_under_lock(call: impl FnOnce() + Send + 'static) {
    detach_under_lock_on(&RELEASES, call);
}

#[cfg(any(feature = "rdmacm", test))]
fn detach_under_lock_on(pool: &'static Pool, call: impl FnOnce() + Send + 'static) {
    if let Err(job) = try_detach_on(pool, call) {
        pool.leave(job);
    }
}

fn detach_on(pool: &'static Pool, call: impl FnOnce() + Send + 'static) {
    if let Err(job) = try_detach_on(pool, call) {
        job();
        while let Some(left) = pool.take_left() {
            left();
        }
    }
}

fn try_detach_on(pool: &'static Pool, call: impl FnOnce() + Send + 'static) -> Result<(), Job> {
    let job: Job = Box::new(move || {
        let _panicked = wake::panics(call);
    });
    match pool.submit(job) {
        Ok(_number) => Ok(()),
        Err((_error, job)) => Err(job),
    }
}

fn run_on<T: Send + 'static>(
    pool: &'static Pool,
    call: impl FnOnce() -> T + Send + 'static,
) -> Call<T> {
    let state = Arc::new(Mutex::new(CallState::Running(None)));
    let shared = Arc::clone(&state);
    let submitted = pool.submit(Box::new(move || make_unless_abandoned(&shared, call)));
    let (queued, refused) = match submitted {
        Ok(number) => (Some(number), None),
        Err((error, job)) => {
            // Drops the arguments of the call.
            drop(job);
            (None, Some(error))
        }
    };
    Call {
        state,
        refused,
        queued,
        pool,
        process: Process::current(),
    }
}

/// A call on a helper thread.
#[must_use = "dropping it abandons the call"]
pub(crate) struct Call<T: Send + 'static> {
    state: Arc<Mutex<CallState<T>>>,
    refused: Option<io::Error>,
    // The number of its job, which leaves the queue if the call is abandoned.
    queued: Option<u64>,
    pool: &'static Pool,
    process: Process,
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
    /// Result of the call.
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
        // A child of a fork that drops it has neither the thread nor the device.
        if !self.process.is_current() {
            return;
        }
        let left = mem::replace(&mut *self.state.lock(), CallState::Over);
        let releasing = self.pool.releasing.unwrap_or(self.pool);
        match left {
            CallState::Returned(returned) => {
                // Dropping it may block, too. If there is no thread, it is dropped here.
                detach_on(releasing, move || drop(returned));
            }
            CallState::Running(waker) => {
                wake::drop_guarded(waker);
                if let Some(job) = self.queued.and_then(|number| self.pool.withdraw(number)) {
                    // With the arguments of the call, as above.
                    detach_on(releasing, move || drop(job));
                }
            }
            CallState::Over => {}
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

static CALLS: Pool = Pool::new(CALLING, start).releasing_on(&RELEASES);
static RELEASES: Pool = Pool::new(RELEASING, start);
static NAMES: Pool = Pool::new(LOOKUPS, start).releasing_on(&RELEASES);

fn start(pool: &'static Pool) -> io::Result<()> {
    let thread = thread::Builder::new().name("verbs-blocking".to_owned());
    thread.spawn(|| pool.work()).map(drop)
}

/// The helper threads and their jobs.
struct Pool {
    max_threads: usize,
    start: fn(&'static Self) -> io::Result<()>,
    // Where remains of abandoned calls are dropped, if not here.
    releasing: Option<&'static Self>,
    state: Mutex<PoolState>,
    submitted: Condvar,
}

struct PoolState {
    // The owner of the threads: the child of a fork has its parent's memory, but not its threads.
    process: u32,
    // Keyed by job number; taken in ascending order.
    jobs: BTreeMap<u64, Job>,
    submitted: u64,
    threads: usize,
    // How many of them wait for a job.
    idle: usize,
}

impl Pool {
    const fn new(max_threads: usize, start: fn(&'static Self) -> io::Result<()>) -> Self {
        Self {
            max_threads,
            start,
            releasing: None,
            state: Mutex::new(PoolState {
                process: 0,
                jobs: BTreeMap::new(),
                submitted: 0,
                threads: 0,
                idle: 0,
            }),
            submitted: Condvar::new(),
        }
    }

    const fn releasing_on(mut self, releasing: &'static Self) -> Self {
        self.releasing = Some(releasing);
        self
    }

    /// Runs the job on one of the threads. Returns its number.
    fn submit(&'static self, job: Job) -> Result<u64, (io::Error, Job)> {
        let mut state = self.state.lock();
        if state.process != process::id() {
            state.process = process::id();
            // The parent's jobs belong to the parent: they are not dropped here.
            mem::take(&mut state.jobs).into_iter().for_each(mem::forget);
            (state.threads, state.idle) = (0, 0);
        }
        state.submitted += 1;
        let number = state.submitted;
        state.jobs.insert(number, job);
        if state.jobs.len() <= state.idle {
            self.submitted.notify_one();
            return Ok(number);
        }
        if state.threads == self.max_threads {
            return Ok(number);
        }
        match (self.start)(self) {
            Ok(()) => state.threads += 1,
            // One of the running threads will take the job.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                if let Some(job) = state.jobs.remove(&number) {
                    return Err((error, job));
                }
            }
        }
        Ok(number)
    }

    /// Keeps a job for which there was no thread.
    #[cfg(any(feature = "rdmacm", test))]
    fn leave(&self, job: Job) {
        let mut state = self.state.lock();
        state.submitted += 1;
        let number = state.submitted;
        state.jobs.insert(number, job);
        // There may be one by now.
        self.submitted.notify_one();
    }

    /// Takes a job that was left, while there is no thread.
    fn take_left(&self) -> Option<Job> {
        let mut state = self.state.lock();
        let left = (state.threads == 0).then(|| state.jobs.pop_first());
        left.flatten().map(|(_number, job)| job)
    }

    /// Removes a job that no thread has taken.
    fn withdraw(&self, number: u64) -> Option<Job> {
        let mut state = self.state.lock();
        // The child of a fork has no jobs of its parent.
        let is_own = state.process == process::id();
        is_own.then(|| state.jobs.remove(&number)).flatten()
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((_number, job)) = state.jobs.pop_first() {
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
mod tests;
