//! The connection manager: librdmacm's functions, and the messages of the specification's chapter 12, in datagrams to queue
//! pair 1.
//!
//! ```text
//!   a program's rdma_* calls ──▶ calls, programs ──▶ Manager, under the network's lock ──▶ message ──▶ soft_nic
//!   rdma_get_cm_event ◀── taking ◀── events, with a descriptor ◀──┘
//! ```

mod calls;
mod events;
mod id;
mod lists;
mod manager;
mod message;
mod programs;
mod registry;
mod taking;

pub(crate) use id::Opened;
pub(crate) use manager::Manager;
