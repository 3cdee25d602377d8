//! Async RDMA on any runtime: operations that are futures, and can be dropped at any point.
//!
//! An [`AsyncChannel`] is a reliable connection on which any number of tasks send, receive, write and
//! read at once, with buffers that they give away and get back; an [`AsyncCq`] awaits the completions
//! of those who post by themselves. Idle costs nothing, and while completions keep coming there is no
//! system call. To spin instead of sleeping use [`verbs_channel`], the layer below.
//!
//! ```text
//! Context ── CqEvents (completion channel + CqNotifier) ──┬─► AsyncGroup ── connect, accept ──► AsyncChannel
//!    │                                                    └─► AsyncCq                              │
//!    └────── DeviceEvents ── watch ──► fatal events end what waits                                 │
//!                                                                                                  │
//!            BufferPool ── take ──► OwnedBuffer ── send, receive, write, read … ──► Operation ◄────┤
//!                                        ▲                                             │           │
//!                                        └───── (Result<WorkSuccess>, OwnedBuffer) ◄───┘           │
//!                                                     IncomingMessages, ByteStream ◄───────────────┘
//! ```
//!
//! *Invariant:* dependencies point down only: this crate knows [`verbs_channel`], which it re-exports
//! whole.
//!
//! *Invariant:* dropping a future at any await point loses no other operation's completion, frees no
//! buffer that the card may touch, and leaves no task asleep.
//!
//! *Invariant:* nothing here blocks on the network, and nothing that fails is silent.
//!
//! # Quick start
//!
//! Two ends in one process, with no runtime at all; in real life each is in its own, and they
//! [connect](AsyncGroup::exchange) over TCP.
//!
//! ```no_run
//! use verbs_async::verbs_channel::{BufferPool, Channel, verbs_core::Context};
//! use verbs_async::{AsyncGroup, CqEvents, Result};
//!
//! async fn hello() -> Result<()> {
//!     let pd = Context::first_active()?.alloc_pd()?;
//!     let events = CqEvents::create_thread(pd.context())?; // or create_tokio, create_async_io
//!     let group = AsyncGroup::new(Channel::builder(&pd), 2, &events)?;
//!     let (left, right) = group.loopback()?;
//!
//!     let pool = BufferPool::new(&pd, 4096, 2)?;
//!     let (mut outgoing, inbox) = (pool.take().expect("free"), pool.take().expect("free"));
//!     outgoing[..5].copy_from_slice(b"hello");
//!
//!     let receive = right.receive(inbox);
//!     let (sent, _outgoing) = left.send(outgoing).await;
//!     sent?;
//!     let (received, inbox) = receive.await;
//!     assert_eq!(&inbox[..received?.byte_len() as usize][..5], b"hello");
//!     left.close().await
//! }
//! ```
//!
//! # Who drives, and why
//!
//! Somebody has to poll the completion queue, and tell tasks whose completions were found. If that
//! were one of the tasks, the others would sleep on when it is dropped, leaked, or just not polled
//! again. Here nobody has that role: whoever is there drives.
//!
//! - An operation that is polled and is not done polls the queue. What it finds of others stays with
//!   the channel until they take it; it wakes those that wait for it, and nobody else.
//! - If the queue is empty it is armed, and polled once more. The next completion raises an event on
//!   the completion channel, whose descriptor a [`CqNotifier`] watches. The notifier has one waker,
//!   always this crate's: when that is woken, it takes the event and polls the queue right there, and
//!   wakes the tasks whose completions it found.
//!
//! So per sleep there is one arming and one event, and none while completions are found by polling.
//! A group can [poll for a while](AsyncGroup::set_busy_poll) before it arms.
//!
//! Operations are posted when they are begun, in the order of their calls. What finds no place in its
//! queue waits in line: whoever drives posts it, first come, first served. The line is
//! [bounded](AsyncChannel::ready).
//!
//! # Calls that block
//!
//! The kernel resolves a peer's address within the handshake: on RoCE that takes about a second if
//! the peer does not answer. So handshakes run on helper threads of this crate's own, started when
//! they are needed, up to 64; beyond that they are queued.
//!
//! # Turns
//!
//! A task whose operations are always done when they are polled would keep its executor from its
//! timers and other tasks. So after 64 that were ready on a thread the next poll is [`Pending`], and
//! wakes its task at once: on any executor, and without one. Whoever polls by hand polls again.
//!
//! [`Pending`]: std::task::Poll::Pending
//!
//! # Cancelling
//!
//! | dropped | what becomes of it |
//! |---|---|
//! | an [`Operation`] in line | it is not posted; its buffer is dropped: back to its pool, or deregistered and freed |
//! | an [`Operation`] in flight | it goes on; the channel keeps its buffer until its completion, and drops it then |
//! | … a receive among them | takes a message all the same, and the message is lost: keep the operation, or use [`IncomingMessages`] |
//! | … that is done | its outcome and buffer are dropped |
//! | a timeout around `&mut operation` | nothing: await the operation again, or drop it |
//! | [`IncomingMessages::next`], [`DeviceEvents::next`], [`AsyncCq::poll`] | nothing is lost: the next call gets it |
//! | [`AsyncCq::poll_wr_id`] | the completion is kept for whoever asks |
//! | connecting and accepting | the channel and the stream are given up |
//! | [`Listener::accept`](AsyncGroup::listen_tokio), [`AsyncChannel::ready`] | nothing is lost: the next call goes on |
//! | [`AsyncChannel::close`] | the channel is dropped |
//! | an [`AsyncChannel`] | its queue pair is destroyed; what was in flight ends as aborted, and its operations say so |
//!
//! A future that is leaked keeps its buffer's place, and hinders nobody.
//!
//! # When the peer leaves
//!
//! A channel that was connected over TCP keeps that connection, and has it
//! [watched](AsyncChannel::watch_peer) by a second notifier. When the peer closes its channel, when
//! its process ends or its host dies, the channel goes down, whether or not a task waits: with
//! [`DownReason::PeerClosed`](verbs_channel::DownReason::PeerClosed) or
//! [`PeerLost`](verbs_channel::DownReason::PeerLost), after everything that the peer sent has been
//! delivered. See [`verbs_channel`](verbs_channel#when-the-peer-leaves).
//!
//! # One more runtime
//!
//! tokio, async-io (smol and others) and a thread of this crate's own are there. To write a
//! [`CqNotifier`] for another takes some thirty lines: see [`notifier`].
//!
//! # What this crate does not do
//!
//! Operations have no timers: put your runtime's timeout around what may take too long.
//!
//! # Features
//!
//! - `tokio`: its notifier, connecting over its TCP, and its traits for [`ByteStream`].
//! - `async-io`: its notifier, and connecting over its TCP.
//!
//! None is on by default; they mix.
//!
//! # Requirements
//!
//! Those of [`verbs_channel`]. Notifiers need Linux.
//!
//! # Thread safety
//!
//! Everything is `Send` and `Sync`: any task on any thread may use a channel, and await an operation.
//!
//! # Resource cleanup
//!
//! Dropping waits for nobody. A channel's queue pair is destroyed first, and what its operations own is
//! released after. If the driver refuses even that, the buffers are leaked and the log says so. A
//! [`ByteStream`] still sends what was written to it, in the background, for a bounded time.
//!
//! # Further reading
//!
//! [`verbs_channel`] and [`verbs_core`](verbs_channel::verbs_core), and the manual pages they name.

mod blocking;
mod channel;
mod connect;
mod coop;
mod cq;
mod deferred;
mod device_events;
mod driver;
mod error;
#[cfg(test)]
mod error_chains;
mod events;
mod group;
mod incoming;
pub mod notifier;
mod operation;
mod peers;
mod ring;
mod shared;
mod stream;
mod sync;
mod wake;
mod watched;

pub use channel::AsyncChannel;
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub use connect::{Arrival, Listener};
pub use cq::{AsyncCq, CqPollState};
pub use device_events::DeviceEvents;
pub use error::{Error, Result};
pub use events::CqEvents;
pub use group::AsyncGroup;
pub use incoming::{IncomingMessages, Message};
#[doc(inline)]
pub use notifier::CqNotifier;
pub use operation::{Given, Operation};
pub use stream::{ByteStream, OwnedReadHalf, OwnedWriteHalf, ReuniteError, StreamError};
pub use verbs_channel;

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
