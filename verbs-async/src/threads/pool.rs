//! A pool: threads that are started when they are needed, and the jobs that wait for them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::task::sync::{Condvar, Mutex};

/// How long a thread waits for another job before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// The number of threads of a pool whose jobs wait for no other's end.
pub(super) const UNBOUNDED: usize = usize::MAX;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Who determines how long a job takes, if that is not this side: a share of the threads is all that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A peer at this address.
    Peer(IpAddr),
    /// Whoever sends datagrams to the endpoint with this number.
    Datagrams(u32),
}

/// Threads and their jobs.
pub(super) struct Pool {
    max_threads: usize,
    start: fn(&'static Self) -> io::Result<()>,
    // Where remains of abandoned calls are dropped, if not here.
    releasing: Option<&'static Self>,
    pub(super) state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct PoolState {
    // Keyed by job number; taken in ascending order.
    pub(super) jobs: BTreeMap<u64, (Option<Source>, Job)>,
    // Those that are not due yet.
    later: BTreeMap<(Instant, u64), Job>,
    // The sources of the jobs that run.
    sources: Vec<Source>,
    submitted: u64,
    pub(super) threads: usize,
    // How many of them wait for a job.
    pub(super) idle: usize,
}

/// Identifies a job that is not due yet.
pub(crate) type Timed = (Instant, u64);

impl Pool {
    pub(super) fn new(max_threads: usize, start: fn(&'static Self) -> io::Result<()>) -> Self {
        Self {
            max_threads,
            start,
            releasing: None,
            state: Mutex::new(PoolState::default()),
            changed: Condvar::new(),
        }
    }

    pub(super) const fn releasing_on(mut self, releasing: &'static Self) -> Self {
        self.releasing = Some(releasing);
        self
    }

    pub(super) fn releasing(&'static self) -> &'static Self {
        self.releasing.unwrap_or(self)
    }

    /// Runs the job on one of the threads. Returns its number.
    ///
    /// # Errors
    ///
    /// No thread runs, and none can be started.
    pub(super) fn submit(
        &'static self,
        source: Option<Source>,
        job: Job,
    ) -> Result<u64, (io::Error, Job)> {
        let mut state = self.state.lock();
        let number = state.number();
        state.jobs.insert(number, (source, job));
        let waiting = state.jobs.len();
        match self.rouse(&mut state, waiting) {
            Ok(()) => Ok(number),
            Err(error) => match state.jobs.remove(&number) {
                Some((_, job)) => Err((error, job)),
                None => Ok(number),
            },
        }
    }

    /// Runs the job at this time. `None` if no thread runs, and none can be started.
    pub(super) fn submit_at(&'static self, at: Instant, job: Job) -> Option<Timed> {
        let mut state = self.state.lock();
        let waiting = state.jobs.len() + 1;
        // First, so that without a thread the job is dropped unlocked.
        self.rouse(&mut state, waiting).ok()?;
        let key = (at, state.number());
        state.later.insert(key, job);
        Some(key)
    }

    /// Has a thread look at the jobs, of which this many wait: one that is idle, or a new one.
    fn rouse(&'static self, state: &mut PoolState, waiting: usize) -> io::Result<()> {
        if state.idle > 0 {
            self.changed.notify_one();
        }
        if waiting <= state.idle || state.threads == self.max_threads {
            return Ok(());
        }
        match (self.start)(self) {
            Ok(()) => state.threads += 1,
            // One of the running threads will take the job.
            Err(_) if state.threads > 0 && self.max_threads < UNBOUNDED => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes a job that no thread has taken.
    pub(super) fn withdraw(&self, number: u64) -> Option<Job> {
        let withdrawn = self.state.lock().jobs.remove(&number);
        withdrawn.map(|(_, job)| job)
    }

    /// The same for one that is not due yet.
    pub(super) fn withdraw_timed(&self, key: Timed) -> Option<Job> {
        self.state.lock().later.remove(&key)
    }

    fn work(&'static self) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            if let Some((source, job)) = state.next(now, self.max_threads.div_ceil(SHARES)) {
                state.sources.extend(source);
                if !state.later.is_empty() {
                    // Another thread keeps the time meanwhile, if there can be one.
                    let waiting = state.jobs.len() + 1;
                    let _kept = self.rouse(&mut state, waiting);
                }
                drop(state);
                job();
                state = self.state.lock();
                let own = state
                    .sources
                    .iter()
                    .position(|other| Some(*other) == source);
                own.map(|own| state.sources.swap_remove(own));
                continue;
            }
            let due = state.later.first_key_value();
            let due = due.map_or(IDLE, |((at, _), _)| at.saturating_duration_since(now));
            let time = due.min(IDLE);
            state.idle += 1;
            let has_timed_out;
            (state, has_timed_out) = self.changed.wait_timeout(state, time);
            state.idle -= 1;
            let keeps_time = !state.later.is_empty() && state.idle == 0;
            if has_timed_out && time == IDLE && state.jobs.is_empty() && !keeps_time {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl PoolState {
    const fn number(&mut self) -> u64 {
        self.submitted += 1;
        self.submitted
    }

    /// The first job that is due, without those of a source that has `share` threads.
    fn next(&mut self, now: Instant, share: usize) -> Option<(Option<Source>, Job)> {
        if let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            return Some((None, first.remove()));
        }
        let has_room = |source: Source| {
            let own = self.sources.iter().filter(|other| **other == source);
            own.count() < share
        };
        let mut jobs = self.jobs.iter();
        let (&number, _) = jobs.find(|(_, (source, _))| source.is_none_or(has_room))?;
        self.jobs.remove(&number)
    }
}

/// A source gets one of this many shares of the threads.
const SHARES: usize = 4;

pub(super) fn start(pool: &'static Pool) -> io::Result<()> {
    let thread = thread::Builder::new().name("verbs-blocking".to_owned());
    thread.spawn(|| pool.work()).map(drop)
}
