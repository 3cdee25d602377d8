//! Why requests are rejected.

use std::fmt;

use verbs_core::error::PostError;

use super::down_reason::DownReason;
use super::queue::Queue;

/// Why a request was rejected: it was not posted. [`Rejected`](crate::error::Rejected) hands it back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The queue is full: wait for one of its operations, and try again.
    #[error("the {0} queue is full: wait for some of its operations first")]
    Backpressure(Queue),
    /// There is room in the queue, but not in the budget that the channels of a group share: see
    /// [`in_flight`](crate::ChannelConfig::in_flight). Wait for operations of any of the channels, and
    /// try again.
    #[error(
        "the group's in_flight leaves the {0} queue no room: wait for operations of any channel first"
    )]
    Budget(Queue),
    /// The queue was built without room for any request, so waiting does not help: build it with a larger
    /// `max_send_wr` or `max_recv_wr`.
    #[error("{what} is 0, so the {0} queue never takes a request: build it with room", what = .0.capacity())]
    NoCapacity(Queue),
    /// There is room in the queue, but no slot: too many outcomes of completed operations were
    /// not taken. Take some of them: waiting for completions does not help.
    #[error("too many outcomes were not taken: take some of them first")]
    Untaken,
    /// The timeout of its [`Transfer`](crate::Transfer) passed before it was posted. The channel is not
    /// down: the request can be posted again.
    #[error("the timeout of its transfer passed before it was posted: post it again")]
    TimedOut,
    /// The batch or chain has more requests than the queue can hold, or than the group's budget permits.
    #[error(
        "{asked} requests in one post exceed the {max} that the channel can have in flight: post them in parts"
    )]
    BatchTooLong {
        /// Requests in the batch or chain.
        asked: u32,
        /// The send queue's capacity, `max_send_wr`; or what the group's
        /// [budget](crate::ChannelConfig::in_flight) leaves of it.
        max: u32,
    },
    /// The batch or chain is empty, so nothing would complete.
    #[error("the batch or chain is empty")]
    EmptyBatch,
    /// The batch or chain contains a receive, which has its own completion: start it separately.
    #[error("a receive is in a batch or chain: start it on its own")]
    ReceiveInBatch,
    /// The chain has no request at the index that was to be [replaced](crate::request::OwnedChain::set).
    #[error("there is no request {index} in a chain of {len}")]
    NoRequest {
        /// The index of the request, counted from 0.
        index: usize,
        /// Requests in the chain.
        len: usize,
    },
    /// The channel is down.
    #[error("the channel is down")]
    Down(#[source] DownReason),
    /// The message is longer than the port can send.
    #[error("a message of {len} bytes exceeds the port's max_msg_sz {max}: send it in parts")]
    MessageTooLong {
        /// The length of the message in bytes.
        len: u64,
        /// The longest message that the port can send, in bytes.
        max: u32,
    },
    /// The datagram is longer than one packet of this side's port or the peer's.
    #[error("a datagram of {len} bytes exceeds the {max} bytes of one packet: send it in parts")]
    DatagramTooLong {
        /// The length of the datagram in bytes.
        len: u64,
        /// The smaller of both ports' MTUs, in bytes.
        max: u32,
    },
    /// The elements of a receive have more than `u32::MAX` bytes in total.
    #[error("{len} bytes in one receive; at most {max} are possible", max = u32::MAX)]
    ReceiveTooLong {
        /// Bytes in the elements.
        len: u64,
    },
    /// The elements have more bytes than the queue pair can send inline.
    #[error(
        "{len} bytes inline exceed the channel's max_inline_data {max}: send them without inline"
    )]
    InlineTooLong {
        /// Bytes in the elements.
        len: u64,
        /// The most bytes that the driver granted.
        max: u32,
    },
    /// Memory of a shared, raw or dmabuf region cannot be sent inline: a peer or another thread may
    /// write to it while the processor copies it, or the processor cannot read it.
    #[error("memory of a shared region cannot be sent inline: send it without inline")]
    SharedInline,
    /// The buffer, or an element of the list, is registered in another protection domain than the
    /// channel's, where its key is unknown, or stands for other memory.
    ///
    /// This is checked for [owned buffers](crate::OwnedBuffer) and for
    /// [`SharedElement`](verbs_core::memory::SharedElement)s, but not for [other elements](crate::request::List): a
    /// debug build rejects those with [`Post`](Self::Post).
    #[error(
        "the memory is registered in another protection domain: register it in the channel's `pd()`"
    )]
    OtherDomain,
    /// The remote region is of no memory that the rails know: [add](crate::Rails::add_remote) it.
    #[error("the rails do not know this remote memory: add it with `add_remote`")]
    UnknownRemote,
    /// The channel of the operation is none of the [rails](crate::Rails): it never was, or another channel has its place now. Add
    /// operations with the id of the rails, or that of a channel that they have.
    #[error(
        "the channel is none of the rails, or another one has its place: use the id of the rails"
    )]
    UnknownChannel,
    /// The request has more elements than the queue pair was created for, or an atomic has more than one.
    #[error("{}", TooMany(*count, *max))]
    TooManyElements {
        /// Elements that are not empty.
        count: usize,
        /// The most elements that the driver granted; 1 for an atomic.
        max: u32,
    },
    /// The peer serves no reads and no atomics, or this side is configured to start none. Such a
    /// request would never complete.
    #[error("the peers agreed on max_rd_atomic 0: reads and atomics are not possible")]
    NoReads,
    /// The local elements have more bytes than the remote region.
    #[error("{local} local bytes do not fit into the remote region's {remote} bytes")]
    RemoteTooShort {
        /// Bytes in the local elements.
        local: u64,
        /// Bytes in the remote region.
        remote: u64,
    },
    /// The buffer's range is longer than one element can be: `u32::MAX` bytes.
    #[error("{len} bytes in one element; at most {max} are possible: set a shorter range", max = u32::MAX)]
    ElementTooLong {
        /// The length of the range in bytes.
        len: u64,
    },
    /// An atomic needs exactly 8 bytes, at a remote address that is divisible by 8.
    #[error(
        "an atomic works on 8 bytes at an address divisible by 8, not on {len} bytes at {addr:#x}"
    )]
    Misaligned {
        /// The remote address.
        addr: u64,
        /// The local length in bytes.
        len: u64,
    },
    /// The channel's receives are [shared](crate::ChannelConfig::shared_receives) with the other
    /// channels of its group: its messages are taken from the group.
    #[error("the receives of this group are shared by its channels: take messages from the group")]
    SharedReceives,
    /// The region does not permit the access of the lease, or that is none that a peer can have: register it with
    /// [`LOCAL_WRITE`](verbs_core::AccessFlags::LOCAL_WRITE) for writes and atomics.
    #[error(
        "the memory's region does not permit the access of this lease: register it with LOCAL_WRITE"
    )]
    LeaseAccess,
    /// All [windows](crate::ChannelConfig::lease_windows) are in use, or rest. End another lease first, and try again.
    #[error("all {max} windows for leases are in use or rest: end another lease first")]
    NoWindow {
        /// How many windows there are.
        max: u32,
    },
    /// A write does not invalidate a key: only a send does.
    #[error("only a send can invalidate a key, not a write")]
    InvalidatingWrite,
    /// The driver rejected the post.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// The text of too many elements.
struct TooMany(usize, u32);

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(count, 1) => write!(
                f,
                "{count} elements in a request that can have 1: an atomic has one, of 8 bytes; make two requests of \
                 another"
            ),
            Self(count, max) => write!(
                f,
                "{count} elements in one request exceed the channel's {max}: make two requests of it"
            ),
        }
    }
}

verbs_core::error_debug!(RejectReason {
    Backpressure, Budget, NoCapacity, Untaken, TimedOut, BatchTooLong, EmptyBatch, ReceiveInBatch, NoRequest, Down(reason),
    MessageTooLong, DatagramTooLong,
    ReceiveTooLong, InlineTooLong, SharedInline, OtherDomain, UnknownRemote, UnknownChannel, TooManyElements, NoReads,
    RemoteTooShort, ElementTooLong, Misaligned, SharedReceives, LeaseAccess, NoWindow, InvalidatingWrite, Post,
});

impl RejectReason {
    /// For a channel that does not exist any more.
    pub(crate) const GONE: Self = Self::Down(DownReason::Closed);

    /// Why a queue takes no request that has this capacity.
    pub(crate) const fn full(queue: Queue, capacity: usize) -> Self {
        match capacity {
            0 => Self::NoCapacity(queue),
            _ => Self::Backpressure(queue),
        }
    }

    /// Whether the same request can be posted once some operations in flight have completed.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Backpressure(_) | Self::Budget(_))
    }

    /// Why the channel is down, if the request was rejected because of that: see
    /// [`TransportError::down_reason`](crate::TransportError::down_reason).
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Down(reason) => Some(*reason),
            _ => None,
        }
    }

    pub(crate) fn from_core(error: &verbs_core::Error) -> Self {
        match *error {
            verbs_core::Error::RemoteTooShort { local, remote } => {
                Self::RemoteTooShort { local, remote }
            }
            verbs_core::Error::Misaligned { addr, len } => Self::Misaligned { addr, len },
            // The constructors of work requests have no other errors.
            _ => Self::Misaligned { addr: 0, len: 0 },
        }
    }
}
