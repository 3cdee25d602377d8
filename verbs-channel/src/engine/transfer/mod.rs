//! Transfers: sets of operations that end quiesced.

use std::sync::Arc;
use std::{fmt, mem};

use verbs_core::WorkSuccess;

use crate::buffer::{OwnedBuffer, Owner};
use crate::channel_id::ChannelId;
use crate::engine::Ticket;
use crate::error::{DownReason, Queue, TransportError};
use crate::lease::Lease;
use crate::request::{OwnedChain, OwnedRequest};
pub use pieces::Piece;

mod pieces;
mod shares;
mod steps;

/// A set of operations on owned buffers that ends as a whole, on one channel, on several of a group, or over
/// [rails](crate::Rails).
///
/// [`Channel::transfer`](crate::Channel::transfer), [`ChannelGroup::transfer`](crate::ChannelGroup::transfer) and
/// [`Rails::transfer`](crate::Rails::transfer) carry it out, and return when the device is
/// done with all of its memory, by a deadline if there is one. The transfer then has the
/// [outcomes](Self::drain) of all operations, with their buffers. The memory can be reused at once,
/// whatever happened, except for that of operations that are [`Stuck`](TransportError::Stuck).
///
/// A set can be larger than the queues of its channels: operations wait until there is room. The
/// operations of one queue of a channel are posted in the order in which they were added. Up to 16 requests of a send queue
/// share a doorbell and a completion, and a quarter of the queue at most, so that it is never empty. Writes and reads
/// that are longer than the port's longest message are split.
///
/// Buffers are in flight only during `transfer`; those of outcomes that were not drained are kept, with the
/// [owners](crate::buffer::SharedSlice::owned_by) of slices. So dropping or forgetting a set is harmless. A
/// set can be used again: within its capacity, it allocates nothing for each operation.
///
/// ```no_run
/// # use std::time::{Duration, Instant};
/// # use verbs_channel::{Channel, Incoming, SharedMemory, Transfer};
/// # use verbs_channel::verbs_core::RemoteMemoryRegion;
/// # fn fetch(channel: &mut Channel, cache: &SharedMemory, pages: &[(usize, RemoteMemoryRegion)])
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let mut pages_in = Transfer::with_capacity(pages.len());
/// for &(at, remote) in pages {
///     let page = cache.slice(at..at + 4096)?;
///     pages_in.add(channel.id(), Incoming::read(page, remote));
/// }
/// let deadline = Instant::now() + Duration::from_millis(200);
/// if let Err(error) = channel.transfer(&mut pages_in, Some(deadline)) {
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
    // How many of them were added: the others are parts of long requests.
    added: usize,
    // For each queue of each channel that has operations of the set.
    rails: Vec<Rail>,
    // Those that are not in flight.
    chains: Vec<OwnedChain>,
    // Entries that have not ended.
    left: usize,
    // They end with a transfer that fails.
    leases: Vec<Lease>,
}

/// The outcome of one operation of a [`Transfer`].
#[derive(Debug)]
#[non_exhaustive]
pub struct TransferOutcome {
    /// The index of the operation, in the order in which they were added.
    pub index: usize,
    /// The channel of the operation.
    pub channel: ChannelId,
    /// The result. A success is `None` if the operation has shared the completion of a later one, or was split.
    pub result: Result<Option<WorkSuccess>, TransportError>,
    /// The returned buffer; `None` if the operation is stuck: see [`TransferError::Stuck`].
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
        first: TransportError,
    },
    /// The same, and the driver refused to end [leases](Transfer::lend): **their peers may still access the leases' memory** until the queue pairs
    /// of their channels have been destroyed. [Take](Transfer::take_leases) them, and [revoke](crate::Channel::revoke) them to
    /// get it back then.
    #[error(
        "{failed} of the {of} operations of a transfer failed, and the driver refused to end {leases} of its leases: their \
         peers may still access the memory until these are revoked"
    )]
    LeasesStuck {
        /// How many leases have not ended.
        leases: usize,
        /// How many operations failed.
        failed: usize,
        /// How many operations the transfer has.
        of: usize,
        /// The outcome of the first of them, in the order in which they were added.
        #[source]
        first: TransportError,
    },
    /// The driver failed to destroy the queue pair: **the device may still access the memory of
    /// these operations** until the process ends. Their buffers have been leaked. The device is
    /// done with the memory of all other operations. Leases that the driver refused to end can be [taken](Transfer::take_leases).
    ///
    /// Below a layer that waits in its own way, there are two other cases:
    ///
    /// - The layer [has taken](crate::engine::Engine::next_closing) the queue pair of these operations, and has
    ///   not destroyed it yet. Once it has, their buffers are returned by
    ///   [`next_completed`](crate::Channel::next_completed).
    /// - The layer [has begun](Transfer::next_piece) these operations, and has not ended them. It has their
    ///   tickets.
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

verbs_core::error_debug!(TransferError {
    Failed,
    LeasesStuck,
    Stuck
});

struct Entry {
    channel: ChannelId,
    state: State,
    // The next of its rail.
    next: usize,
    // How many operations began together, from the first of them on.
    run: u16,
    // The place of the operation that it is a part of, or its own.
    of: usize,
    // How many operations were added before it.
    number: usize,
    // There is one if it was split.
    split: Option<Box<Split>>,
}

/// An operation whose request is too long for its channel.
struct Split {
    // Shared by its parts.
    whole: Arc<Owner>,
    // Parts that have not ended.
    left: usize,
    // One of them was, at least.
    is_posted: bool,
    failure: Option<TransportError>,
}

// An outcome is as large as a request.
enum State {
    Waiting(OwnedRequest),
    InFlight(Ticket),
    // Begun by a layer above, which has its ticket. Whether it has memory.
    Begun(bool),
    // In the chain of one before it.
    Chained,
    Ended(
        Result<Option<WorkSuccess>, TransportError>,
        Option<OwnedBuffer>,
    ),
}

/// How an operation has ended in the share of a rail.
pub(crate) struct Ended {
    pub(crate) result: Result<Option<WorkSuccess>, TransportError>,
    pub(crate) buffer: Option<OwnedBuffer>,
}

/// The operations of one queue of a channel, which complete in their order: those that have begun, and
/// behind them those that wait.
#[derive(Clone, Copy)]
struct Rail {
    channel: ChannelId,
    queue: Queue,
    // None before the first is in flight. Then the first that waits, or `NONE`, and the last of all.
    first: usize,
    waiting: usize,
    last: usize,
    // Posts of it that are in flight.
    in_flight: usize,
    // Untaken outcomes keep it from posting more.
    is_blocked: bool,
    // How many are posted one by one, after a chain of them was rejected.
    one_by_one: u16,
    // How many a layer above has begun and not ended.
    begun: usize,
}

const NONE: usize = usize::MAX;

impl Transfer {
    /// An empty set with room for this many operations, or with none if there is not enough memory.
    #[must_use]
    pub fn with_capacity(operations: usize) -> Self {
        let mut entries = Vec::new();
        // Without it, each operation that is added gets its room then.
        let _has_room = entries.try_reserve_exact(operations);
        Self {
            entries,
            added: 0,
            rails: Vec::with_capacity(RAILS),
            chains: Vec::new(),
            left: 0,
            leases: Vec::new(),
        }
    }

    /// Adds an operation on a channel. It is posted by [`Channel::transfer`](crate::Channel::transfer)
    /// or [`ChannelGroup::transfer`](crate::ChannelGroup::transfer). Outcomes that have not been
    /// [drained](Self::drain) stay before it.
    pub fn add(&mut self, channel: ChannelId, request: impl Into<OwnedRequest>) {
        let request = request.into();
        let (index, queue) = (self.entries.len(), request.queue());
        self.entries
            .push(Entry::new(channel, request, index, self.added));
        self.added += 1;
        self.left += 1;
        let is_its = |rail: &&mut Rail| (rail.channel, rail.queue) == (channel, queue);
        let Some(rail) = self.rails.iter_mut().find(is_its) else {
            self.rails.push(Rail {
                channel,
                queue,
                first: index,
                waiting: index,
                last: index,
                in_flight: 0,
                is_blocked: false,
                one_by_one: 0,
                begun: 0,
            });
            return;
        };
        if let Some(last) = self.entries.get_mut(rail.last) {
            last.next = index;
        }
        rail.last = index;
        for place in [&mut rail.first, &mut rail.waiting] {
            if *place == NONE {
                *place = index;
            }
        }
    }

    /// Lends memory for as long as the transfer goes well: a request of the set has the lease's key, for example, and the peer
    /// writes its answer there.
    ///
    /// If the transfer fails, at its deadline, too, the lease is [ended](Lease::end) before that returns, and also if the set is
    /// dropped: a peer that is late reaches the memory no more. If the driver refuses that, the error is
    /// [`TransferError::LeasesStuck`]. After a success it can be [taken](Self::take_leases).
    pub fn lend(&mut self, lease: Lease) {
        self.leases.push(lease);
    }

    /// Takes the leases that have not ended, to [revoke](crate::Channel::revoke) them, or until the peer gives them
    /// [back](Lease::given_back).
    pub fn take_leases(&mut self) -> impl Iterator<Item = Lease> {
        self.leases.drain(..)
    }

    /// Ends its leases. Those stay which the driver refuses to end.
    fn end_leases(&mut self) {
        let leases = mem::take(&mut self.leases).into_iter();
        self.leases = leases.filter_map(|lease| lease.end().err()).collect();
    }

    /// The number of its operations: those not carried out yet, and those whose outcomes have not been
    /// [drained](Self::drain).
    #[must_use]
    pub fn len(&self) -> usize {
        self.added
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
        (self.left, self.added) = (0, 0);
        let entries = self.entries.drain(..).enumerate();
        // An operation that was split stands for its parts.
        let added = entries.filter(|(index, entry)| entry.of == *index);
        added.filter_map(|(_, entry)| match entry.state {
            State::Ended(result, buffer) => Some(TransferOutcome {
                index: entry.number,
                channel: entry.channel,
                result,
                buffer,
            }),
            State::Waiting(_) | State::InFlight(_) | State::Begun(_) | State::Chained => None,
        })
    }

    /// The outcome of the whole, once all operations have ended. A failure ends its leases, by system calls.
    ///
    /// # Errors
    ///
    /// [`TransferError::Failed`], [`TransferError::LeasesStuck`] or [`TransferError::Stuck`].
    #[doc(hidden)]
    pub fn result(&mut self) -> Result<(), TransferError> {
        let of = self.added;
        let (mut failed, mut stuck, mut first) = (0, 0, None);
        for (index, entry) in self.entries.iter().enumerate() {
            if let State::Ended(Err(failure), _) = entry.state
                && entry.of == index
            {
                failed += 1;
                stuck += usize::from(failure == TransportError::Stuck);
                first.get_or_insert(failure);
            }
        }
        let Some(first) = first else {
            return Ok(());
        };
        self.end_leases();
        Err(match self.leases.len() {
            _ if stuck > 0 => TransferError::Stuck { stuck, of },
            0 => TransferError::Failed { failed, of, first },
            leases => TransferError::LeasesStuck {
                leases,
                failed,
                of,
                first,
            },
        })
    }
}

impl Entry {
    const fn new(channel: ChannelId, request: OwnedRequest, of: usize, number: usize) -> Self {
        Self {
            channel,
            state: State::Waiting(request),
            next: NONE,
            run: 1,
            of,
            number,
            split: None,
        }
    }
}

impl State {
    const STUCK: Self = Self::Ended(Err(TransportError::Stuck), None);
}

impl TransferError {
    /// Why the channel is down, if that caused the first failure: see [`TransportError::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Failed { first, .. } | Self::LeasesStuck { first, .. } => first.down_reason(),
            Self::Stuck { .. } => None,
        }
    }

    /// Whether the device, or the peer by a lease, may still access memory of the transfer.
    #[must_use]
    pub const fn is_stuck(&self) -> bool {
        !matches!(self, Self::Failed { .. })
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

/// Number of channels whose queues a set has room for at first.
const RAILS: usize = 8;
