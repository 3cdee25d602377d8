//! RDMA verbs as RAII types, typed work requests and spin polling, with C's control and C's speed.
//!
//! This layer is for programs that want verbs as they are. Each object of libibverbs is a type that
//! frees itself in the right order. Each request and completion is a typed value. Each failure is an
//! error with the verb, the errno, and what to do. There is no policy and no hidden cost: the data
//! path uses no threads and no locks, allocates, logs and formats nothing, and does not branch on
//! configuration. Posting is `unsafe`, with a contract that the caller can check point by point. For a
//! safe API use `verbs-channel`, and in async code `verbs-async`. To write a layer of your own, use
//! this one or [`verbs_sys`].
//!
//! ```text
//! Device ── open ──► Context
//!   ├─ alloc_pd ──► ProtectionDomain
//!   │                 ├─ reg_mr ──────► MemoryRegion
//!   │                 ├─ reg_shared ──► SharedRegion
//!   │                 ├─ register_raw, reg_dmabuf_mr ──► RawRegion, DmabufRegion
//!   │                 ├─ alloc_mw ────► MemoryWindow
//!   │                 └──────────────────┐
//!   ├─ CompletionChannel                 │
//!   │         │ announces                │
//!   └─ CompletionQueue ──────────────────┴─ QueuePair::builder
//!             ▲                                      │ build
//!             │                                      ▼
//!             │                              PreparedQueuePair
//!             │                                endpoint ⇄ the peer's
//!             │                                      │ handshake
//!             │ completions                          ▼
//!          device ◄──────── work requests ────── QueuePair
//! ```
//!
//! # Quick start
//!
//! One queue pair sends a message to another in the same process:
//!
//! ```no_run
//! use verbs_core::{
//!     CompletionQueue, Context, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::first_active()?;
//! let pd = context.alloc_pd()?;
//! // It needs an entry for each request in flight: two here.
//! let cq = CompletionQueue::create(&context, 16)?;
//!
//! // Usually the two ends are in two processes, which exchange their endpoints as bytes.
//! let left = QueuePair::builder(&pd, &cq, &cq).build()?;
//! let right = QueuePair::builder(&pd, &cq, &cq).build()?;
//! let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! let left = left.handshake(&to_right)?;
//! let right = right.handshake(&to_left)?;
//! // From here on either may send. In two processes, each first learns from the other that it has come so far.
//!
//! let hello = pd.reg_mr(b"hello".to_vec())?;
//! let mut inbox = pd.reg_mr(vec![0_u8; 64])?;
//! let mut room = inbox.scatter_element(..)?;
//! let mut message = hello.gather_element(..)?;
//!
//! // Sound: `inbox` is not accessed until the completion has been polled, and dropped later.
//! unsafe { right.post_receive(&mut ReceiveWorkRequest::new(&mut room).wr_id(1))? };
//! // Sound: `hello` is not written to until the completion has been polled, and dropped later.
//! unsafe { left.post_send(&mut SendWorkRequest::new(&mut message).wr_id(2))? };
//!
//! let mut slots = [const { PollSlot::new() }; 4];
//! let mut in_flight = 2;
//! while in_flight > 0 {
//!     for completion in cq.poll(&mut slots)? {
//!         let success = completion.result()?;
//!         println!("{}: {:?}", success.wr_id(), success.opcode());
//!         in_flight -= 1;
//!     }
//! }
//! assert_eq!(&inbox[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # The life of a work request
//!
//! 1. An *element* is a registered slice with its key: [`MemoryRegion::gather_element`] to send from,
//!    [`MemoryRegion::scatter_element`] to receive into, [`SharedRegion::element`] for both.
//! 2. A *work request* is a value on the stack: [`SendWorkRequest`], [`WriteWorkRequest`],
//!    [`ReadWorkRequest`], [`AtomicWorkRequest`](work_request::AtomicWorkRequest), [`ReceiveWorkRequest`]. It can be
//!    kept and posted again. It borrows its list of elements mutably, since it moves empty elements out of the way. A [`RequestChain`](work_request::RequestChain) owns many requests of one kind: it is
//!    built once, patched in place, and posted whole or in parts.
//! 3. A *post* hands a request, or a chain of requests, to the device: [`QueuePair::post_send`] and
//!    similar functions for one kind, [`QueuePair::post`] for a chain of several kinds, or
//!    [`QueuePair::post_chain`] for a chain that was built once. From then on the device may use the
//!    buffers.
//! 4. A *completion* comes out of [`CompletionQueue::poll`] and gives the buffers back.
//!    [`poll`](CompletionQueue::poll) succeeds even if a request failed; [`result`](WorkCompletion::result) returns the
//!    failure. The queue pair of such a request is then in [`ERR`](codes::QpState::ERR), and everything else that was
//!    posted on it completes as flushed. After a failed send, a queue pair that is not RC may be in
//!    [`SQE`](codes::QpState::SQE) instead. Then only its sends are flushed.
//!
//! A [`SharedReceiveQueue`](shared_receive_queue::SharedReceiveQueue) holds receives for many queue pairs, so
//! memory for messages is needed once, not for each peer. A [`QueuePair`] that is [built on
//! one](queue_pair::QueuePairConfig::srq) has no `post_receive`.
//!
//! Datagrams need no connection: see [`DatagramQueuePair`](datagram::DatagramQueuePair).
//!
//! # What this crate does not do
//!
//! It does not count requests in flight. Posting to a full queue fails
//! ([`PostError::is_full`](error::PostError::is_full)), and a completion queue that overruns is unusable. It does
//! not keep a buffer for as long as the device uses it, wait for an operation, or exchange endpoints with a peer:
//! the layers above do.
//!
//! | feature of verbs | here |
//! |---|---|
//! | reliable and unreliable connections (RC, UC) | [`QpType`](codes::QpType) |
//! | datagrams (UD), multicast | [`DatagramQueuePair`](datagram::DatagramQueuePair) |
//! | shared receive queues | [`SharedReceiveQueue`](shared_receive_queue::SharedReceiveQueue) |
//! | on-demand paging (ODP) | [`AccessFlags::ON_DEMAND`], [`ProtectionDomain::advise_mr`] |
//! | memory of GPUs (dmabuf) | [`ProtectionDomain::reg_dmabuf_mr`] |
//! | thread domains, parent domains | [`ThreadDomain`](domain::ThreadDomain) |
//! | atomic compare-and-swap and fetch-and-add of 8 bytes | [`AtomicWorkRequest`](work_request::AtomicWorkRequest) |
//! | SRD of EFA | a queue pair that `efadv` has made: [`DatagramQueuePair::from_raw`](datagram::DatagramQueuePair::from_raw) |
//! | DC of mlx5 | a queue pair that `mlx5dv` has made: [`QueuePairEx`](queue_pair::QueuePairEx) |
//! | XRC | no |
//! | memory windows, invalidation of keys | [`MemoryWindow`](memory::MemoryWindow) |
//! | device memory | no |
//! | timestamps, extended completion queues | [`CompletionQueueEx`](completion::CompletionQueueEx) |
//! | `ibv_wr_*` | [`QueuePairEx`](queue_pair::QueuePairEx) |
//! | raw Ethernet packets, flow steering, tag matching | no |
//!
//! [`from_c`] lists by name the parts of libibverbs that are missing here; they can be called in
//! [`verbs_sys`].
//!
//! # Objects made by other libraries
//!
//! A provider's own library (`mlx5dv`, `efadv`) makes objects with properties that the verbs lack, and
//! other libraries have objects to share. Each type of this crate takes over such an object with the
//! unsafe `from_raw`, and passes its own object to C with `as_ptr`. The steps:
//!
//! 1. Create the parents with this crate, or take over existing ones with `from_raw`.
//! 2. Make the object in C.
//! 3. Take it over, and choose with [`Destroy`](ffi::Destroy) how it is destroyed. [`by_verb`](ffi::Destroy::by_verb)
//!    is right for nearly all objects, since those of providers are destroyed by the verbs of libibverbs, too.
//!    [`by`](ffi::Destroy::by) calls a function, and [`by_owner`](ffi::Destroy::by_owner) leaves the object to another
//!    owner.
//!
//! A mistake that can be detected, such as an object of another context, is an error. The contract under *Safety*
//! covers the rest. This queue pair is made in C, and then used like any other:
//!
//! ```no_run
//! use std::ptr::NonNull;
//!
//! use verbs_core::verbs_sys::{IBV_QPT_RC, ibv_create_qp, ibv_qp_cap, ibv_qp_init_attr};
//! use verbs_core::{CompletionQueue, Context, PreparedQueuePair, QueuePair};
//! use verbs_core::ffi::Destroy;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::first_active()?;
//! let pd = context.alloc_pd()?;
//! let cq = CompletionQueue::create(&context, 64)?;
//!
//! let mut attr = ibv_qp_init_attr {
//!     send_cq: cq.as_ptr(),
//!     recv_cq: cq.as_ptr(),
//!     cap: ibv_qp_cap {
//!         max_send_wr: 16,
//!         max_recv_wr: 16,
//!         max_send_sge: 1,
//!         max_recv_sge: 1,
//!         max_inline_data: 0,
//!     },
//!     qp_type: IBV_QPT_RC,
//!     ..Default::default()
//! };
//! // In its place: `mlx5dv_create_qp(context.as_ptr(), &mut attr_ex, &mut mlx5_attr)`.
//! let qp = unsafe { ibv_create_qp(pd.as_ptr(), &raw mut attr) };
//! let qp = NonNull::new(qp).ok_or_else(std::io::Error::last_os_error)?;
//!
//! let config = QueuePair::builder(&pd, &cq, &cq).config();
//! // Sound: it is an RC queue pair of these parents, and is destroyed by nothing else.
//! let prepared =
//!     unsafe { PreparedQueuePair::from_raw(qp, attr.cap, &config, Destroy::by_verb())? };
//! println!("{:?}", prepared.endpoint().to_bytes());
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `dlopen`: libibverbs is loaded at run time instead of linked, so that one program runs on machines with and
//!   without RDMA. If it is missing, [`Device::list`] and everything that calls it return [`Error::NoLibrary`]. A
//!   call that an older library lacks returns [`Error::Unsupported`].
//! - `rdmacm`: the module `rdmacm`, to connect queue pairs by IP address and port, as storage protocols do and iWARP
//!   requires. It needs librdmacm and its headers.
//! - `serde`: `Serialize` and `Deserialize` for what peers exchange ([`QueuePairEndpoint`],
//!   [`DatagramEndpoint`](path::DatagramEndpoint), [`RemoteMemoryRegion`]), for attributes
//!   ([`DeviceAttr`](device::DeviceAttr), [`PortAttr`](device::PortAttr), [`GidEntry`](device::GidEntry)) and for the
//!   types that mirror C enums. Deserialized values are checked. In human-readable formats, the enums,
//!   [`AccessFlags`], [`Gid`](codes::Gid) and [`Guid`](device::Guid) are text, as their `Display` prints it.
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
//! for multi-threaded access", `ibv_alloc_td(3)`). Several threads may post and poll at once; the
//! driver serialises them.
//!
//! Queue pairs and shared receive queues in a [`ThreadDomain`](domain::ThreadDomain) are the exception: the driver
//! does not lock them. Putting objects in one is `unsafe`: the caller promises that one thread at a time uses them.
//!
//! # Resource cleanup
//!
//! An object keeps its parents alive, so the order of drops does not matter. `Drop` never panics and
//! never waits for a peer. If the driver cannot destroy an object, `Drop` logs that and leaks it;
//! `close` (for regions `dereg`) returns the error instead. Memory that a peer can reach is
//! deregistered before it is freed, or leaked if deregistration fails.
//!
//! # Fork
//!
//! An object belongs to the process that made it. The child of a `fork(2)` has copies of the parent's
//! values, and may drop them, by a return or a panic, too: in the child, a drop calls no verb, logs
//! nothing, frees no registered buffer, and drops nothing that was given with a foreign object or memory.
//! `close` and `dereg` return [`Error::OtherProcess`]. The parent goes on as if nothing had happened.
//!
//! Everything else is for the parent only. A child must not post, poll, or call other methods of the parent's
//! objects: queues are memory that both have, so a poll takes the parent's completions. It must not access
//! registered buffers after [`fork_init`](device::fork_init), either. A child that needs RDMA opens the device again.
//!
//! The child has copies of all descriptors, until it ends or executes another program (they are
//! close-on-exec), even if it drops the objects. As long as it has them, the kernel ends nothing of what the parent
//! leaves behind when it ends without dropping: then peers do not notice its end.
//!
//! # Further reading
//!
//! The [guide](https://docs.rs/verbs-channel/latest/verbs_channel/guide/) is for those who are new to
//! RDMA: objects, operations, limits, and the causes of common errors.
//!
//! `ibv_post_send(3)`, `ibv_poll_cq(3)`, `ibv_modify_qp(3)`, and the
//! [rdma-core](https://github.com/linux-rdma/rdma-core) sources. The search box finds every wrapped
//! item by its C name, and [`from_c`] lists the names.
// The nightly toolchain of docs.rs labels what a feature adds.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Where the docs of the crates above link to if this crate's are not beside theirs.
#![doc(html_root_url = "https://docs.rs/verbs-core/latest")]

pub mod codes;
pub mod completion;
pub mod datagram;
pub mod device;
pub mod domain;
pub mod error;
pub mod ffi;
#[doc = include_str!("from_c.md")]
pub mod from_c {}
pub mod memory;
pub mod path;
pub mod queue_pair;
#[cfg(feature = "rdmacm")]
pub mod rdmacm;
pub mod shared_receive_queue;
pub mod work_request;

#[doc(inline)]
pub use codes::MaximumTransferUnit;
#[doc(inline)]
pub use completion::{CompletionQueue, PollSlot, PolledCompletions, WorkCompletion, WorkSuccess};
#[doc(inline)]
pub use device::{Context, Device};
#[doc(inline)]
pub use domain::ProtectionDomain;
#[doc(inline)]
pub use error::{Error, Result, WorkError};
#[doc(inline)]
pub use memory::{
    AccessFlags, GatherElement, MemoryRegion, RemoteMemoryRegion, ScatterElement, SharedRegion,
};
#[doc(inline)]
pub use queue_pair::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber, PreparedQueuePair,
    QueuePair, QueuePairEndpoint,
};
#[doc(inline)]
pub use work_request::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

pub use verbs_sys;

/// Not part of this crate's API: it is for the layers above, of the same version, and may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::domain::protection_domain::tag;
    pub use crate::error::debug::ErrorDebug;
    #[cfg(feature = "rdmacm")]
    pub use crate::error::examples::cm_failures;
    pub use crate::error::examples::{poll_error, post_errors, work_error};
    pub use crate::ffi::process::Process;
    pub use crate::ffi::random::random;
    pub use crate::memory::range::indices;
    pub use crate::queue_pair::post::assume_own_receives;
    pub use crate::work_request::chain::internal::{
        needs, number, of_any, put_request, set_options,
    };
}

/// The README's example is compiled with the doctests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
