//! Async RDMA on any runtime: operations are futures and can be dropped at any point.
//!
//! An [`AsyncChannel`] is a reliable connection. Any number of tasks send, receive, write and read
//! on it at once. An operation takes its buffer by value, and returns it with the outcome. An
//! [`AsyncCq`] awaits the completions of requests that you post yourself. [`AsyncDatagrams`] sends to
//! and receives from any number of peers without a connection. An idle channel uses no CPU time, and
//! while completions keep arriving, no system calls are made. To spin instead of sleeping, use
//! [`verbs_channel`], the layer below.
//!
//! ```text
//! Context
//!   ├─ CqEvents (completion channel + CqNotifier)
//!   │    ├─► AsyncCq
//!   │    ├─► SharedMessages
//!   │    └─► AsyncGroup ── connect, listen ──► AsyncChannel
//!   │                                            │  ├─► IncomingMessages
//!   │                                            │  ├─► AsyncTransfer
//!   │                                            │  └─► ByteStream
//!   │        BufferPool ── take ──► OwnedBuffer ─┴─ send, receive, read …
//!   │                                    ▲                  │
//!   │                                    │                  ▼
//!   │      (Result<WorkSuccess>, OwnedBuffer) ◄──────── Operation
//!   │
//!   └─ DeviceEvents ── next ──► events, besides those that fail the operations
//! ```
//!
//! # Quick start
//!
//! This example has both ends in one process and needs no runtime. Usually each end is in its own
//! process, and they [connect](AsyncGroup::connect) over TCP.
//!
//! ```no_run
//! use verbs_async::verbs_channel::{BufferPool, Channel};
//! use verbs_async::verbs_core::Context;
//! use verbs_async::{AsyncGroup, CqEvents, Result};
//!
//! async fn hello() -> Result<()> {
//!     let pd = Context::first_active()?.alloc_pd()?;
//!     let events = CqEvents::create_thread(pd.context())?; // or create_tokio, create_async_io
//!     let group = AsyncGroup::new(Channel::builder(&pd), 2, &events)?;
//!     let (left, right) = group.loopback()?;
//!
//!     let pool = BufferPool::new(&pd, 4096, 2)?;
//!     let receive = right.receive(pool.take_when_free().await);
//!     let hello = pool.take_when_free().await.filled(b"hello")?;
//!     left.send(hello).await.0?;
//!     let (received, inbox) = receive.await;
//!     assert_eq!(received?.message_in(&inbox), Some(&b"hello"[..]));
//!     left.close().await?;
//!     Ok(())
//! }
//! ```
//!
//! An operation resolves to a pair, `(result, buffer)`: the buffer comes back whatever the result is. `.await.0?` drops
//! it, and so does [`.result().await?`](Operation::result).
//!
//! [`CqEvents`] joins the crate to a runtime, and is the only thing that does: one for each device is enough, as any
//! number of groups, queues and datagram endpoints share it.
//!
//! The feature `tokio` or `async-io` adds support for that runtime: `cargo add verbs-async --features tokio`.
//! One call connects to a server: [`AsyncChannel::connect`]. Its docs show both ends of a connection between two
//! processes; a program in tokio also needs `cargo add tokio --features macros,net,rt-multi-thread`. The lesson
//! `hello_async_server` of the examples is a server: a task for each client, and a time limit around each wait.
//!
//! # Errors
//!
//! The `Display` of an error is one clause, and its causes are in its
//! [`source`](std::error::Error::source). [`ErrorChain`] prints all of them in one line:
//! `eprintln!("{}", ErrorChain::new(&error))`. `Debug` prints the same line, followed by the variant. A `main` that
//! returns the error prints that:
//!
//! ```text
//! Error: the channel is down: the peer closed the connection [Transport(Rejected(Down(PeerClosed)))]
//! ```
//!
//! # Who polls the completion queue
//!
//! Some task has to poll the completion queue and wake the tasks whose operations completed. If
//! one fixed task did this, all others would sleep forever once that task was dropped, leaked or no
//! longer polled. Here no task is special: any operation that is polled drives the queue.
//!
//! - Polling an operation that has not completed polls the queue. If completions of other
//!   operations are found, their outcomes are stored until their futures take them, and only the
//!   tasks that await them are woken.
//! - If the queue is empty, it is armed and polled once more. The next completion raises an event
//!   on the completion channel, whose descriptor a [`CqNotifier`] watches. The notifier wakes a
//!   waker of this crate, which takes the event, polls the queue, and wakes the tasks whose
//!   operations completed.
//!
//! So each sleep costs one arming and one event. As long as polling finds completions, the queue is
//! not armed and raises no events. A group can [poll for a while](AsyncGroup::set_busy_poll) before
//! it arms.
//!
//! The call that begins an operation posts it. If its queue is full, the operation waits in the
//! backlog of that queue, and is posted when there is room, first come, first served. The backlog
//! is [bounded](AsyncChannel::ready).
//!
//! # Calls that block
//!
//! The handshake of a connection includes a call in which the kernel resolves the peer's address.
//! On RoCE this call takes about a second if the peer does not answer. So handshakes run on helper
//! threads of this crate. Up to 64 threads are started when needed; further handshakes are queued, and so are
//! registrations, which use the same threads. The peers at one address take a quarter of them at most, and so do those
//! that a datagram endpoint sends to.
//! Queue pairs are destroyed on threads of their own, up to 32, and host names are looked up on up to 8
//! more: neither waits for handshakes. Each [transfer over rails](transfer_over) has a thread.
//!
//! Calls that are not futures make their calls of the driver on the thread that calls them:
//! [`AsyncGroup::new`] and [`prepare`](AsyncGroup::prepare) create objects, and
//! [`into_stream`](AsyncChannel::into_stream) registers memory. So does the drop of the last of a group, its channels
//! and its events, which destroys the completion queue and closes the device. On most devices each takes microseconds to
//! milliseconds. Where the driver is slower, make such a call with `spawn_blocking` of your runtime, and connect with
//! [`AsyncGroup::connect`] or a [`Listener`], which prepare on helper threads.
//!
//! # Cooperative scheduling
//!
//! A task whose operations are always ready would keep its executor from running timers and other
//! tasks. So after every 64 ready polls on a thread, the next poll yields: it is [`Pending`], and its task is
//! woken. If the poll after that has another waker, it may yield, too. This works on
//! any executor, and without one: code that polls by hand just polls again.
//!
//! With the feature `tokio`, each ready poll also spends one unit of the budget of the tokio task that polls, as
//! tokio's own operations do, and a poll within tokio yields as
//! [`yield_now`](https://docs.rs/tokio/latest/tokio/task/fn.yield_now.html) does: the task goes on after tokio's
//! other tasks, timers and sockets had their turn. So, as with tokio's own operations, don't call the `block_on` of
//! another executor within a tokio task, which never returns from there to tokio: call it in `spawn_blocking` or
//! `block_in_place`.
//!
//! [`Pending`]: std::task::Poll::Pending
//!
//! # Cancelling
//!
//! | dropped | effect |
//! |---|---|
//! | an [`Operation`] in the backlog | It is not posted. Its buffer is dropped: it returns to its pool, or is deregistered and freed. |
//! | an [`Operation`] in flight | It continues. The channel keeps its buffer until its completion, and drops it then. |
//! | a receive in flight | As above, and the message that it receives is lost. Keep the operation, or use [`IncomingMessages`]. |
//! | a completed [`Operation`] | Its outcome and its buffer are dropped. |
//! | a timeout around `&mut operation` | The operation is not affected: await it again, or drop it. |
//! | [`IncomingMessages::next`], [`SharedMessages::next`], [`DeviceEvents::next`], [`AsyncCq::poll`] | Nothing is lost: the next call returns the message, event or completion. |
//! | [`AsyncCq::poll_wr_id`] | The completion is kept until a later `poll_wr_id` or `poll` takes it. |
//! | [`AsyncTransfer::finish`], [`finish_by`](AsyncTransfer::finish_by) | Its operations that have begun continue: call either again. |
//! | an [`AsyncTransfer`] | Operations in the backlog are not posted. The channels with operations in flight are taken down, and the buffers are dropped when the device has released them. |
//! | connecting or accepting | The channel and the stream are dropped. With `rdma_cm`, a helper thread drops the connection. |
//! | connecting over datagrams | The channel is dropped. The server times out, or has a channel whose peer is gone. |
//! | [`Listener::accept`], [`AsyncChannel::ready`] | Nothing is lost: the next call continues. |
//! | [`BufferPool::take_when_free`](verbs_channel::BufferPool::take_when_free) | If it already had a block, the next waiting task gets it. |
//! | [`cached_slice`] | A registration that has begun continues, and stays in the cache. |
//! | [`AsyncDatagrams::send_to`] | The datagram is not posted, and its buffer is dropped. |
//! | [`AsyncDatagrams::receive_from`], [`AsyncDatagrams::flush`] | Nothing is lost: the next call continues. |
//! | [`AsyncDatagrams::close`] | The endpoint is down, and its queue pair is destroyed on a helper thread. |
//! | [`AsyncChannel::close`] | The channel is closed without waiting, as when it is dropped. |
//! | [`AsyncGroup::closed`] | No effect. |
//! | an [`AsyncChannel`] | Its queue pair is destroyed on a helper thread, and then its operations in flight are aborted. |
//!
//! A leaked future never releases its buffer, slot or block. It delays no other operation of a
//! channel. A turn that it waited for is lost to others: the
//! completion of [`AsyncCq::poll_wr_id`], a block of
//! [`BufferPool::take_when_free`](verbs_channel::BufferPool::take_when_free), a message of
//! [`SharedMessages::next`].
//!
//! # Timeouts
//!
//! A future that connects, accepts or joins does nothing before it is first polled, and its timeout counts from then.
//! So one that is kept before it is awaited ends that much later: put your runtime's timeout at a fixed instant around
//! it if that matters. The deadline of [`AsyncTransfer::finish_by`] holds from the call on, as its operations are in
//! flight.
//!
//! # When the peer leaves
//!
//! A channel that was connected over TCP keeps that connection, and
//! [watches](AsyncChannel::watch_peer) it with a second notifier. The channel goes down when the
//! peer closes its channel, its process ends or its host dies, whether or not a task waits. The
//! reason is [`DownReason::PeerClosed`](verbs_channel::DownReason::PeerClosed) or
//! [`PeerLost`](verbs_channel::DownReason::PeerLost). Everything that the peer sent is delivered
//! first. The next operation then returns an error, even if the peer closed the channel cleanly: a
//! server's loop ends if the error's [`down_reason`](Error::down_reason)
//! [`is_peer_closed`](verbs_channel::DownReason::is_peer_closed). See
//! [`verbs_channel`](verbs_channel#when-the-peer-leaves).
//!
//! # When the device fails
//!
//! A wait ends when its operation completes or fails, when the peer leaves, and when the queue can no longer be polled
//! or armed. Groups and datagram endpoints also take the events of their device, with a notifier of their [`CqEvents`].
//! If the device, the completion queue or a queue pair fails, or the device is removed, what uses it goes down at once,
//! and its waits end. The reason is [`DownReason::Event`](verbs_channel::DownReason::Event), or
//! [`Device`](verbs_channel::DownReason::Device) if the device gives no more events (`EIO`). This crate does not query
//! devices, as such a call may block the executor. So a failure that raises neither a completion nor an event ends no
//! wait: a timeout of your runtime around it does.
//!
//! Each event is taken once: `get_async_event` of the same context competes with this crate. Take the events from
//! [`DeviceEvents`] instead. An [`AsyncCq`] is watched if it is passed to [`DeviceEvents::watch_cq`].
//!
//! Put your runtime's timeout around each wait if no peer of the group is watched: if the
//! device does not flush a channel that is down, the operations in flight on it end only with
//! [`close`](AsyncChannel::close), [`abort`](AsyncChannel::abort) or a drop of the channel.
//!
//! # Other runtimes
//!
//! There are notifiers for tokio, for async-io (smol and others), and for programs without a
//! runtime, which use a thread of this crate. A [`CqNotifier`] for another runtime takes about
//! thirty lines: see [`notifier`].
//!
//! # Calls of the driver
//!
//! Operations, and all that waits for them, call the driver only to post, poll and arm, and to end leases. Everything else that
//! may block runs on helper threads, but for these calls. They return after microseconds with most drivers, and after seconds with some
//! whose device fails. Where that matters, make them in your runtime's `spawn_blocking`:
//!
//! | call | verbs |
//! |---|---|
//! | [`AsyncGroup::new`], and the drop of all that belongs to a group | `ibv_create_cq`, `ibv_alloc_mw`; `ibv_destroy_cq`, `ibv_dealloc_mw` |
//! | [`AsyncGroup::prepare`], [`AsyncGroup::loopback`]; the drop of a `PreparedChannel` | `ibv_create_qp`, `ibv_modify_qp`; `ibv_destroy_qp` |
//! | [`AsyncGroup::join`], and all that connects, when the group grows | `ibv_resize_cq` |
//! | the drop of `Rails` that [`transfer_over`] has returned or handed back | `ibv_destroy_qp` |
//! | [`AsyncChannel::into_stream`], and the drop of the stream | `ibv_reg_mr`; `ibv_dereg_mr` |
//! | [`AsyncChannel::lease`], [`AsyncChannel::revoke`]; the drop of a lease, the end of a channel that has leases, and [`AsyncTransfer::finish`] and [`finish_by`](AsyncTransfer::finish_by), which end those of a transfer that fails | `ibv_reg_mr`, `ibv_alloc_mw`; `ibv_dereg_mr`, `ibv_dealloc_mw` |
//! | the last drop of a pool, shared memory, domain or device | `ibv_dereg_mr`, `ibv_dealloc_pd`, `ibv_close_device` |
//!
//! Some of them query the device, too.
//!
//! # What this crate does not do
//!
//! Operations have no timeouts: use your runtime's timeout around them. To get the memory of
//! operations back after a timeout, use an [`AsyncTransfer`].
//!
//! # Features
//!
//! - `tokio`: its notifier, and its I/O traits for [`ByteStream`].
//! - `async-io`: its notifier.
//! - `dlopen`: libibverbs is loaded at run time. See this feature of `verbs-core`.
//! - `rdmacm`: channels connect by `rdma_cm`, at the IP address of an RDMA device: to a `Peer::cm`, and with a
//!   `Bind::cm`. iWARP devices can connect only by `rdma_cm`. So connecting over TCP uses it for them. Datagram endpoints find each other with `AsyncDatagrams::find_cm` and
//!   `answer_cm`.
//!
//! None is on by default. All can be on at the same time.
//!
//! # Requirements
//!
//! Those of [`verbs_channel`]. Notifiers need Linux.
//!
//! # Thread safety
//!
//! All types are `Send` and `Sync`: any task on any thread may use a channel and await an
//! operation.
//!
//! # Resource cleanup
//!
//! | end | operations in flight |
//! |---|---|
//! | [`AsyncChannel::close`] | sends, writes, reads and atomics finish; receives are aborted. It waits until the device is done with all memory. |
//! | [`AsyncChannel::abort`] | are aborted, without waiting: to wait, close the channel afterwards. |
//! | [`AsyncGroup::abort_all`] | are aborted, on all channels, without waiting: [`AsyncGroup::closed`] does that. |
//! | a drop of the channel | are aborted, without waiting. |
//!
//! No drop of these types waits for completions. None blocks while the driver destroys a queue pair, which takes some drivers
//! seconds: a helper thread does that, and then releases the buffers of the operations. If no thread can be started,
//! the thread that drops the channel does it. [`AsyncChannel::close`] returns when this
//! is done, and [`AsyncGroup::closed`] waits for it for all dropped channels. If the driver fails to destroy the
//! queue pair, the buffers are leaked and an error is logged. A dropped [`ByteStream`] still sends what was written
//! to it, in the background, for a limited time.
//!
//! There is one exception. If the driver accepts only part of a post, the posting thread destroys the queue pair itself.
//!
//! In the child of a `fork(2)`, all of this can be dropped, and nothing else be done with it: a drop touches nothing of
//! the device's, starts no thread and waits for none, and leaves the parent's descriptors registered with its notifiers.
//! See [verbs-core](verbs_channel::verbs_core#fork).
//!
//! # Further reading
//!
//! The [guide](verbs_channel::guide) is for those who are new to RDMA: objects, memory, limits, and the
//! causes of common errors. See also [`verbs_channel`] and [`verbs_core`], and the manual pages that they
//! name. If you know `rdma-io` or `async-rdma`, see
//! [`from_rust`](https://docs.rs/verbs-async/latest/verbs_async/from_rust/).
// The nightly toolchain of docs.rs labels what a feature adds.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "rdmacm"),
    expect(dead_code, reason = "only connections by `rdma_cm` use all of it")
)]

// rustdoc lists methods in the order of the modules: those of datagrams before their connections.
mod channel;
mod datagrams;

mod connect;
mod cq;
mod device_events;
mod driver;
mod engine;
mod error;
#[cfg(test)]
mod error_chains;
mod events;
// Only with all features: it links to what each of them adds.
#[cfg(all(feature = "async-io", feature = "rdmacm", feature = "tokio"))]
#[doc = include_str!("from_rust.md")]
pub mod from_rust {}
mod group;
pub mod notifier;
mod stream;
mod task;
mod threads;

pub use channel::{
    AsyncChannel, AsyncTransfer, IncomingMessage, IncomingMessages, Operation, OperationResult,
    Payload, RailsTransfer, transfer_over,
};
pub use connect::{Bind, HandshakeResult, Listener};
#[cfg(feature = "rdmacm")]
pub use connect::{CmDatagramListener, CmDatagramRequest};
pub use cq::{AsyncCq, CqPollState};
pub use datagrams::AsyncDatagrams;
pub use device_events::DeviceEvents;
pub use error::{Error, Result};
pub use events::CqEvents;
pub use group::{AsyncGroup, SharedMessages};
#[doc(inline)]
pub use notifier::CqNotifier;
pub use stream::{ByteStream, OwnedReadHalf, OwnedWriteHalf, ReuniteError, StreamError};
pub use threads::cached_slice::cached_slice;
pub use verbs_channel;
pub use verbs_channel::verbs_core;
pub use verbs_channel::verbs_core::error::ErrorChain;

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
