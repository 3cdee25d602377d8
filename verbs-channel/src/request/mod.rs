//! Requests: what can be posted.

mod chain;
mod list;
mod needs;
mod owned;
mod work;

pub use chain::OwnedChain;
pub use list::{GatherList, List, ScatterList};
pub(crate) use needs::{Needs, opcode_flag, opcode_in};
pub(crate) use owned::Op;
pub use owned::OwnedRequest;
pub(crate) use work::sealed;
pub use work::{Incoming, Outgoing, Request};
