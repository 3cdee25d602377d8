//! A connected RDMA endpoint whose safe API cannot misuse memory.
//!
//! A [`Channel`] is a reliable connection with a completion queue of its own. It never posts more than
//! its queues hold, keeps every buffer until the device is done with it, and can bound every wait.
//! None of this needs `unsafe`. The device never accesses memory that Rust has reused, even after a leak, a panic or an
//! unplugged device. (There is one known [exception](request::List#elements-of-another-protection-domain): it takes a program that
//! confuses two devices.) For plain verbs use [`verbs_core`], the layer below. For async code use `verbs-async`, the layer
//! above.
//!
//! New to RDMA? The [`guide`] starts from what you know about TCP, builds a server for many clients, and explains [how to
//! fix common errors](guide::troubleshooting).
//!
//! ```text
//! ProtectionDomain
//!   │
//!   ├─ Channel::builder ──► PreparedChannel ── connect, accept ──► Channel
//!   │         │
//!   │         └─ group ──► ChannelGroup ◄── join ── ConnectedMember
//!   │
//!   ├─ BufferPool ── take ──► PoolBuffer ──► OwnedBuffer ── start_* ──► Channel
//!   │                                             ▲
//!   ├─ SharedRegion, RawRegion, DmabufRegion ─────┴─ SharedMemory ── slice ──► SharedSlice
//!   │
//!   ├─ RegistrationCache ── memory ──► CachedMemory ── slice ──► SharedSlice
//!   │
//!   └─ MemoryRegion ── gather_element, scatter_element ── send, scope ──► Channel
//! ```
//!
//! # Quick start
//!
//! This example has both ends in one process. Usually each end is in its own process, and they
//! [connect](PreparedChannel::connect) over TCP: see the chapter [*A server*](guide::server), which also shows how to run
//! it without an RDMA device.
//!
//! ```no_run
//! use verbs_channel::{Channel, Error, verbs_core::Context};
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
//!     Ok::<_, Error>(receive.spin_poll()?)
//! })?;
//! assert_eq!(&inbox[..received.byte_len() as usize], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Two ways to use it
//!
//! The buffers of an operation are *borrowed* or *owned*.
//!
//! | buffers | calls | use it for |
//! |---|---|---|
//! | borrowed until the call returns | [`send`](Channel::send), [`receive`](Channel::receive), [`run`](Channel::run) … | one operation at a time |
//! | borrowed until a scope ends | [`scope`](Channel::scope), [`post_send`](PollingScope::post_send) … | several operations at once, on your own buffers |
//! | moved in, and returned with the outcome | [`start_send`](Channel::start_send), [`start`](Channel::start) … | operations that outlive the function, servers |
//!
//! Memory of a GPU, of huge pages or of `mmap` can be used in both ways. It is registered as a
//! [`DmabufRegion`](verbs_core::memory::DmabufRegion) or a [`RawRegion`](verbs_core::memory::RawRegion), which
//! needs `unsafe` once. The region's elements are borrowed; the slices of a [`SharedMemory`] are
//! owned. A [`RegistrationCache`] registers parts of such memory when they are used, and limits how
//! much is registered.
//!
//! A [`Transfer`] is a set of operations on owned buffers that ends as a whole: by its deadline, and only
//! when the device is done with all of its memory.
//!
//! A [`Lease`](lease::Lease) lends a part of shared memory to the peer for a time: see [*Lending memory to a peer*](guide::lending).
//!
//! In a scope, [`lend`](PollingScope::lend) returns the elements with the outcome, before the scope
//! ends. A pipeline reuses its buffers in this way.
//!
//! Each way has batches, for many small requests: one doorbell and one completion for all of them
//! ([`run_batch`](Channel::run_batch), [`post_batch`](PollingScope::post_batch),
//! [`start_batch`](Channel::start_batch)). To start a batch again and again, use an [`OwnedChain`](request::OwnedChain): its
//! requests are built once, and some can be replaced between the starts.
//!
//! Below these is [`post_unpolled`](Channel::post_unpolled), which is `unsafe`. It is for layers
//! that manage the buffers themselves. [`post_chain_unpolled`](Channel::post_chain_unpolled) posts
//! chains that such a layer has built.
//!
//! The channels of a group can share their receives: [`ChannelConfig::shared_receives`]. Messages then
//! come out of the group, each with the id of its channel, and the memory for them does not grow with
//! the number of channels.
//!
//! # How long calls wait
//!
//! | call | waits at most | after that time |
//! |---|---|---|
//! | [`send`](Channel::send), [`run`](Channel::run) …, [`spin_poll`](ScopedPendingWork::spin_poll), the end of a [`scope`](Channel::scope), [`transfer`](Channel::transfer), [`lease`](Channel::lease), [`revoke`](Channel::revoke), [`close`](Channel::close) | the channel's [`timeout`](ChannelConfig::timeout), or the one of the [request](Outgoing::timeout), or the transfer's deadline | the channel is aborted, so that the buffers can be used again |
//! | [`wait_success`](Channel::wait_success) | the channel's `timeout` | the operation continues |
//! | each call with a `timeout` of its own, such as [`wait`](Channel::wait) and [`wait_completed`](Channel::wait_completed) | that time | the operation continues |
//! | [`poll`](Channel::poll), [`next_completed`](Channel::next_completed), `start_*`, `post_*` | not at all | |
//!
//! A timeout of `None` is forever, in the builder and in each call. The channel's is `None` unless set: then only these end
//! a wait: the device, when its retries have failed or it answers no more; the [end of the peer](self#when-the-peer-leaves);
//! and an [abort handle](Channel::abort_handle).
//!
//! # The life of an operation
//!
//! ```text
//! request ──► checks ──► slot taken ──► posted ──► completed ──► outcome taken
//!               │                         │            ▲         by its handle,
//!               │                         │ deadline,  │         its ticket, or
//!               ▼                         ▼ failure    │         its scope's end:
//!           rejected:                  aborted ────────┘         the slot is free
//!           nothing was posted         (see below)
//! ```
//!
//! Each operation has a slot from the post until its outcome is taken. The `wr_id` of the request is
//! the slot's index and generation.
//!
//! A request is checked before the driver gets it: its length against the port's `max_msg_sz` and the
//! granted `max_inline_data`, its elements, and its remote range. Drivers check too, but some add up
//! lengths in 32 bits. A request that fails a check, or for which its queue has no room, is rejected
//! with a [`RejectReason`]. A rejection is [backpressure](RejectReason::is_backpressure) if the same
//! request can be posted once some operations in flight have completed.
//!
//! # How operations end
//!
//! A request that is rejected was never posted. (The exceptions are a driver that fails in the middle of a batch or chain:
//! see [`RejectReason::Post`]; and a request that a [`Transfer`] has split, parts of which were carried out before another
//! was rejected.) One that is posted is an operation, which has exactly one of four
//! outcomes: success, a work error, aborted, or stuck.
//!
//! ```text
//! wait for the completion ─── in time ─────────────► success, or a work error
//!   │ the deadline passes, or a scope fails
//!   ▼
//! queue pair to ERR, drain ───── in drain_timeout ─► aborted, or a work error
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ─── destroyed ────────────► aborted
//!   │ the driver fails to
//!   ▼
//! owned buffers are leaked, which is logged ───────► stuck
//! borrowed buffers in flight: the process is aborted
//! ```
//!
//! The device may access the buffers after the end only if the operation is
//! [`Stuck`](TransportError::Stuck).
//!
//! After a failure or an abort, a channel is *down*: it rejects all requests. Its
//! [`down_reason`](Channel::down_reason) is the first failure, and the `source()` of every later
//! error. [`reset`](Channel::reset) prepares a new channel with the same settings.
//!
//! # When the peer leaves
//!
//! A reliable connection has no keepalive. So a channel that was connected over TCP keeps the TCP
//! connection, and uses it to watch its peer. The channel goes down when the peer closes its
//! channel, its process ends or its host dies. The reason is [`DownReason::PeerClosed`] or
//! [`DownReason::PeerLost`]. Everything that the peer sent is delivered first. After that, every
//! operation returns an error, even if the peer closed the channel cleanly. So a server's loop
//! ends when the error's [`down_reason`](Error::down_reason)
//! [`is_peer_closed`](DownReason::is_peer_closed).
//!
//! Waits and polls check the peers about every 10 ms, also while they keep finding completions, or every 100 ms if the
//! wait [sleeps](PollStrategy::Notify). When a peer has ended, sends in flight have up to 20 ms more to complete. The death
//! of a host is noticed within the channel's [`peer_timeout`](ChannelConfig::peer_timeout), 10 s
//! unless set.
//!
//! - To leave cleanly, [close](Channel::close) the channel, or wait for your sends and drop it: the peer
//!   receives all of them.
//! - Do not post a receive after the last message: when the peer has left, the channel rejects it.
//! - A peer may be idle for any length of time: its host answers TCP's keepalive probes.
//! - A firewall that closes one direction of the TCP connection, or drops it while it is idle, takes
//!   the channel down, although RDMA may still work. Keepalive probes, a few in each
//!   `peer_timeout`, prevent that with most firewalls. With `peer_timeout(None)` no peer is watched.
//! - A channel that was connected by `rdma_cm` (feature `rdmacm`) watches that connection instead. It goes
//!   down when the peer disconnects or its process ends, but not when the peer's host dies: give waits a
//!   timeout. A channel that was connected over TCP on iWARP has both connections, and notices all of these.
//! - After a [handshake](PreparedChannel::handshake) of your own, or an exchange
//!   [over datagrams](PreparedChannel::connect), pass the channel a descriptor to
//!   [watch the peer](Channel::watch_peer). Without one no peer is watched, and receives need a
//!   timeout.
//!
//! # Datagrams
//!
//! [`Datagrams`] needs no connection: one endpoint sends to any number of peers, and receives from them.
//! A datagram is one packet, and may be lost.
//!
//! Channels can be connected over datagrams, too, without TCP: a server with one datagram endpoint
//! accepts any number of clients with a [`DatagramListener`](connect::DatagramListener). The protocol sends lost datagrams
//! again. Nothing watches the peers of these channels: see
//! [`PreparedChannel::connect`].
//!
//! # Errors
//!
//! The `Display` of an error is one clause, and its causes are in its
//! [`source`](std::error::Error::source). [`ErrorChain`](error::ErrorChain) prints all of them in one line:
//! `eprintln!("{}", ErrorChain::new(&error))`. `Debug` prints the same line, followed by the variant. A `main` that
//! returns the error prints that:
//!
//! ```text
//! Error: the channel is down: the peer closed the connection [Transport(Rejected(Down(PeerClosed)))]
//! ```
//!
//! # What this crate does not do
//!
//! It adds no fragmentation, acknowledgements or ordering to those of a reliable connection. Only [`Rails`] reconnect, and
//! have a thread for that. It has no authentication and no encryption: see [security](guide::memory#security).
//!
//! # Features
//!
//! - `dlopen`: libibverbs is loaded at run time. See this feature of [`verbs_core`].
//! - `rdmacm`: channels connect by `rdma_cm`, at the IP address of an RDMA device, to a `Peer::cm`, also if the peer
//!   does not use this crate. iWARP devices can connect only by `rdma_cm`. So `connect` and `accept` over TCP use it for
//!   them. Datagram endpoints find each other with `Datagrams::find_cm` and `answer_cm`. See this feature of
//!   [`verbs_core`].
//!
//! # Requirements
//!
//! Those of [`verbs_core`].
//!
//! # Thread safety
//!
//! A channel is `Send`: it can be moved to another thread, but only one thread at a time can use it.
//! [`BufferPool`] and [`RegistrationCache`] are `Send` and `Sync`, and their blocks and slices may be dropped
//! on any thread.
//!
//! # Resource cleanup
//!
//! | end | operations in flight | the channel |
//! |---|---|---|
//! | [`Channel::close`] | sends, writes, reads and atomics finish; receives are aborted | is consumed, and the call returns whether the device is done with all memory |
//! | [`Channel::abort`] | are aborted | is down: outcomes can be taken |
//! | [`ChannelGroup::remove`] | are aborted | is down, and its place is free once its outcomes have been taken |
//! | a drop | are aborted, and owned buffers are released | is gone |
//!
//! Dropping a channel does not wait for the peer or for completions: it destroys the queue pair. If the driver fails to
//! do that, the buffers are leaked and an error is logged.
//!
//! # Further reading
//!
//! The [`guide`], [`verbs_core`], and the manual pages that `verbs_core` names.
//!
//! # How this crate is built
//!
//! A blocking send and its completion pass through these files, from top to bottom:
//!
//! | file | step |
//! |---|---|
//! | `channel/operations.rs` | the call, which keeps the borrow until the operation has ended |
//! | `request/work.rs`, `request/list.rs` | the request as plain values |
//! | `engine/submit/mod.rs` | the post, in three steps: |
//! | `engine/member/mod.rs` | is it within the limits of the queue pair and the port? |
//! | `engine/member/credits.rs`, `engine/flight/room.rs` | credits, and a slot |
//! | `verbs_core::QueuePair::post` | the driver |
//! | `waiting/mod.rs` | the first poll, which returns the success if it is there |
//! | `engine/complete.rs` | the completion queue: routes completions to their slots, returns credits |
//! | `waiting/wait.rs`, `waiting/pause.rs` | until then: polls, spins, yields or sleeps |
//! | `engine/flight/mod.rs` | takes the outcome, unless the first poll has returned it |
//! | `waiting/wait.rs`, `engine/teardown.rs` | after the deadline: the ladder |
//!
//! An owned buffer goes the same way through `channel/owned.rs` and `engine/submit/owned.rs`, where `verbs-async`
//! begins.
// The nightly toolchain of docs.rs labels what a feature adds.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Where the docs of the crates above link to if this crate's are not beside theirs.
#![doc(html_root_url = "https://docs.rs/verbs-channel/latest")]

// First: rustdoc lists the methods of a channel in the order of the modules.
pub mod datagrams;

pub mod connect;
mod panics;

pub mod buffer;
pub mod channel;
mod channel_id;
mod datagram_exchange;
mod duration;
pub mod engine;
pub mod error;
#[cfg(test)]
mod error_chains;
pub mod exchange;
pub mod group;
pub mod guide;
pub mod immediates;
pub mod lease;
pub mod rails;
pub mod registration_cache;
pub mod request;
mod waiting;

#[doc(inline)]
pub use buffer::{BufferPool, OwnedBuffer, PoolBuffer, SharedMemory};
#[doc(inline)]
pub use channel::{Channel, ChannelConfig, PollingScope, ScopedPendingWork};
pub use channel_id::ChannelId;
#[doc(inline)]
pub use connect::{Connect, CreateChannel, Peer, PreparedChannel};
#[doc(inline)]
pub use datagrams::Datagrams;
#[doc(inline)]
pub use engine::{Completed, Message, Ticket, Transfer};
#[doc(inline)]
pub use error::{DownReason, Error, RejectReason, Result, ScopeError, TransportError};
#[doc(inline)]
pub use group::ChannelGroup;
#[doc(inline)]
pub use rails::Rails;
#[doc(inline)]
pub use registration_cache::RegistrationCache;
#[doc(inline)]
pub use request::{Incoming, Outgoing, OwnedRequest};
pub use waiting::PollStrategy;

pub use verbs_core;

/// Not part of this crate's API: it is for `verbs-async` of the same version, and may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::connect::accept::is_of_one_connection;
    pub use crate::connect::attempts::{Attempt, Attempts};
    #[cfg(feature = "rdmacm")]
    pub use crate::connect::cm::{CmExchange, CmStep};
    pub use crate::connect::peer::HostAddress;
    pub use crate::datagrams::close::DatagramEnding;
    pub use crate::datagrams::engine::DatagramEngine;
    #[cfg(feature = "rdmacm")]
    pub use crate::datagrams::multicast::Memberships;
    pub use crate::engine::closing::{Closed, Closing};
    pub use crate::engine::leak::Leak;
    pub use crate::engine::transfer::Piece;
    #[cfg(feature = "rdmacm")]
    pub use crate::exchange::cm::CmDatagrams;
    #[cfg(feature = "rdmacm")]
    pub use crate::exchange::meeting::Meeting;
    pub use crate::lease::Lender;

    /// The protocol of connecting over datagrams, without I/O.
    pub mod datagram_exchange {
        pub use crate::datagram_exchange::{Acceptor, Answer, Connector, Request, RequestId, Step};
    }
}

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
