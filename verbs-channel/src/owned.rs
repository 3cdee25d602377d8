//! Owned buffers: given to the channel by value, returned with the result.
#![expect(unsafe_code, reason = "hands buffers to the card that the slot keeps")]

use std::time::Duration;

use verbs_core::{GatherElement, RemoteMemoryRegion, WorkSuccess};

use crate::buffer::OwnedBuffer;
use crate::channel::{Channel, ChannelMut};
use crate::engine::Engine;
use crate::error::{Error, Refusal, Rejected, Result, TransportError};
use crate::slots::{Claim, Id, Keeper};
use crate::work::{Incoming, Outgoing, Work};

/// Names an operation on an owned buffer. Its result can be taken once, in any order.
///
/// Losing a ticket loses nothing:
/// [`next_completed`](crate::Channel::next_completed) finds what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a ticket is how the buffer comes back"]
pub struct Ticket {
    engine: u64,
    id: Id,
}

impl Ticket {
    /// The number of its slot: for a table of the caller's own, beside the channel's.
    ///
    /// It is below the number of operations that can be in flight: those of both queues, of all
    /// channels that a group has had at once. Once the result has been taken, another operation gets
    /// it.
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.id.index() as usize
    }
}

/// An operation on an owned buffer that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Which operation it was.
    pub ticket: Ticket,
    /// Which channel of its group it was on; 0 for a channel of its own.
    pub channel: usize,
    /// How it ended. A receive's length is its
    /// [`byte_len`](verbs_core::WorkSuccess::byte_len).
    pub result: Result<WorkSuccess, TransportError>,
    /// The buffer, back; `None` if the card could not be made to let go of it.
    pub buffer: Option<OwnedBuffer>,
}

/// What to do with an owned buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnedOp {
    Send(Option<u32>),
    Write(RemoteMemoryRegion, Option<u32>),
    Read(RemoteMemoryRegion),
    Receive,
}

macro_rules! owned_operations {
    ($([$($generics:tt)*] $channel:ty,)*) => {$(
        impl<$($generics)*> $channel {
            /// Starts to send an owned buffer's range. It comes back with the result, by its ticket,
            /// in any order.
            ///
            /// # Errors
            ///
            /// [`Rejected`], with the buffer: the queue is full, or the channel down.
            pub fn start_send(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Send(None))
            }

            /// [`start_send`](Self::start_send) with 32 bits for the peer's completion.
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send).
            pub fn start_send_with_immediate(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                imm_data: u32,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Send(Some(imm_data)))
            }

            /// Starts to receive into an owned buffer's range.
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send).
            pub fn start_receive(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Receive)
            }

            /// Starts to write an owned buffer's range to where `remote` begins.
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send); [`Refusal::RemoteTooShort`].
            pub fn start_write(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                remote: RemoteMemoryRegion,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Write(remote, None))
            }

            /// [`start_write`](Self::start_write) with 32 bits for the peer's completion.
            ///
            /// # Errors
            ///
            /// As [`start_write`](Self::start_write).
            pub fn start_write_with_immediate(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                remote: RemoteMemoryRegion,
                imm_data: u32,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Write(remote, Some(imm_data)))
            }

            /// Starts to read into an owned buffer's range, from where `remote` begins.
            ///
            /// # Errors
            ///
            /// As [`start_write`](Self::start_write).
            pub fn start_read(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                remote: RemoteMemoryRegion,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Read(remote))
            }

            /// The result and the buffer of an operation, if it is done; polls once if it is not.
            ///
            /// # Errors
            ///
            /// [`Error::StaleTicket`] if they were taken before, or the ticket is another channel's.
            pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
                self.parts().0.poll_ticket(ticket)
            }

            /// The result and the buffer of an operation, waited for; `None` if `timeout` passes
            /// first. It goes on then, and can be waited for again. Without a timeout it waits for
            /// ever.
            ///
            /// # Errors
            ///
            /// As [`poll`](Self::poll).
            pub fn wait(
                &mut self,
                ticket: Ticket,
                timeout: Option<Duration>,
            ) -> Result<Option<Completed>> {
                self.parts().0.wait_ticket(ticket, timeout)
            }
            fn start(
                &mut self,
                buffer: OwnedBuffer,
                op: OwnedOp,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                let (engine, at) = self.parts();
                engine.start(at, buffer, op)
            }
        }
    )*};
}

owned_operations! {
    [] Channel,
    ['g] ChannelMut<'g>,
}

impl Engine {
    /// Posts an operation on a buffer, which goes into its slot.
    pub(crate) fn start(
        &mut self,
        at: u32,
        mut buffer: OwnedBuffer,
        op: OwnedOp,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        let length = buffer.len() as u64;
        let posted = match buffer.element() {
            // The range was checked when it was set, so it is its length.
            Err(_) => Err(Refusal::ElementTooLong { len: length }),
            Ok(mut element) => match op {
                OwnedOp::Receive => {
                    let claim = Claim::receive(at).kept_by(Keeper::Slot);
                    // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue
                    // pair cannot be destroyed; moving the buffer does not move its bytes.
                    unsafe { self.post_receive(claim, &mut element) }
                }
                OwnedOp::Read(remote) => {
                    let work = Incoming::read(element, remote);
                    // SAFETY: as above.
                    unsafe { self.post_owned(at, work) }
                }
                OwnedOp::Send(imm_data) => {
                    let work = Outgoing::send(element.into_gather());
                    // SAFETY: as above.
                    unsafe { self.post_owned(at, with(work, imm_data)) }
                }
                OwnedOp::Write(remote, imm_data) => {
                    let work = Outgoing::write(element.into_gather(), remote);
                    // SAFETY: as above.
                    unsafe { self.post_owned(at, with(work, imm_data)) }
                }
            },
        };
        match posted {
            Ok(id) => {
                self.slots.keep(id, buffer);
                Ok(Ticket {
                    engine: self.id(),
                    id,
                })
            }
            Err(refusal) => Err(Rejected::new(refusal, buffer)),
        }
    }

    /// [`post`](Self::post) for a slot that keeps the buffer.
    ///
    /// # Safety
    ///
    /// - As for [`post`](Self::post).
    unsafe fn post_owned<W: Work>(&mut self, at: u32, work: W) -> Result<Id, Refusal> {
        let (mut list, said) = work.into_parts();
        let claim = Claim::send(at).kept_by(Keeper::Slot);
        // SAFETY: the caller's promise.
        unsafe { self.post::<W>(claim, &mut list, said) }
    }

    /// A ticket for an operation whose buffers an `unsafe` caller keeps.
    pub(crate) const fn ticket(&self, id: Id) -> Ticket {
        Ticket {
            engine: self.id(),
            id,
        }
    }

    /// The result of an operation, if it is done; polls once if it is not.
    pub(crate) fn poll_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        if !self.is_done(ticket)? {
            self.drive();
        }
        if !self.is_done(ticket)? {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The result of an operation, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ticket(
        &mut self,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        self.is_done(ticket)?;
        if !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The result of the operation that has been done for longest; if there is none, polls until
    /// there is one or the queue is empty.
    pub(crate) fn next_ready(&mut self) -> Option<Completed> {
        while self.slots.first_ready().is_none() {
            if self.drive() == 0 {
                break;
            }
        }
        // An empty poll, too, may have ended work: a queue that cannot be polled has.
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    /// The same, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ready(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.wait_until(timeout, |engine| engine.slots.first_ready().is_some());
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        let ours = (ticket.engine == self.id()).then_some(ticket.id);
        let done = ours.and_then(|id| self.slots.is_done(id));
        done.ok_or(Error::StaleTicket)
    }

    fn take(&mut self, id: Id) -> Option<Completed> {
        let ticket = self.ticket(id);
        let buffer = self.slots.take_buffer(id);
        let (claim, result) = self.slots.release(id)?;
        Some(Completed {
            ticket,
            channel: claim.member as usize,
            result,
            buffer,
        })
    }
}

/// Adds immediate data, if there is some.
fn with(work: Outgoing<GatherElement<'_>>, imm_data: Option<u32>) -> Outgoing<GatherElement<'_>> {
    match imm_data {
        Some(imm_data) => work.immediate(imm_data),
        None => work,
    }
}
