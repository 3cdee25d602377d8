//! A guide to RDMA and to these crates, for programmers who know TCP sockets.
//!
//! Read the first chapter first. After that, each chapter stands by itself.
//!
//! | chapter | answers |
//! |---|---|
//! | [RDMA and TCP](rdma_and_tcp) | What are the objects and the operations, and what happens in which order? |
//! | [Layers](layers) | Which of the crates is the right one for my program? |
//! | [Memory](memory) | Who may touch which bytes, and when? |
//! | [Endings](endings) | How does an operation end, and what if the peer is gone? |
//! | [A server](server) | How do I write a server, from nothing, in five steps? |
//! | [Performance](performance) | What makes a program fast, and what is worth the effort? |
//! | [Containers](containers) | What does a container or a pod need, and which limits apply? |
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

#[doc = include_str!("rdma_and_tcp.md")]
pub mod rdma_and_tcp {}

#[doc = include_str!("layers.md")]
pub mod layers {}

#[doc = include_str!("memory.md")]
pub mod memory {}

#[doc = include_str!("endings.md")]
pub mod endings {}

#[doc = include_str!("server.md")]
pub mod server {}

#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("containers.md")]
pub mod containers {}

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
