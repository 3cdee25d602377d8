//! Calls that may block, made on helper threads, which need no runtime.
//!
//! On RoCE the kernel resolves a peer's address while the queue pair is moved to RTR. The call
//! returns only when the peer has answered, or after about a second. The address is chosen by the
//! peer. There are four pools of threads, so that no call whose time others choose delays the release of something:
//!
//! | Pool      | Threads | Calls                                                                                  |
//! |-----------|---------|----------------------------------------------------------------------------------------|
//! | calling   | 64      | [`run`], [`run_for`]: whose time others choose. RTR, steps of `rdma_cm`, registrations  |
//! | releasing | 32      | [`detach`], `run_always`, [`at`]: destroys, drops, wake-ups, what a dropped stream sends |
//! | lookups   | 8       | [`look_up`]: names of hosts, each for as long as the resolver of the system waits       |
//! | transfers | any     | [`run_transfer`]: transfers over rails, which are never queued                            |
//!
//! A release takes the driver's time, which is bounded, and that of users' wakers, loggers and
//! drops. Those run there, too: a drop wakes tasks, and [wake-ups that a thread has
//! left](crate::task::deferred) continue there. One that blocks may delay the
//! destruction of queue pairs, and does so until it returns if each thread runs one.
//!
//! A thread is started when none of its pool is idle, and ends after it was idle for some seconds. Further calls
//! are queued, first come, first served. A [`Source`] gets a quarter of the threads at most: the others go on with calls
//! behind its own. A call that is abandoned in its queue leaves it at once.
//!
//! *If no thread can be started*, and none runs: what releases something is done by the thread that asks for it;
//! everything else is an error.
//!
//! *In the child of a fork* there are neither threads nor jobs: see [`PerProcess`].

pub(crate) mod cached_slice;
pub(crate) mod on_thread;
pub(crate) mod per_process;
mod pool;

use std::future::Future;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use verbs_channel::verbs_core::__private::Process;

use crate::error::{Error, Result};
use crate::task::sync::Mutex;
use crate::task::wake;
use per_process::PerProcess;
use pool::{Job, Pool, UNBOUNDED, start};
pub(crate) use pool::{Source, Timed};

static CALLS: PerProcess<Pool> =
    PerProcess::new(|| Pool::new(64, start).releasing_on(RELEASES.get()));
static RELEASES: PerProcess<Pool> = PerProcess::new(|| Pool::new(32, start));
static NAMES: PerProcess<Pool> =
    PerProcess::new(|| Pool::new(8, start).releasing_on(RELEASES.get()));

static TRANSFERS: PerProcess<Pool> =
    PerProcess::new(|| Pool::new(UNBOUNDED, start).releasing_on(RELEASES.get()));

/// Makes a call on a helper thread. The future is ready when the call has returned.
///
/// If the future is dropped earlier, a call that has not begun is not made. Its arguments are dropped on a
/// helper thread, as is the result of one that has. A panic of the call resumes in the awaiting task.
pub(crate) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_on(CALLS.get(), None, call)
}

/// The same for a call whose time this source chooses.
pub(crate) fn run_for<T: Send + 'static>(
    source: Option<Source>,
    call: impl FnOnce() -> T + Send + 'static,
) -> Call<T> {
    run_on(CALLS.get(), source, call)
}

/// The same for a call that looks up the name of a host: it delays other lookups only.
pub(crate) fn look_up<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_on(NAMES.get(), None, call)
}

/// The same for a transfer, which waits on its thread.
///
/// # Errors
///
/// No thread can be started. The value is handed back.
pub(crate) fn run_transfer<V: Send + 'static, T: Send + 'static>(
    value: V,
    call: impl FnOnce(V) -> T + Send + 'static,
) -> Result<Call<T>, (io::Error, V)> {
    run_transfer_on(TRANSFERS.get(), value, call)
}

fn run_transfer_on<V: Send + 'static, T: Send + 'static>(
    pool: &'static Pool,
    value: V,
    call: impl FnOnce(V) -> T + Send + 'static,
) -> Result<Call<T>, (io::Error, V)> {
    // Not in the job, which is dropped if there is no thread.
    let given = Arc::new(Mutex::new(Some(value)));
    let take = |given: &Mutex<Option<V>>| {
        let value = given.lock().take();
        value.expect("either the job or the refusal takes it")
    };
    let in_job = Arc::clone(&given);
    let mut made = run_on(pool, None, move || call(take(&in_job)));
    match made.refused.take() {
        None => Ok(made),
        Some(error) => Err((error, take(&given))),
    }
}

/// Makes a call that releases something on a helper thread. It is made in any case: also if the future is
/// dropped, and on this thread if no other can be started, and none runs.
pub(crate) fn run_always<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    run_always_on(RELEASES.get(), call)
}

fn run_always_on<T: Send + 'static>(
    pool: &'static Pool,
    call: impl FnOnce() -> T + Send + 'static,
) -> Call<T> {
    let made = Call::new(pool);
    let shared = Arc::clone(&made.state);
    detach_on(pool, move || make(&shared, call));
    made
}

/// Makes a call that releases something on a helper thread, and does not wait for it. If no thread can be
/// started, and none runs, the call is made before this returns.
pub(crate) fn detach(call: impl FnOnce() + Send + 'static) {
    detach_on(RELEASES.get(), call);
}

/// The same, but if no thread can be started, and none runs, the call is not made. Returns whether it will be.
pub(crate) fn try_detach(call: impl FnOnce() + Send + 'static) -> bool {
    RELEASES.get().submit(None, guarded(call)).is_ok()
}

/// Makes a call at this time, unless it is [withdrawn](withdraw). `None` if no thread can be started, and none runs.
pub(crate) fn at(time: Instant, call: impl FnOnce() + Send + 'static) -> Option<Timed> {
    RELEASES.get().submit_at(time, guarded(call))
}

/// A call that has not begun by now is not made.
pub(crate) fn withdraw(timed: Timed) {
    // Dropped without the lock.
    drop(RELEASES.get().withdraw_timed(timed));
}

fn detach_on(pool: &'static Pool, call: impl FnOnce() + Send + 'static) {
    if let Err((_error, job)) = pool.submit(None, guarded(call)) {
        job();
    }
}

fn guarded(call: impl FnOnce() + Send + 'static) -> Job {
    Box::new(move || {
        let _panicked = wake::panics(call);
    })
}

fn run_on<T: Send + 'static>(
    pool: &'static Pool,
    source: Option<Source>,
    call: impl FnOnce() -> T + Send + 'static,
) -> Call<T> {
    let mut made = Call::new(pool);
    let shared = Arc::clone(&made.state);
    match pool.submit(
        source,
        Box::new(move || make_unless_abandoned(&shared, call)),
    ) {
        Ok(number) => made.queued = Some(number),
        Err((error, job)) => {
            // Drops the arguments of the call.
            drop(job);
            made.refused = Some(error);
        }
    }
    made
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

impl<T: Send + 'static> Call<T> {
    fn new(pool: &'static Pool) -> Self {
        Self {
            state: Arc::new(Mutex::new(CallState::Running(None))),
            refused: None,
            queued: None,
            pool,
            process: Process::current(),
        }
    }

    /// Whether it may still return: never in a child of a fork.
    pub(crate) fn is_running(&self) -> bool {
        self.process.is_current() && matches!(*self.state.lock(), CallState::Running(_))
    }
}

enum CallState<T> {
    Running(Option<Waker>),
    Returned(thread::Result<T>),
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
    /// [`Error::Thread`]: no thread can be started, and none runs.
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = self.refused.take() {
            return Poll::Ready(Err(Error::Thread(error)));
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
            CallState::Running(_) | CallState::Over => Poll::Ready(Err(Error::Thread(
                io::Error::other("the result of a call was taken already"),
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
        let releasing = self.pool.releasing();
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

#[cfg(test)]
mod tests;
