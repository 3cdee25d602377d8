//! Transfers: sets of operations that end quiesced.

use std::fmt;
use std::mem;

use verbs_core::WorkSuccess;

use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::engine::{Completed, Engine, Ticket};
use crate::error::{DownReason, Error, Queue, RejectReason, TransportError};
use crate::request::OwnedRequest;

/// A set of operations on owned buffers that ends as a whole, on one channel or on several of a group.
///
/// [`Channel::transfer`](crate::Channel::transfer) and
/// [`ChannelGroup::transfer`](crate::ChannelGroup::transfer) carry it out, and return when the device is
/// done with all of its memory, at a deadline if there is one. Then it has the
/// [outcomes](Self::drain) of all operations, one by one, with their buffers. The memory can be reused
/// at once, whatever happened, except for that of operations that are
/// [`Stuck`](TransportError::Stuck).
///
/// A set can be larger than the queues of its channels: operations that find no room are posted
/// when there is some. The operations of one queue of a channel are posted in the order in which
/// they were added.
///
/// Buffers are in flight only during `transfer`. So nothing happens to the memory if a set is
/// dropped or forgotten. A set can be used again: within its capacity, it allocates nothing for
/// each operation.
///
/// ```no_run
/// # use std::time::Duration;
/// # use verbs_channel::{Channel, Incoming, SharedMemory, Transfer};
/// # use verbs_channel::verbs_core::RemoteMemoryRegion;
/// # fn fetch(channel: &mut Channel, cache: &SharedMemory, pages: &[(usize, RemoteMemoryRegion)])
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let mut pages_in = Transfer::with_capacity(pages.len());
/// for &(at, remote) in pages {
///     let page = cache.slice(at..at + 4096)?;
///     pages_in.add(channel.id(), Incoming::read(page, remote));
/// }
/// if let Err(error) = channel.transfer(&mut pages_in, Some(Duration::from_millis(200))) {
///     // The channel is down. No page is written to any more, unless some are stuck.
///     eprintln!("{error}");
/// }
/// for outcome in pages_in.drain() {
///     match outcome.result {
///         Ok(_) => println!("page {} is there", outcome.index),
///         Err(error) => println!("page {}: {error}", outcome.index),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Transfer {
    entries: Vec<Entry>,
    // For each queue of each channel that has operations of the set.
    rails: Vec<Rail>,
    // Entries that have not ended.
    left: usize,
}

/// The outcome of one operation of a [`Transfer`].
#[derive(Debug)]
#[non_exhaustive]
pub struct TransferOutcome {
    /// Which operation it was, counted from 0 in the order in which they were added.
    pub index: usize,
    /// The channel that it was on.
    pub channel: ChannelId,
    /// How it ended: [`Error::Rejected`] if it was not posted, [`Error::Transport`] if it did not succeed.
    pub result: Result<WorkSuccess, Error>,
    /// The returned buffer; `None` if the operation is [`Stuck`](TransportError::Stuck).
    pub buffer: Option<OwnedBuffer>,
}

/// Why a [`Transfer`] did not succeed as a whole.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Some operations were not posted, or did not succeed. The device is done with the memory of all
    /// operations: it can be reused at once.
    #[error("{failed} of the {of} operations of a transfer failed")]
    Failed {
        /// How many operations failed.
        failed: usize,
        /// How many operations the transfer has.
        of: usize,
        /// The outcome of the first of them, in the order in which they were added.
        #[source]
        first: Error,
    },
    /// The driver failed to destroy the queue pair: **the device may still access the memory of
    /// these operations** until the process ends. Their buffers have been leaked. The device is
    /// done with the memory of all other operations.
    #[error(
        "{stuck} of the {of} operations of a transfer are stuck: the device may still access their memory"
    )]
    Stuck {
        /// How many operations are stuck.
        stuck: usize,
        /// How many operations the transfer has.
        of: usize,
    },
}

verbs_core::error_debug!(TransferError { Failed, Stuck });

struct Entry {
    channel: ChannelId,
    state: State,
    // The next of its rail.
    next: usize,
}

// An outcome is as large as a request.
enum State {
    Waiting(OwnedRequest),
    InFlight(Ticket),
    Ended(Result<WorkSuccess, Failure>, Option<OwnedBuffer>),
}

#[derive(Clone, Copy)]
enum Failure {
    Rejected(RejectReason),
    Transport(TransportError),
}

/// The operations of one queue of a channel, which complete in their order: those in flight, and
/// behind them those that wait.
#[derive(Clone, Copy)]
struct Rail {
    channel: ChannelId,
    queue: Queue,
    // The first in flight, the first that waits, and the last of all; `NONE` if there is none.
    in_flight: usize,
    waiting: usize,
    last: usize,
    // Untaken outcomes keep it from posting more.
    is_blocked: bool,
}

const NONE: usize = usize::MAX;

impl Transfer {
    /// An empty set with room for this many operations.
    #[must_use]
    pub fn with_capacity(operations: usize) -> Self {
        Self {
            entries: Vec::with_capacity(operations),
            rails: Vec::with_capacity(RAILS),
            left: 0,
        }
    }

    /// Adds an operation on a channel. It is posted by [`Channel::transfer`](crate::Channel::transfer)
    /// or [`ChannelGroup::transfer`](crate::ChannelGroup::transfer). Outcomes that have not been
    /// [drained](Self::drain) stay before it.
    pub fn add(&mut self, channel: ChannelId, request: impl Into<OwnedRequest>) {
        let request = request.into();
        let (index, queue) = (self.entries.len(), request.queue());
        self.entries.push(Entry {
            channel,
            state: State::Waiting(request),
            next: NONE,
        });
        self.left += 1;
        let is_its = |rail: &&mut Rail| (rail.channel, rail.queue) == (channel, queue);
        let Some(rail) = self.rails.iter_mut().find(is_its) else {
            self.rails.push(Rail {
                channel,
                queue,
                in_flight: NONE,
                waiting: index,
                last: index,
                is_blocked: false,
            });
            return;
        };
        if let Some(last) = self.entries.get_mut(rail.last) {
            last.next = index;
        }
        rail.last = index;
        if rail.waiting == NONE {
            rail.waiting = index;
        }
    }

    /// The number of its operations: those not carried out yet, and those whose outcomes have not been
    /// [drained](Self::drain).
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no operations, and no outcomes to drain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all operations, and returns the outcomes of those that have ended, in the order in
    /// which they were added. The set keeps its capacity.
    ///
    /// Operations that were never carried out are dropped with their buffers.
    pub fn drain(&mut self) -> impl Iterator<Item = TransferOutcome> {
        self.rails.clear();
        self.left = 0;
        let entries = self.entries.drain(..).enumerate();
        entries.filter_map(|(index, entry)| match entry.state {
            State::Ended(result, buffer) => Some(TransferOutcome {
                index,
                channel: entry.channel,
                result: result.map_err(Error::from),
                buffer,
            }),
            State::Waiting(_) | State::InFlight(_) => None,
        })
    }

    /// Whether all operations have ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.left == 0
    }

    /// Whether a [step](Self::step) would take an outcome, or post a request.
    pub(crate) fn can_step(&self, engine: &Engine) -> bool {
        self.rails.iter().any(|rail| {
            // What waits on a channel that is down is rejected.
            let takes = || {
                engine.credits(rail.channel, rail.queue) > 0
                    || engine.down_reason(rail.channel).is_some()
            };
            self.is_first_done(rail, engine)
                || (rail.waiting != NONE && !rail.is_blocked && takes())
        })
    }

    /// Takes outcomes that are there, and posts what there is room for. `each` gets those that ended.
    pub(crate) fn step(&mut self, engine: &mut Engine, each: &mut dyn FnMut(usize, bool)) {
        for at in 0..self.rails.len() {
            self.take_done(at, engine, each);
            self.post_waiting(at, engine, each);
        }
    }

    /// Takes the outcomes of one rail from the first on, while they are there.
    fn take_done(&mut self, at: usize, engine: &mut Engine, each: &mut dyn FnMut(usize, bool)) {
        while let Some(rail) = self.rails.get(at).copied()
            && self.is_first_done(&rail, engine)
            && let Some(entry) = self.entries.get_mut(rail.in_flight)
            && let State::InFlight(ticket) = entry.state
        {
            entry.state = match engine.take_completed(ticket) {
                Some(Completed { result, buffer, .. }) => {
                    State::Ended(result.map_err(Failure::Transport), buffer)
                }
                None => State::Ended(Err(Failure::Transport(TransportError::CLOSED)), None),
            };
            let (index, next) = (rail.in_flight, entry.next);
            // Behind the last in flight is one that waits, or was rejected at the deadline.
            let next = match self.entries.get(next) {
                Some(entry) if matches!(entry.state, State::InFlight(_)) => next,
                _ => NONE,
            };
            if let Some(rail) = self.rails.get_mut(at) {
                rail.in_flight = next;
                rail.is_blocked = false;
            }
            self.ended(index, each);
        }
    }

    /// Posts requests of one rail, while there is room.
    fn post_waiting(&mut self, at: usize, engine: &mut Engine, each: &mut dyn FnMut(usize, bool)) {
        while let Some(rail) = self.rails.get_mut(at)
            && !rail.is_blocked
            && let Some(entry) = self.entries.get_mut(rail.waiting)
            && let State::Waiting(request) = &mut entry.state
        {
            let had_memory = request.buffer().capacity() > 0;
            let index = rail.waiting;
            let reason = match engine.start(rail.channel, request) {
                Ok(ticket) => {
                    if rail.in_flight == NONE {
                        rail.in_flight = index;
                    }
                    rail.waiting = entry.next;
                    entry.state = State::InFlight(ticket);
                    continue;
                }
                Err(reason) if reason.is_backpressure() => return,
                Err(RejectReason::Untaken) if rail.in_flight != NONE => {
                    // Room comes with the outcomes of those in flight.
                    rail.is_blocked = true;
                    return;
                }
                Err(reason) => reason,
            };
            let buffer = mem::take(request.buffer_mut());
            let is_leaked = had_memory && buffer.capacity() == 0;
            entry.state = if is_leaked {
                State::Ended(Err(Failure::Transport(TransportError::Stuck)), None)
            } else {
                State::Ended(Err(Failure::Rejected(reason)), Some(buffer))
            };
            rail.waiting = entry.next;
            self.unlink(at, index);
            self.ended(index, each);
        }
    }

    /// Takes a request that was not posted out of its rail: those in flight before it are followed by
    /// those that wait behind it.
    fn unlink(&mut self, at: usize, index: usize) {
        let Some(rail) = self.rails.get(at).copied() else {
            return;
        };
        let mut before = rail.in_flight;
        while let Some(entry) = self.entries.get_mut(before) {
            if entry.next == index {
                entry.next = rail.waiting;
                break;
            }
            before = entry.next;
        }
        if rail.last == index
            && let Some(rail) = self.rails.get_mut(at)
        {
            rail.last = before;
        }
    }

    fn ended(&mut self, index: usize, each: &mut dyn FnMut(usize, bool)) {
        self.left -= 1;
        let entry = self.entries.get(index);
        let is_success = entry.is_some_and(|entry| matches!(entry.state, State::Ended(Ok(_), _)));
        each(index, is_success);
    }

    /// Posts nothing more: the requests that wait are rejected.
    pub(crate) fn reject_waiting(&mut self, engine: &Engine) {
        for rail in &mut self.rails {
            let reason = match engine.down_reason(rail.channel) {
                Some(reason) => RejectReason::Down(reason),
                None => RejectReason::Backpressure(rail.queue),
            };
            let mut index = mem::replace(&mut rail.waiting, NONE);
            while let Some(entry) = self.entries.get_mut(index) {
                index = entry.next;
                if let State::Waiting(request) = &mut entry.state {
                    let buffer = mem::take(request.buffer_mut());
                    entry.state = State::Ended(Err(Failure::Rejected(reason)), Some(buffer));
                    self.left -= 1;
                }
            }
        }
    }

    /// Takes all outcomes that are there.
    pub(crate) fn take_all_done(&mut self, engine: &mut Engine, each: &mut dyn FnMut(usize, bool)) {
        for at in 0..self.rails.len() {
            self.take_done(at, engine, each);
        }
    }

    /// Whether nothing is in flight on the channels that have operations of the set in flight.
    pub(crate) fn is_quiesced(&self, engine: &Engine) -> bool {
        let mut channels = self.in_flight();
        channels.all(|(channel, _)| {
            let queues = [Queue::Send, Queue::Receive];
            queues
                .iter()
                .all(|&queue| engine.in_flight(channel, queue) == 0)
        })
    }

    /// The channels that have operations in flight, and the queue of these. A channel may come twice.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (ChannelId, Queue)> {
        let rails = self.rails.iter().filter(|rail| rail.in_flight != NONE);
        rails.map(|rail| (rail.channel, rail.queue))
    }

    fn is_first_done(&self, rail: &Rail, engine: &Engine) -> bool {
        match self.entries.get(rail.in_flight) {
            Some(entry) => match entry.state {
                // It has a slot until its outcome is taken.
                State::InFlight(ticket) => !engine.is_pending(ticket.id),
                _ => true,
            },
            None => false,
        }
    }

    /// The outcome of the whole.
    pub(crate) fn outcome(&self) -> Result<(), TransferError> {
        let of = self.entries.len();
        let failures = self.entries.iter().filter_map(|entry| match &entry.state {
            State::Ended(Err(failure), _) => Some(*failure),
            _ => None,
        });
        let (mut failed, mut stuck, mut first) = (0, 0, None);
        for failure in failures {
            failed += 1;
            stuck += usize::from(matches!(failure, Failure::Transport(TransportError::Stuck)));
            first.get_or_insert(failure);
        }
        match first {
            None => Ok(()),
            Some(_) if stuck > 0 => Err(TransferError::Stuck { stuck, of }),
            Some(first) => Err(TransferError::Failed {
                failed,
                of,
                first: first.into(),
            }),
        }
    }
}

impl TransferError {
    /// Why the channel is down, if that is what the first failure is about: see
    /// [`Error::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Failed { first, .. } => first.down_reason(),
            Self::Stuck { .. } => None,
        }
    }

    /// Whether the device may still access memory of the transfer.
    #[must_use]
    pub const fn is_stuck(&self) -> bool {
        matches!(self, Self::Stuck { .. })
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Rejected(reason) => Self::Rejected(reason),
            Failure::Transport(error) => Self::Transport(error),
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("len", &self.len())
            .field("left", &self.left)
            .finish()
    }
}

/// A set has room for the queues of so many channels at first.
const RAILS: usize = 8;
