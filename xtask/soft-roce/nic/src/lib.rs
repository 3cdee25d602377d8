//! A RoCE v2 network card as a library: posts, packets and the time go in; packets, completions, events and
//! the next timer come out. It does no I/O: no thread, no socket, no clock, no lock.
//!
//! It is for tests and simulations of RDMA programs, and for whatever carries UDP packets to other cards:
//! its packets are those of the specification. A program that uses libibverbs does not call this crate, but
//! a libibverbs that is built on it.
//!
//! ```text
//!      posts, changes          post_send · post_receive · modify_qp · …
//!            │
//!  ┌─────────▼──────────────────────── Nic ────────────────────────────────┐
//!  │  send queue ──▶ requester ──────────────┐          ┌── responder      │
//!  │                    │   ▲ answers        ▼          │       │          │
//!  │  memory: keys ─────┴───┼──────────▶  packets  ◀────┘   receive queue  │
//!  │  regions, windows      └──────────────  ▲              or shared one  │
//!  │  completion queues, events, timers      │                             │
//!  └─────┬─────────────────┬─────────────────┼──────────────────┬──────────┘
//!        ▼                 ▼                 ▼                  ▼
//!     poll_cq          poll_event    transmit · receive   next_timer · expire
//! ```
//!
//! # Quick start
//!
//! Two cards, and a loop for a network:
//!
//! ```
//! use std::{net::Ipv4Addr, time::Duration};
//! use soft_nic::*;
//!
//! # fn main() -> Result<(), Refused> {
//! let gid = |last| Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped();
//! let [mut a, mut b] = [1, 2].map(|seed| Nic::new(Profile::default(), seed));
//! let mut ends = Vec::new();
//! for (nic, own) in [(&mut a, gid(1)), (&mut b, gid(2))] {
//!     nic.set_gid(0, Some(own));
//!     let (pd, cq) = (nic.alloc_pd()?, nic.create_cq(16)?);
//!     let options = QueuePairOptions::new(Transport::Rc, pd, cq);
//!     ends.push((pd, cq, nic.create_qp(&QueuePairOptions { max_inline_data: 64, ..options })?));
//! }
//! let [(_, cq_a, qp_a), (pd_b, cq_b, qp_b)] = ends[..] else { unreachable!() };
//! a.connect(qp_a, AddressVector::to(gid(2)), Psn::new(1), qp_b, Psn::new(2))?;
//! b.connect(qp_b, AddressVector::to(gid(1)), Psn::new(2), qp_a, Psn::new(1))?;
//!
//! let mut memory = [0; 16];
//! // SAFETY: `memory` outlives the card `b`, and nothing refers to it until that is dropped.
//! let registered = unsafe { Registered::new(memory.as_mut_ptr(), memory.len()) };
//! let (lkey, _) = b.reg_mr(pd_b, registered, 0x1000, Access::LOCAL_WRITE)?;
//! let elements = vec![Element { address: 0x1000, length: 16, lkey }];
//! b.post_receive(qp_b, ReceiveRequest { wr_id: 7, elements })?;
//! a.post_send(qp_a, SendRequest::new(8, SendOpcode::Send, Data::Inline(b"hello".to_vec())))?;
//!
//! let (now, mut packet) = (Duration::ZERO, Vec::new());
//! loop {
//!     if let Some(route) = a.transmit(now, &mut packet) {
//!         b.receive(now, &route, &packet);
//!     } else if let Some(route) = b.transmit(now, &mut packet) {
//!         a.receive(now, &route, &packet);
//!     } else {
//!         break;
//!     }
//! }
//! assert_eq!(b.poll_cq(cq_b).map(|done| (done.wr_id, done.byte_len)), Some((7, 5)));
//! assert_eq!(a.poll_cq(cq_a).map(|done| done.status), Some(Status::SUCCESS));
//! drop(b);
//! assert_eq!(memory[..5], *b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # How to drive it
//!
//! An instant is a [`Duration`](std::time::Duration) since whatever moment the owner chose; it does not go back. After each call
//! that may have given the card something to send ([`receive`](Nic::receive), [`expire`](Nic::expire), posts,
//! [`modify_qp`](Nic::modify_qp)), call [`transmit`](Nic::transmit) until it returns nothing, then
//! [`poll_event`](Nic::poll_event), and wait for a packet or for [`next_timer`](Nic::next_timer). The card
//! makes packets only when `transmit` asks for them, so a network that is slow holds it back.
//!
//! # Memory
//!
//! The card reads what is sent, and writes what is received, through the pointers that were
//! [registered](Registered), between the post and the completion; with a key that a peer has, until the region
//! is deregistered. That is the only unsafe code of the crate, in one file. Memory that is not mapped any more
//! is a protection error of the operation, if the owner registers it with copies that notice; a card, which has
//! the pages pinned, would go on with what was there.
//!
//! All that comes from the network is hostile: any bytes neither panic nor make the card remember or work without
//! bound, nor touch memory that no key allows.
//!
//! # Where the specification is
//!
//! | InfiniBand Architecture, volume 1 | here |
//! |---|---|
//! | 9.2, 9.3 headers; 9.6 validation | `packet`: `mod` (BTH), `opcode`, `extended` (RETH, AETH, `AtomicETH`, DETH, `ImmDt`, IETH), `psn`; `nic` (`deliver`) |
//! | annex A17 RoCE v2: UDP and IP, invariant CRC, GRH | `packet`: `route`, `icrc` |
//! | 9.7.2, 9.7.3 requests of RC; 10.8.3 ordering, fence | `queue_pair`: `send_queue`, `requester` |
//! | 9.7.4 checks of the responder; 9.4 send, write, read, atomics | `queue_pair/responder` |
//! | 9.7.4 duplicates; 9.7.5 acknowledgements and refusals | `queue_pair/reply` |
//! | 9.7.5 RNR; 9.7.6 answers, timeouts, retries; 9.9.2 | `queue_pair/acknowledge` |
//! | 9.8.2 UC, 9.8.3 UD | `queue_pair/unreliable`, `queue_pair/requester` |
//! | 9.9.3 faults of the responder | `queue_pair/responder` (`reliable`, `break_off`) |
//! | 10.2.9 shared receive queues | `shared_receive` |
//! | 10.3 states; 11.2 their attributes | `queue_pair`: `state`, `attributes`, `flush` |
//! | 10.5 multicast | `multicast` |
//! | 10.6 memory: keys, access; windows | `memory`, `memory/window` |
//! | 10.8 slots that a completed request holds until it is polled | `queue_pair/slots` |
//! | 10.10, 11.6 completions and events | `completion`, `event` |
//! | 13.5 management datagrams of queue pair 1 | `nic/management` |
//! | 11.2, 11.4 verbs | `nic`: `objects`, `queue_pairs`; `request`; addresses and GIDs: `address` |
//!
//! Where the kernel's rxe differs from it, the [`Profile`] says which one is followed, field by field. Without a
//! field, rxe is followed in these: a key that a peer's send invalidates wrongly is acknowledged before the queue pair
//! breaks; the oldest read is forgotten when a peer has more outstanding than `max_dest_rd_atomic`; SQD always
//! sends its event. The specification is followed in these: a window's own bounds are checked; a receiver sends one
//! refusal until the missing packet has come, after an RNR NAK, too.
//!
//! # What this crate does not do
//!
//! XRC, RD, raw packets, congestion control (ECN), end-to-end credits, path migration, fast registration, type 2A
//! windows, implicit on-demand paging, atomic write and flush, more than one port or partition. The alternate path is taken and not used.
//!
//! # Features
//!
//! None.
//!
//! # Requirements
//!
//! Rust 1.88; 64 bits.
//!
//! # Thread safety
//!
//! A [`Nic`] is `Send` and `Sync`; all that changes it takes `&mut`. Two cards share nothing.
//!
//! # Resource cleanup
//!
//! Objects are numbers, and live until they are destroyed or the card is dropped; what others use is `EBUSY`.
//! Numbers of queue pairs and keys rest before they are given out again.
//!
//! # Further reading
//!
//! The specification (infinibandta.org); `man ibv_post_send` and its siblings for the verbs; the kernel's
//! `drivers/infiniband/sw/rxe`.
#![expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "formats, codes and attributes that the specification has fixed; what is built on the card lists all of them"
)]

mod address;
mod card;
mod completion;
mod error;
mod event;
mod memory;
mod multicast;
mod nic;
pub mod packet;
mod pool;
mod profile;
mod queue_pair;
mod request;
mod shared_receive;

pub use address::AddressVector;
pub use card::{Counters, Random};
pub use completion::{CompletedOpcode, Completion, CompletionQueueId, Status};
pub use error::{Errno, Refused};
pub use event::Event;
pub use memory::{Access, Registered, WindowKind};
pub use nic::{DomainId, ManagementDatagram, Nic};
pub use packet::{Psn, Route, Transport};
pub use profile::Profile;
pub use queue_pair::{AttributeMask, QueuePairAttributes, QueuePairOptions, QueuePairState};
pub use request::{
    Bind, Data, DatagramAddress, Element, ReceiveRequest, RemoteAddress, SendOpcode, SendRequest,
};
pub use shared_receive::SharedReceiveId;

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
