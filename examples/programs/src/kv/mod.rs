//! Code shared by clients and server of a key-value store: messages, records, and a load.

pub mod load;
mod protocol;
pub mod record;

pub use protocol::{Bad, HEADER, MAX_KEY, Reply, Request, Values, Welcome};
