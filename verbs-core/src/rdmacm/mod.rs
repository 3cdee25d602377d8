//! Connecting by the RDMA connection manager (librdmacm), with IP addresses and ports.
//!
//! Storage protocols connect in this way, and iWARP devices connect in no other way. The connection
//! manager finds the device and the path to an IP address, and carries a [`Message`] with the request
//! and with the answer. Queue pairs are always those of this crate: they belong to the program's own
//! context, protection domain and completion queues, never to an identifier.
//!
//! ```text
//! Connector::new
//!   │ resolve_addr        ┌──────────────────────────────┐
//!   ▼                     │            Listener          │
//! AddrResolved            │                │ request     │
//!   │ resolve_route       │                ▼             │
//!   ▼                     │         ConnectRequest       │
//! RouteResolved           │                │ accept(qp)  │
//!   │ connect(qp)         └────────────────┼─────────────┘
//!   ▼                                      ▼
//! Connected { queue_pair, connection, private_data }
//! ```
//!
//! Each step consumes its identifier, and returns a [`Pending`] step: wait for it with a deadline,
//! or poll it when its descriptor is readable. Every identifier has its own descriptor (an
//! `rdma_event_channel`), and its events are copied and acknowledged at once.
//!
//! ```no_run
//! use std::time::Duration;
//! use verbs_core::rdmacm::{Connected, Connector};
//! use verbs_core::{CompletionQueue, Device, QueuePair};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let second = Duration::from_secs(1);
//! let server = "192.0.2.1:7471".parse()?;
//! let route = Connector::new()?
//!     .resolve_addr(server, second)?
//!     .wait(Some(second))?
//!     .resolve_route(second)?
//!     .wait(Some(second))?;
//! let context = Device::by_name(&route.device_name())?.open()?;
//! let (pd, cq) = (context.alloc_pd()?, CompletionQueue::create(&context, 16)?);
//! let prepared = QueuePair::builder(&pd, &cq, &cq)
//!     .port_num(route.port_num())
//!     .build()?;
//! let Connected { queue_pair, connection, .. } =
//!     route.connect(prepared, b"hello")?.wait(Some(second))?;
//! # drop((queue_pair, connection));
//! # Ok(())
//! # }
//! ```
//!
//! The manager chooses the GID, the path and the packet sequence numbers. The rate, the flow label, the service level
//! and the traffic class are those of the queue pair's builder if they are not 0. On iWARP a queue pair has none of
//! these.
//!
//! Post the first receives on the prepared queue pair, before `connect` and `accept`: the peer may
//! send as soon as it is connected.
//!
//! Datagrams need no connection. [`DatagramService`] finds the queue pair of a service by the address and port
//! of its [`DatagramListener`]; [`MulticastGroup`] joins a group. All three can begin with a
//! [`DatagramConnector`], which has options.
//!
//! # Deadlines
//!
//! The connection manager has no time limit for a peer that never accepts: give [`Pending::wait`]
//! a timeout. Dropping an identifier cancels its step. That takes about 10 ms on soft-RoCE, and up
//! to 7 s on soft-iWARP, so do it on a thread that may block.

mod address;
mod connect;
mod connection;
mod datagrams;
mod event;
#[doc = include_str!("from_c.md")]
pub mod from_c {}
mod id;
mod listen;
mod local;
mod multicast;
mod pending;
mod private_data;
mod queue_pair;

pub use crate::codes::cm_event_type::CmEventType;
pub use crate::codes::private_data::PrivateData;
pub use crate::error::cm_failure::CmFailure;
pub use connect::{AddrResolved, Answer, Connector, Establishing, RouteResolved};
pub use connection::{Connected, Connection};
pub use datagrams::{DatagramConnector, DatagramListener, DatagramRequest, DatagramService};
pub use listen::{Accepting, ConnectRequest, Listener};
pub use multicast::MulticastGroup;
pub use pending::{Pending, Step};
pub use private_data::Message;
