//! A guide to RDMA and to these crates, for programmers who know TCP sockets.
//!
//! Begin with the first chapter. The others can be read in any order.
//!
//! | chapter | answers |
//! |---|---|
//! | [RDMA and TCP](rdma_and_tcp) | What are the objects and the operations, and what happens in which order? |
//! | [Layers](layers) | Which of the crates is the right one for my program? |
//! | [Memory](memory) | Who may access which bytes, and when? |
//! | [Lending memory to a peer](lending) | How do I take memory back from a peer that may be late? |
//! | [Endings](endings) | How does an operation end, and what if the peer is gone? |
//! | [A server](server) | How do I write a server, from nothing, in five steps? |
//! | [Performance](performance) | What makes a program fast, and what is worth the effort? |
//! | [Containers](containers) | What does a container or a pod need, and which limits apply? |
//! | [Testing](testing) | How do I test my program without an RDMA device? |
//! | [Debugging](debugging) | Where do I look first? |
//! | [Faults](faults) | How does each fault show on each layer, and within what time? |
//! | [Troubleshooting](troubleshooting) | What does this error mean, and how do I fix it? |
//!
//! If you know the C API, [`verbs_core::from_c`] has the Rust name of each C name. If you know another RDMA
//! crate, see [what is called what](from_rust) here.
//!
//! Every block of Rust in the guide is compiled by the tests of this crate, and every error text is
//! compared with what the code prints. To run the blocks without an RDMA device, see
//! [soft-RoCE](debugging#soft-roce-rdma-without-a-device).
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | *queue pair* (QP), *completion queue* (CQ), *region* (MR), *protection domain* (PD) | [the objects](rdma_and_tcp#the-objects) |
//! | *verb* | a function of the C API, libibverbs |
//! | *provider* | the device's driver in user space: a plugin of libibverbs |
//! | *request*, *post* | what the device is to do, and the call that puts it into a queue |
//! | *element* | [a part of a region](memory#registered-memory), of which requests are made |
//! | *completion* | the entry that the device adds to a completion queue when a request has ended |
//! | *flushed* | completed with an error, since the queue pair has failed or was closed; the peer may have received [the request](endings#outcomes), or a part of it |
//! | *poll*, *arm*, *event* | to look for completions; to ask for an event at the next one, for which a thread [can sleep](performance#polling-or-sleeping) |
//! | *two-sided*, *one-sided* | [operations](rdma_and_tcp#the-operations) with the peer's program, and without it |
//! | *immediate* | 32 bits that a send or a write can carry; of a write, only these reach [the peer's program](rdma_and_tcp#the-operations) |
//! | *doorbell*, *batch*, *chain* | a write to the device, after which it looks for new requests; [several requests with one](performance#batches-and-chains-one-doorbell-one-completion) |
//! | *inline* | a request that [carries its bytes](performance#inline) |
//! | *shared receive queue* | [receives for many queue pairs](server#step-5-many-clients) |
//! | *endpoint* | what a peer needs to [connect](rdma_and_tcp#how-two-sides-connect) to a queue pair |
//! | *GID* | an address of a port; on RoCE it is made of [an IP address](containers#network-namespaces) |
//! | *RNR* | "receiver not ready": [no receive was posted](rdma_and_tcp#what-happens-in-which-order) |
//! | *backpressure* | a rejection because [a queue is full](endings#outcomes) |
//! | *down* | of a channel: it [takes no more requests](endings#outcomes) |

#[doc = include_str!("rdma_and_tcp.md")]
pub mod rdma_and_tcp {}

#[doc = include_str!("layers.md")]
pub mod layers {}

#[doc = include_str!("memory.md")]
pub mod memory {}

#[doc = include_str!("lending.md")]
pub mod lending {}

#[doc = include_str!("endings.md")]
pub mod endings {}

#[doc = include_str!("server.md")]
pub mod server {}

#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("containers.md")]
pub mod containers {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("debugging.md")]
pub mod debugging {}

#[doc = include_str!("faults.md")]
pub mod faults {}

#[cfg_attr(feature = "rdmacm", doc = "[`rdmacm`]: crate::verbs_core::rdmacm")]
#[cfg_attr(
    not(feature = "rdmacm"),
    doc = "[`rdmacm`]: crate::verbs_core#features"
)]
#[doc = include_str!("from_rust.md")]
pub mod from_rust {}

// One page, to be searched for the words of an error.
#[doc = include_str!("troubleshooting/machine.md")]
#[doc = include_str!("troubleshooting/connecting.md")]
#[doc = include_str!("troubleshooting/running.md")]
pub mod troubleshooting {}
