//! The protocol of connecting over datagrams: how two channels exchange their endpoints without TCP.
//!
//! A server has one datagram endpoint, which is published by any means. Any number of clients connect to
//! it. Every message is one datagram: the bytes `VRBD`, a version, a kind, a random number of the
//! client's and one of the server's for this exchange, and a payload.
//!
//! ```text
//! client                                                          server
//! REQUEST: cookie 0, endpoint, private data   ──►   nothing is kept
//!                             ◄──  COOKIE: a number for this client
//! REQUEST: the cookie, the same               ──►   this proves that the client receives: it waits
//!                             ◄──  ACCEPT: endpoint, private data
//! (handshake)
//! READY                                       ──►   (handshake, unless it was done before ACCEPT)
//!                                                   the server can send
//!                             ◄──  CONFIRM
//! the client can send; DONE                   ──►   the server has nothing left to answer
//! ```
//!
//! In place of each message a side can send the reason why it does not continue:
//!
//! ```text
//! REFUSED: a code, then text (UTF-8)
//! ```
//!
//! # What is lost, late, twice or old
//!
//! - *Only the client repeats*: its REQUEST until an ACCEPT or its READY until a CONFIRM arrives, first after
//!   20 ms, later every 100 ms. The server answers each, in the same way if it is the same message. So
//!   a server without datagrams to answer does nothing, and sends at most one datagram for each that it
//!   receives.
//! - *The numbers belong to the exchange*, not to the endpoints. A peer that has restarted has
//!   other numbers: datagrams of the earlier exchange that are still on their way are ignored, or
//!   refused with [`RefusalCode::UNKNOWN`]. So no queue pair is connected to one of an earlier
//!   exchange.
//! - *The last message* is DONE. If it is lost, the server has its channel a quarter of a second later.
//! - If no CONFIRM reaches the client before its deadline, its exchange fails, and it sends
//!   REFUSED. If that is lost, too, the server has a channel whose peer is gone. The first request
//!   that is posted on that channel fails. This happens only if every CONFIRM is lost; no exchange
//!   over datagrams can exclude it.
//! - The server abandons a client that is silent for five seconds. While another client waits, one second
//!   of silence is enough, or two without READY. A server whose handshake follows READY can offer its endpoint
//!   to the next client before that: see [`Acceptor::answer`].
//!
//! # Memory
//!
//! Before a client has returned its cookie, the server keeps nothing for it. The cookie depends on
//! the client's endpoint, its number and the time, and on a secret of the server. So the sender of
//! datagrams with a forged source costs no memory. The number of clients that have returned it is
//! bounded, and the sources share it fairly: a source with many clients loses places to one with few.
//! Its oldest client that waits or does not confirm goes. A source is a GID, or a LID without one, since
//! a peer can have any number of queue pairs. Further clients get no answer, and repeat their REQUEST. None of
//! this authenticates a peer: datagrams are neither signed nor encrypted, as RDMA is not.
//!
//! # Length
//!
//! A REQUEST has 71 bytes besides the private data, an ACCEPT 61. So private data is limited by the
//! MTU of both ports: to 185 bytes with an MTU of 256, and to 441 with 512, 953 with 1024 and 1024
//! with a longer one.
//!
//! [`PreparedChannel::connect`](crate::PreparedChannel::connect) and
//! [`accept`](crate::PreparedChannel::accept) do all of this. A [`Connector`]
//! and an [`Acceptor`] are the two sides without I/O and without a clock, for layers that wait in their
//! own way.
//!
//! [`RefusalCode::UNKNOWN`]: crate::exchange::RefusalCode::UNKNOWN

mod acceptor;
mod connector;
mod cookie;
mod request;
#[cfg(test)]
mod tests;
mod wire;

pub use acceptor::{Acceptor, Answer};
pub use connector::{Connector, Step};
pub use request::{Request, RequestId};
