//! The keeper: a thread that drives streams which no task drives, and ends them in time.
//!
//! It begins with the first job and ends when there has been none for a while. It needs no runtime:
//! a stream that was dropped has none to rely on.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{io, process, thread};

use parking_lot::Condvar;

use crate::sync::Mutex;
use crate::wake;

/// What the keeper keeps.
pub(super) trait Kept: Send + Sync + 'static {
    /// It is to be driven.
    fn drive(self: Arc<Self>);

    /// Its time is up.
    fn expire(self: Arc<Self>);
}

/// Names what lingers.
pub(super) type Key = (Instant, u64);

/// Has it driven by the keeper at this time, if it is there by then; whether there is a keeper.
pub(super) fn drive(kept: Weak<dyn Kept>, at: Instant) -> bool {
    submit(|jobs| jobs.insert(at, Job::Drive(kept))).is_some()
}

/// Has a task woken by the keeper, where the caller may hold what the task wants.
pub(super) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    submit(|jobs| jobs.now.extend(waker.take().map(Job::Wake)));
    // Without a keeper that is the lesser evil.
    wake::wake_all(waker);
}

/// Keeps it until its time is up, or it is [released](release).
pub(super) fn linger(kept: Arc<dyn Kept>, until: Instant) -> Option<Key> {
    submit(|jobs| jobs.insert(until, Job::Expire(kept)))
}

/// What has ended before its time.
pub(super) fn release(key: Key) {
    // Dropped where nothing is locked.
    let released = KEEPER.jobs.lock().later.remove(&key);
    drop(released);
}

enum Job {
    Drive(Weak<dyn Kept>),
    Wake(Waker),
    Expire(Arc<dyn Kept>),
}

struct Keeper {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

struct Jobs {
    now: VecDeque<Job>,
    later: BTreeMap<Key, Job>,
    last: u64,
    /// The process whose thread runs; 0 for none.
    process: u32,
}

static KEEPER: Keeper = Keeper {
    jobs: Mutex::new(Jobs {
        now: VecDeque::new(),
        later: BTreeMap::new(),
        last: 0,
        process: 0,
    }),
    changed: Condvar::new(),
};

/// Adds a job, for a thread that is there; `None` if there is none and none can be had.
fn submit<T>(add: impl FnOnce(&mut Jobs) -> T) -> Option<T> {
    let mut jobs = KEEPER.jobs.lock();
    let process = process::id();
    if jobs.process != process {
        if jobs.process != 0 {
            // The child of a fork has its parent's memory, but not its threads. The jobs are the
            // parent's, and so is what they would end.
            mem::take(&mut jobs.now).into_iter().for_each(mem::forget);
            mem::take(&mut jobs.later).into_iter().for_each(mem::forget);
        }
        jobs.process = 0;
        if let Err(error) = start() {
            drop(jobs);
            wake::log_error(format_args!("no thread for streams can be had: {error}"));
            return None;
        }
        jobs.process = process;
    }
    let added = add(&mut jobs);
    drop(jobs);
    KEEPER.changed.notify_one();
    Some(added)
}

fn start() -> io::Result<()> {
    let thread = thread::Builder::new().name("verbs-streams".to_owned());
    thread.spawn(keep).map(drop)
}

fn keep() {
    let mut jobs = KEEPER.jobs.lock();
    loop {
        if let Some(job) = jobs.next(Instant::now()) {
            drop(jobs);
            // What panics there goes no further.
            let _panicked = wake::panics(|| job.run());
            jobs = KEEPER.jobs.lock();
            continue;
        }
        let idle_for = match jobs.later.keys().next() {
            Some(&(at, _)) => {
                KEEPER.changed.wait_until(&mut jobs, at);
                continue;
            }
            None => IDLE,
        };
        let is_idle = KEEPER.changed.wait_for(&mut jobs, idle_for).timed_out();
        if is_idle && jobs.now.is_empty() && jobs.later.is_empty() {
            jobs.process = 0;
            return;
        }
    }
}

/// So long it waits for the next job before it ends.
const IDLE: Duration = Duration::from_secs(5);

impl Jobs {
    fn insert(&mut self, at: Instant, job: Job) -> Key {
        self.last += 1;
        let key = (at, self.last);
        self.later.insert(key, job);
        key
    }

    fn next(&mut self, now: Instant) -> Option<Job> {
        if let Some(job) = self.now.pop_front() {
            return Some(job);
        }
        let first = self.later.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

impl Job {
    fn run(self) {
        match self {
            Self::Drive(kept) => {
                if let Some(kept) = kept.upgrade() {
                    kept.drive();
                }
            }
            Self::Wake(waker) => waker.wake(),
            Self::Expire(kept) => kept.expire(),
        }
    }
}
