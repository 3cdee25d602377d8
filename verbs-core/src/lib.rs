//! RDMA verbs as RAII types, typed work requests and spin polling, with C's control and C's speed.
//!
//! This is the layer for those who want verbs as they are: each object of libibverbs is a type that
//! frees itself in the right order, each request and completion a typed value, each refusal an error
//! with words. There is no policy and no hidden cost: on the data path no thread, lock, allocation,
//! log, format, or branch on configuration. Posting is `unsafe`, with a contract that can be ticked
//! off. For a safe API over this one use `verbs-channel`, and `verbs-async` in async code; to write a
//! layer of your own, this one or [`verbs_sys`].
//!
//! ```text
//! Device ── open ──► Context ──┬── alloc_pd ──► ProtectionDomain ──┬── reg_mr ──────► MemoryRegion
//!                              │                                   ├── reg_shared ──► SharedRegion
//!                              ├── CompletionChannel               │
//!                              │          │ announces              │
//!                              └── CompletionQueue ────────────────┴── QueuePair::builder
//!                                         ▲                                    │ build
//!                                         │                                    ▼
//!                                         │                           PreparedQueuePair
//!                                         │                             endpoint ⇄ the peer's
//!                                         │                                    │ handshake
//!                                         │ completions                        ▼
//!                                       card ◄────── work requests ──────── QueuePair
//! ```
//!
//! *Invariant:* dependencies point down only: this crate knows [`verbs_sys`], which it re-exports
//! whole, and no layer above.
//!
//! *Invariant:* the data path hides no cost. It is in three places: `queue_pair/post.rs`,
//! `completion/poll.rs` and `work_request/`.
//!
//! # Quick start
//!
//! Two queue pairs of one process send a message from one to the other:
//!
//! ```no_run
#![doc = include_str!("../tests/device/quick_start.rs")]
//! ```
//!
//! # The life of a work request
//!
//! 1. An *element* is a slice that knows its key: [`MemoryRegion::gather_element`] to send from,
//!    [`MemoryRegion::scatter_element`] to receive into, [`SharedRegion::element`] for both.
//! 2. A *work request* is a value on the stack: [`SendWorkRequest`], [`WriteWorkRequest`],
//!    [`ReadWorkRequest`], [`AtomicWorkRequest`], [`ReceiveWorkRequest`]. It can be kept and posted
//!    again.
//! 3. A *post* hands one or a chain of them to the card: [`QueuePair::post_send`] and its likes, or
//!    [`QueuePair::post`] for a chain of several kinds. From here on the buffers are the card's.
//! 4. A *completion* comes out of [`CompletionQueue::poll`] and gives them back:
//!    [`WorkCompletion::result`] says how it ended. A request that failed is data, not an error of
//!    `poll`; its queue pair is in ERROR from then on, and everything else that was posted on it
//!    completes as flushed.
//!
//! # What this crate does not do
//!
//! It does not count what is in flight: a queue that is posted too much refuses
//! ([`PostError::is_full`]), a completion queue that overruns breaks. It does not keep buffers until
//! they are done with, wait, time out, or connect: that is the business of the layers above. Of the
//! transports it has RC, the reliable connection.
//!
//! # Features
//!
//! - `serde`: `Serialize` and `Deserialize` for what peers exchange ([`QueuePairEndpoint`],
//!   [`RemoteMemoryRegion`]), for attributes ([`DeviceAttr`], [`PortAttr`], [`GidEntry`]) and for the
//!   types that mirror C enums. What is deserialized is checked. In human-readable formats the enums,
//!   [`AccessFlags`], [`Gid`] and [`Guid`] are text, as their `Display` prints it.
//!
//! # Requirements
//!
//! Those of [`verbs_sys`]: 64-bit Linux, rdma-core 36 or newer, pkg-config and libclang for the
//! build. To run: an RDMA device, or soft-RoCE (`rdma_rxe`), and enough locked memory
//! (`ulimit -l`).
//!
//! # Thread safety
//!
//! All objects are `Send` and `Sync`, as libibverbs promises ("By default all verbs objects are safe
//! for multi-threaded access", `ibv_alloc_td(3)`): posting and polling from several threads is
//! allowed, and serialised by the driver. After `fork(2)` the child must open the device anew; see
//! [`fork_init`].
//!
//! # Resource cleanup
//!
//! A child keeps its parents, so C's order of destruction holds whatever the order of drops. `Drop`
//! never panics and never waits for a peer; if the driver refuses, it logs and leaks. `close` (for
//! regions `dereg`) says how it went instead. What a peer may reach is never freed before it is
//! deregistered, and leaked if that fails.
//!
//! # Further reading
//!
//! `ibv_post_send(3)`, `ibv_poll_cq(3)`, `ibv_modify_qp(3)`, and the
//! [rdma-core](https://github.com/linux-rdma/rdma-core) sources. Every wrapped item is found by its
//! C name in the search box.

mod completion;
mod context;
mod device;
mod device_attr;
mod error;
mod event;
mod fd;
mod gid;
mod handle;
mod logged;
mod macros;
mod memory;
mod mtu;
mod names;
mod path;
mod port;
mod protection_domain;
mod queue_pair;
mod rejected;
mod ret;
mod work_request;

pub use completion::{
    CompletionChannel, CompletionQueue, CompletionQueueBuilder, Completions, CqEvent, PollError,
    PollSlot, PolledCompletions, WcOpcode, WcStatus, WorkCompletion, WorkError, WorkSuccess,
};
pub use context::{Context, fork_init};
pub use device::{Device, Guid, NodeType, ParseGuidError, TransportType};
pub use device_attr::{AtomicCap, DeviceAttr, DeviceAttrEx};
pub use error::{EndpointError, Error, ErrorChain, ErrorKind, GidPath, Result};
pub use event::{AsyncEvent, EventElement, EventType};
pub use gid::{Gid, GidEntry, GidType};
pub use memory::{
    AccessFlags, Buffer, Chunks, DmabufRegion, Element, Gather, GatherElement, MemoryRegion, Plain,
    RawRegion, RemoteMemoryRegion, Scatter, ScatterElement, Sge, SharedElement, SharedRegion,
};
pub use mtu::MaximumTransferUnit;
pub use names::ParseNameError;
pub use path::AhAttr;
pub use port::{LinkLayer, LinkSpeed, LinkWidth, PhysState, PortAttr, PortState};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{
    AckTimeout, ENDPOINT_VERSION, MaxAckRetries, MaxRnrRetries, MigState, MinRnrTimer,
    PacketSequenceNumber, PostError, PreparedQueuePair, QpAttr, QpAttrMask, QpCap, QpState,
    QueuePair, QueuePairBuilder, QueuePairEndpoint, QueuePairEndpointBuilder,
};
pub use rejected::Rejected;
pub use work_request::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkRequest,
    WriteWorkRequest,
};

pub use verbs_sys;

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
