//! Counters of channels and groups, which any thread can read at any time.

use std::fmt;
use std::iter;
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The counters of a channel, or of all channels of a group.
///
/// They are always on. [`read`](Self::read) takes no lock and needs no channel, so a metrics library can call it in any
/// thread. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Counters {
    pub(super) places: Arc<Places>,
    // The channel's place, and what was counted there before it joined; `None` for all.
    pub(super) channel: Option<(Arc<Cells>, Counts)>,
}

/// The values of [`Counters`] at one time. They only grow, but for [`depth`](Self::depth), and for requests that the driver
/// refuses, which are taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were posted, to both queues of the channel: not receives that channels share.
    pub posted: u64,
    /// Bytes of the messages of the requests that were posted to the send queue: sent, written, read. Those that arrive
    /// are counted by the peer that sends them.
    pub bytes: u64,
    /// Requests that have completed, of both queues: successes, failures and aborts.
    pub completed: u64,
    /// Completed requests of operations that failed or are stuck.
    pub failed: u64,
    /// Completed requests of operations that were aborted with their channel.
    pub aborted: u64,
    /// How long threads slept in waits for completions of the channel, or of any channel of its group.
    pub asleep: Duration,
}

impl Counts {
    /// Requests that were in flight: posted, and not completed.
    #[must_use]
    pub const fn depth(&self) -> u64 {
        self.posted.saturating_sub(self.completed)
    }
}

impl Counters {
    /// The values now. Each is exact, but another thread may count between two of them.
    #[must_use]
    pub fn read(&self) -> Counts {
        match &self.channel {
            Some((cells, before)) => Counts {
                asleep: self.places.asleep(),
                ..cells.read() - *before
            },
            None => self.places.read(),
        }
    }
}

/// Counts of the place of a channel. Only the thread that has the engine writes to it.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    posted: AtomicU64,
    bytes: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    aborted: AtomicU64,
}

/// The cells of all places of an engine: those of a place that is used again go on.
#[derive(Debug, Default)]
pub(crate) struct Places {
    // The first has one, and each further one has twice the number of the one before.
    blocks: [OnceLock<Box<[Arc<Cells>]>>; u32::BITS as usize],
    asleep: AtomicU64,
}

/// One writer: no read-modify-write is needed. Whoever reads the sum sees all that was counted before.
#[inline(always)]
fn add(cell: &AtomicU64, more: u64) {
    let before = cell.load(Ordering::Relaxed);
    cell.store(before.wrapping_add(more), Ordering::Release);
}

impl Cells {
    /// Requests are posted, to the send queue with this number of bytes.
    #[inline(always)]
    pub(crate) fn post(&self, requests: u16, bytes: u64) {
        add(&self.posted, requests.into());
        add(&self.bytes, bytes);
    }

    /// They were not, after all; and they are counted as completed.
    pub(crate) fn cancel(&self, requests: u64, bytes: u64) {
        add(&self.posted, requests.wrapping_neg());
        add(&self.bytes, bytes.wrapping_neg());
        add(&self.completed, requests.wrapping_neg());
    }

    #[inline(always)]
    pub(crate) fn complete(&self, requests: u64) {
        add(&self.completed, requests);
    }

    pub(crate) fn fail(&self, requests: u64, is_abort: bool) {
        add(
            if is_abort {
                &self.aborted
            } else {
                &self.failed
            },
            requests,
        );
    }

    /// The counts, if there are any.
    pub(crate) fn counted(&self) -> Option<Box<Counts>> {
        let counts = self.read();
        (counts != Counts::default()).then(|| Box::new(counts))
    }

    fn read(&self) -> Counts {
        let read = |cell: &AtomicU64| cell.load(Ordering::Acquire);
        // In this order, so that no more have completed than were posted.
        Counts {
            failed: read(&self.failed),
            aborted: read(&self.aborted),
            completed: read(&self.completed),
            posted: read(&self.posted),
            bytes: read(&self.bytes),
            asleep: Duration::ZERO,
        }
    }
}

impl Places {
    /// The cells of a place, which are made when it is used first.
    pub(super) fn cells(&self, at: u32) -> Arc<Cells> {
        let number = at.saturating_add(1);
        let block = number.ilog2();
        let cells = self.blocks.get(block as usize);
        let cells = cells.map(|block_of| {
            block_of.get_or_init(|| iter::repeat_with(Arc::default).take(1 << block).collect())
        });
        let cell = cells.and_then(|cells| cells.get((number - (1 << block)) as usize));
        cell.map(Arc::clone).unwrap_or_default()
    }

    pub(crate) fn sleep(&self, time: Duration) {
        add(
            &self.asleep,
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        );
    }

    fn asleep(&self) -> Duration {
        Duration::from_nanos(self.asleep.load(Ordering::Relaxed))
    }

    fn read(&self) -> Counts {
        let mut all = Counts::default();
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        blocks.flatten().for_each(|cells| all += cells.read());
        all.asleep = self.asleep();
        all
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.posted += other.posted;
        self.bytes += other.bytes;
        self.completed += other.completed;
        self.failed += other.failed;
        self.aborted += other.aborted;
        self.asleep += other.asleep;
    }
}

impl Sub for Counts {
    type Output = Self;

    /// The difference since an earlier time.
    fn sub(self, earlier: Self) -> Self {
        Self {
            posted: self.posted.saturating_sub(earlier.posted),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            completed: self.completed.saturating_sub(earlier.completed),
            failed: self.failed.saturating_sub(earlier.failed),
            aborted: self.aborted.saturating_sub(earlier.aborted),
            asleep: self.asleep.saturating_sub(earlier.asleep),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            posted,
            bytes,
            completed,
            failed,
            aborted,
            ..
        } = *self;
        let depth = self.depth();
        write!(
            f,
            "{posted} posted with {bytes} bytes, {depth} in flight, {completed} completed, {failed} failed, {aborted} aborted"
        )
    }
}
