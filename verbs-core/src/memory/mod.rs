//! Registered memory: regions, and the elements that work requests are made of.
//!
//! A device reaches memory only through a *region*: pinned pages with a key. There are four types of
//! regions. They differ in who owns the bytes and who may access them:
//!
//! | region | the bytes | a peer may reach it | elements |
//! |---|---|---|---|
//! | [`MemoryRegion`] | owned or mutably borrowed; `&[u8]` at any time | never | [`GatherElement`], [`ScatterElement`] |
//! | [`SharedRegion`] | owned; copies and atomics only | yes, by its [`AccessFlags`] | [`SharedElement`] |
//! | [`RawRegion`] | kept by any value, by raw pointer | by its flags | [`SharedElement`] |
//! | [`DmabufRegion`] | a device's, by file descriptor | by its flags | [`SharedElement`] |
//!
//! # When a device may touch a buffer
//!
//! - A *local* buffer: from the post of a work request that names it, until that request's own
//!   completion or the completion of any later signalled request of the same send queue has been
//!   polled, or until the queue pair has been destroyed or reset.
//! - A buffer that a *peer* may reach: at any moment from registration to deregistration.
//!
//! At all other times the bytes belong to Rust. The `# Safety` section of each post refers to this.

// First: rustdoc lists the methods of a protection domain in the order of the modules.
mod region;
mod shared;

mod access;
mod advice;
mod buffer;
mod chain_element;
mod debug_regions;
mod dmabuf;
mod element;
mod external;
mod huge_pages;
mod list;
pub(crate) mod range;
mod raw;
mod remote;
mod shared_element;
mod slice;
mod subrange;
mod window;

pub use access::AccessFlags;
pub use advice::MrAdvice;
pub use buffer::{Buffer, Plain};
pub use chain_element::{ChainGather, ChainScatter};
pub use dmabuf::DmabufRegion;
pub use element::{Element, Gather, GatherElement, Scatter, ScatterElement, Sge};
pub use huge_pages::HugePages;
pub use raw::RawRegion;
pub use region::MemoryRegion;
pub use remote::RemoteMemoryRegion;
pub use shared::SharedRegion;
pub use shared_element::SharedElement;
pub use subrange::{Chunks, Part};
pub use window::{MemoryWindow, MwBindInfo, MwType};

#[cfg(debug_assertions)]
pub(crate) use debug_regions::is_of_another;
pub(crate) use list::{compact, total_len};
pub(crate) use range::indices;
