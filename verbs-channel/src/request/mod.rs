//! Requests: what can be posted.

mod chain;
mod list;
mod op;
mod owned;
mod work;

pub use chain::OwnedChain;
pub use list::{GatherList, List, ScatterList};
pub(crate) use list::{Place, sealed::Sealed};
pub(crate) use op::{Needs, Op, opcode_flag, opcode_in};
pub use owned::OwnedRequest;
pub use work::{Incoming, Outgoing, Request};
