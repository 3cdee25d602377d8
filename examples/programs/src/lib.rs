//! Code shared by the example programs: options, TCP to the peer, waiting, progress, and how they
//! end.

mod account;
mod address;
mod descriptors;
mod device;
pub mod echo;
mod failure;
mod frame;
pub mod kv;
mod latencies;
mod listing;
mod logger;
mod memory;
mod meter;
pub mod names;
mod options;
mod output;
pub mod p9;
mod pages;
mod pattern;
mod pieces;
pub mod pingpong;
mod progress;
mod runtime;
pub mod silence;
mod tcp;
mod wait;

pub use account::missing_or_twice;
pub use address::{Address, AddressError};
pub use descriptors::many_descriptors;
pub use device::{check_size, open, open_each};
pub use failure::{Context, Failure, run};
pub use frame::{Frames, Hello};
pub use latencies::Latencies;
pub use listing::Listing;
pub use memory::memory;
pub use meter::{Costs, Meter};
pub use options::Common;
pub use output::{Measured, say};
pub use pages::{MemoryKind, Pages};
pub use pattern::{Mismatch, Pattern, check};
pub use pieces::{elements, in_memory};
pub use progress::Progress;
pub use runtime::runtime;
pub use tcp::{Listener, Peer};
pub use wait::{Patience, Waiter};

/// The workspace's README is compiled with the doctests.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
struct Readme;
