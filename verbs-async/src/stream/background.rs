//! The background thread: drives streams that no task drives, and ends streams that linger too
//! long.
//!
//! It starts with the first job and ends when there has been none for a while. It needs no runtime,
//! since a stream that was dropped cannot rely on one.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{io, process, thread};

use parking_lot::Condvar;

use crate::task::sync::Mutex;
use crate::task::wake;

/// A stream, as seen by the background thread.
pub(super) trait BackgroundStream: Send + Sync + 'static {
    /// Drives the stream.
    fn drive(self: Arc<Self>);

    /// Ends the stream: it has lingered too long.
    fn expire(self: Arc<Self>);
}

/// Identifies a stream that lingers.
pub(super) type Key = (Instant, u64);

/// Drives the stream on the background thread at this time, if it still exists. Returns whether
/// there is such a thread.
pub(super) fn drive(stream: Weak<dyn BackgroundStream>, at: Instant) -> bool {
    submit(|jobs| jobs.insert(at, Job::Drive(stream))).is_some()
}

/// Wakes a task on the background thread, as the caller may hold a lock that the task takes.
pub(super) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    submit(|jobs| jobs.now.extend(waker.take().map(Job::Wake)));
    // Without the thread it is woken here: that is better than never.
    wake::wake_all(waker);
}

/// Keeps the stream until it has lingered long enough, or is [released](release). `None` if there
/// is no thread.
pub(super) fn linger(stream: Arc<dyn BackgroundStream>, until: Instant) -> Option<Key> {
    submit(|jobs| jobs.insert(until, Job::Expire(stream)))
}

/// Releases a stream that ended before its time.
pub(super) fn release(key: Key) {
    // Dropped without the lock.
    let released = BACKGROUND.jobs.lock().later.remove(&key);
    drop(released);
}

enum Job {
    Drive(Weak<dyn BackgroundStream>),
    Wake(Waker),
    Expire(Arc<dyn BackgroundStream>),
}

struct Background {
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

static BACKGROUND: Background = Background {
    jobs: Mutex::new(Jobs {
        now: VecDeque::new(),
        later: BTreeMap::new(),
        last: 0,
        process: 0,
    }),
    changed: Condvar::new(),
};

/// Adds a job. `None` if there is no thread and none can be started.
fn submit<T>(add: impl FnOnce(&mut Jobs) -> T) -> Option<T> {
    let mut jobs = BACKGROUND.jobs.lock();
    let process = process::id();
    if jobs.process != process {
        if jobs.process != 0 {
            // The child of a fork has its parent's memory, but not its threads. The jobs, and the
            // streams in them, belong to the parent.
            mem::take(&mut jobs.now).into_iter().for_each(mem::forget);
            mem::take(&mut jobs.later).into_iter().for_each(mem::forget);
        }
        jobs.process = 0;
        if let Err(error) = start() {
            drop(jobs);
            wake::log_error(format_args!(
                "cannot start the background thread of streams: {error}"
            ));
            return None;
        }
        jobs.process = process;
    }
    let added = add(&mut jobs);
    drop(jobs);
    BACKGROUND.changed.notify_one();
    Some(added)
}

fn start() -> io::Result<()> {
    let thread = thread::Builder::new().name("verbs-streams".to_owned());
    thread.spawn(run).map(drop)
}

fn run() {
    let mut jobs = BACKGROUND.jobs.lock();
    loop {
        if let Some(job) = jobs.next(Instant::now()) {
            drop(jobs);
            // Panics are contained.
            let _panicked = wake::panics(|| job.run());
            jobs = BACKGROUND.jobs.lock();
            continue;
        }
        let idle_for = match jobs.later.keys().next() {
            Some(&(at, _)) => {
                BACKGROUND.changed.wait_until(&mut jobs, at);
                continue;
            }
            None => IDLE,
        };
        let is_idle = BACKGROUND.changed.wait_for(&mut jobs, idle_for).timed_out();
        if is_idle && jobs.now.is_empty() && jobs.later.is_empty() {
            jobs.process = 0;
            return;
        }
    }
}

/// How long the thread waits for the next job before it ends.
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
            Self::Drive(stream) => {
                if let Some(stream) = stream.upgrade() {
                    stream.drive();
                }
            }
            Self::Wake(waker) => wake::wake_all([waker]),
            Self::Expire(stream) => stream.expire(),
        }
    }
}
