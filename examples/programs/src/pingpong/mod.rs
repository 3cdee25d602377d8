//! A message that goes back and forth, as in rdma-core's `ibv_rc_pingpong` and its siblings: what
//! the programs share.

mod buffers;
mod connected;
mod datagrams;
mod game;
mod link;
mod meet;
mod options;
mod queue;

pub use connected::connected;
pub use datagrams::datagrams;
pub use meet::meet;
pub use options::{Connected, Options};
pub use queue::{Queue, RECEIVE, SEND, finish};
