//! Requests: what can be posted.

mod chain;
mod list;
mod work;

pub use chain::{OwnedChain, OwnedRequest};
pub use list::{GatherList, List, ScatterList};
pub(crate) use list::{Place, sealed::Sealed};
pub use work::{Incoming, Outgoing, Request};
pub(crate) use work::{Needs, Op, opcode_flag, opcode_in};
