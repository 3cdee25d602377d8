//! A connected RDMA endpoint whose safe API cannot misuse memory.
//!
//! A [`Channel`] is a reliable connection with its own completion queue. It counts what is in flight,
//! keeps every buffer until the device is done with it, and waits for nothing without a bound. None of
//! it needs `unsafe`, and whatever is dropped, leaked, panicked or unplugged, the device never touches
//! memory that Rust has given to someone else. For verbs as they are use [`verbs_core`], the layer
//! below; in async code `verbs-async`, the layer above.
//!
//! ```text
//! ProtectionDomain ── Channel::builder ──► PreparedChannel ── connect, accept, handshake ──► Channel
//!        │                    │                                                                │
//!        │                    └─ group ──► ChannelGroup ◄── join ── ConnectedMember            │
//!        ├── BufferPool ── take ──► PoolBuffer ──► OwnedBuffer ────── start_* ─────────────────┤
//!        └── MemoryRegion ── gather_element, scatter_element ──────── send, scope … ───────────┘
//! ```
//!
//! *Invariant:* dependencies point down only: this crate knows [`verbs_core`], which it re-exports
//! whole, and no layer above.
//!
//! *Invariant:* safe code cannot cause undefined behaviour, nor let a device read or write memory that
//! Rust has given to someone else.
//!
//! *Invariant:* nothing waits without a bound that the caller can set, nothing that fails is silent,
//! and after a channel has been built no operation allocates, but for a [batch of owned
//! buffers](Channel::start_batch) that is longer than 32.
//!
//! # Quick start
//!
//! Two ends in one process; in real life each is in its own, and they
//! [`connect`](PreparedChannel::connect) over TCP.
//!
//! ```no_run
//! use verbs_channel::{Channel, verbs_core::Context};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = Context::first_active()?.alloc_pd()?;
//! let (mut left, mut right) = Channel::loopback(&pd)?;
//!
//! let hello = pd.reg_mr(b"hello".to_vec())?;
//! let mut inbox = pd.reg_mr(vec![0_u8; 64])?;
//!
//! let received = right.scope(|scope| {
//!     let receive = scope.post_receive(inbox.scatter_element(..)?)?;
//!     left.send(hello.gather_element(..)?)?;
//!     Ok::<_, verbs_channel::Error>(receive.spin_poll()?)
//! })?;
//! assert_eq!(&inbox[..received.byte_len() as usize], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Five ways to use it
//!
//! | way | buffers | pick it for |
//! |---|---|---|
//! | blocking: [`send`](Channel::send), [`receive`](Channel::receive) … | borrowed for the call | one thing at a time |
//! | scoped: [`scope`](Channel::scope), `post_*` | borrowed until the scope ends | several at once, on buffers of yours |
//! | loans: [`lend`](PollingScope::lend) | borrowed, and back before the scope ends | a pipeline that reuses its buffers |
//! | owned: [`start`](Channel::start), [`start_send`](Channel::start_send) … | given away, and back with the result | work that outlives the function, servers |
//! | batches: [`post_batch`](PollingScope::post_batch), [`run_batch`](Channel::run_batch), [`start_batch`](Channel::start_batch) | as in the others | many small requests: one doorbell, one completion |
//!
//! Below them, for other people's layers: [`post_unpolled`](Channel::post_unpolled), which is
//! `unsafe`.
//!
//! # The life of a work request
//!
//! ```text
//!             no slot, no credit, or not what the queue pair takes: rejected, before the driver
//!               ▲                                                     sees it; nothing is lost
//! your buffer ──┴─► slot taken ──► posted ──► device ──► completion ──► slot done ──► result taken
//!                   (wr_id = its number     │                          │             by its handle, its
//!                    and generation)        │ deadline, failure        │             ticket, or the end
//!                                           ▼                          │             of its scope;
//!                                        aborted (see below) ──────────┘             the slot is free
//! ```
//!
//! Before the driver sees a request, its length is checked against the port's `max_msg_sz` and the
//! granted `max_inline_data`, with its elements and its remote range: drivers' own checks count in 32
//! bits. What is rejected says why ([`Refusal`]), and whether it will work once something in flight
//! has completed ([`is_backpressure`](Refusal::is_backpressure)).
//!
//! # How things end
//!
//! An operation ends in exactly one of four ways: success, a work error, aborted, or stuck.
//!
//! ```text
//! wait for the completion ── in time ──────────────────────────────► success, or a work error
//!   │ deadline, a scope that failed
//!   ▼
//! queue pair to ERROR, drain the flushes ── within drain_timeout ──► aborted, or flushed
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ── the device touches its buffers no more ──► aborted
//!   │ even that is refused
//!   ▼
//! owned buffers are leaked, and the log says so ───────────────────► stuck
//! with borrowed buffers in flight the process is aborted
//! ```
//!
//! Only after [`Stuck`](TransportError::Stuck) may the device still touch the buffers.
//!
//! A channel on which something failed or was aborted is *down*: it says
//! [why](Channel::down_reason), which is the first failure there was and the `source()` of every later
//! error; it refuses work, and [`reset`](Channel::reset) prepares a new one like it.
//!
//! # When the peer leaves
//!
//! A reliable connection has no keepalive, so a channel gives it one: it keeps the TCP connection
//! over which the peers met. When the peer closes its channel, when its process ends in any way, or
//! when its host dies, then the channel goes down with [`DownReason::PeerClosed`] or
//! [`DownReason::PeerLost`], after everything that the peer sent has been delivered. Whatever waits
//! or polls notices it: an end within some milliseconds (within 100 if it
//! [sleeps](PollStrategy::Notify)), the death of a host within the channel's
//! [`peer_timeout`](ChannelBuilder::peer_timeout), 10 s unless set.
//!
//! - To leave in order, wait for what you have sent, and drop the channel: the peer gets all of it.
//! - A peer that is idle, however long, is alive: its host answers TCP's probes.
//! - Something between the hosts that closes one direction of the TCP connection, or forgets it when
//!   it is idle, takes the channel down, although RDMA may still work: TCP's probes, a few in each
//!   `peer_timeout`, keep most firewalls from forgetting. `peer_timeout(None)` watches no peer.
//! - After a [handshake](PreparedChannel::handshake) by hand, give the channel a descriptor to
//!   [watch the peer by](Channel::watch_peer); else no peer is watched, and receives need a timeout.
//!
//! # What this crate does not do
//!
//! It does not fragment, acknowledge or order messages beyond what a reliable connection does, does
//! not reconnect by itself, and has no threads of its own.
//!
//! # Features
//!
//! None.
//!
//! # Requirements
//!
//! Those of [`verbs_core`].
//!
//! # Thread safety
//!
//! A channel is `Send`: it can be moved to another thread, and one thread uses it at a time.
//! [`BufferPool`] is `Send` and `Sync`, and its blocks come back from any thread.
//!
//! # Resource cleanup
//!
//! Dropping a channel does not wait: its queue pair is destroyed first, and what it owns is
//! released after. If the driver refuses even that, the buffers are leaked and the log says so.
//!
//! # Further reading
//!
//! [`verbs_core`], and the manual pages it names.

mod buffer;
mod channel;
mod channel_id;
mod config;
mod connect;
mod engine;
mod error;
#[cfg(test)]
mod error_chains;
pub mod exchange;
mod group;
mod request;

pub use buffer::{BufferPool, OwnedBuffer, PoolBuffer};
pub use channel::{Channel, Hold, InGroup, Loan, Owned, PollingScope, ScopedPendingWork};
pub use channel_id::ChannelId;
pub use config::{ChannelBuilder, PollStrategy, channel_builder};
pub use connect::{Connected, CreateChannel, PreparedChannel, refuse};
pub use engine::{Completed, Leak, Ticket};
pub use error::{DownReason, Error, Queue, Refusal, Result, ScopeError, TransportError};
pub use group::{ChannelGroup, Closed, Closing, ConnectedMember, Preparer};
pub use request::{GatherList, Incoming, List, Outgoing, OwnedWork, ScatterList, Work};

pub use verbs_core;
pub use verbs_core::Rejected;

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
