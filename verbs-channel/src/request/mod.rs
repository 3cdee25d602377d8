//! Requests: what can be posted.

mod chain;
mod list;
mod opcodes;
mod work;

pub use chain::{OwnedChain, OwnedRequest};
pub use list::{GatherList, List, ScatterList};
pub(crate) use list::{Place, sealed::Sealed};
pub(crate) use opcodes::Opcodes;
pub use work::{Incoming, Outgoing, Request};
pub(crate) use work::{Needs, Op};
