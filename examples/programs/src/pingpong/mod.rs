//! A message that goes back and forth, as in rdma-core's `ibv_rc_pingpong` and its siblings: what
//! the programs share.

mod buffers;
mod connected;
mod datagrams;
mod game;
mod link;
mod meet;
mod options;

pub use connected::connected;
pub use datagrams::datagrams;
pub use options::{Connected, Options};
