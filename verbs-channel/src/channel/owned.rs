//! Owned buffers: given to the channel by value, returned with the result.

use std::time::Duration;

use verbs_core::{Rejected, RemoteMemoryRegion};

use super::{Channel, Hold};
use crate::buffer::OwnedBuffer;
use crate::engine::{Completed, Ticket};
use crate::error::{Refusal, Result};
use crate::request::{Incoming, Outgoing, OwnedWork};

impl<H: Hold> Channel<H> {
    /// Starts work on an owned buffer's range, fully specified. The
    /// buffer comes back with the result, by its ticket, in any order.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the work: the queue is full, or the channel down;
    /// [`Refusal::RemoteTooShort`]; [`Refusal::Misaligned`] for an atomic whose range is not
    /// of 8 bytes. Its buffer is empty in one case: the driver took a part of the work, and
    /// refused to destroy the queue pair, so that the buffer had to be leaked.
    pub fn start(
        &mut self,
        work: impl Into<OwnedWork>,
    ) -> Result<Ticket, Rejected<OwnedWork, Refusal>> {
        let mut work = work.into();
        self.start_from(&mut work)
            .map_err(|refusal| Rejected::new(refusal, work))
    }

    /// [`start`](Self::start) for work that stays where it is: its buffer is taken, and an
    /// [empty](OwnedBuffer::empty) one left; or it is as it was, if it is refused.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and why.
    #[inline(always)]
    pub fn start_from(&mut self, work: &mut OwnedWork) -> Result<Ticket, Refusal> {
        let (engine, at) = self.parts();
        engine.start(at, work)
    }

    /// Starts to send an owned buffer's range. It comes back with the result, by its ticket,
    /// in any order.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the buffer: the queue is full, or the channel down.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn start_send(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        self.start(Outgoing::send(buffer)).map_err(buffer_of)
    }

    /// [`start_send`](Self::start_send) with 32 bits for the peer's completion.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn start_send_with_immediate(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        imm_data: u32,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        let work = Outgoing::send(buffer).immediate(imm_data);
        self.start(work).map_err(buffer_of)
    }

    /// Starts to receive into an owned buffer's range.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send).
    #[doc(alias = "ibv_post_recv")]
    pub fn start_receive(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        self.start(OwnedWork::receive(buffer)).map_err(buffer_of)
    }

    /// Starts to write an owned buffer's range to where `remote` begins.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send); [`Refusal::RemoteTooShort`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn start_write(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        self.start(Outgoing::write(buffer, remote))
            .map_err(buffer_of)
    }

    /// [`start_write`](Self::start_write) with 32 bits for the peer's completion.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn start_write_with_immediate(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        imm_data: u32,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        let work = Outgoing::write(buffer, remote).immediate(imm_data);
        self.start(work).map_err(buffer_of)
    }

    /// Starts to read into an owned buffer's range, from where `remote` begins.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn start_read(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        self.start(Incoming::read(buffer, remote))
            .map_err(buffer_of)
    }

    /// Starts a compare-and-swap of the 8 bytes at `remote`: if they are `compare`, they
    /// become `swap`. What they were comes into the buffer's range, of 8 bytes.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with the buffer.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn start_compare_swap(
        &mut self,
        before: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        let work = Incoming::compare_and_swap(before, remote, compare, swap);
        self.start(work).map_err(buffer_of)
    }

    /// Starts to add to the 8 bytes at `remote`. What they were comes into the buffer's
    /// range, of 8 bytes.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with the buffer.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn start_fetch_add(
        &mut self,
        before: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        add: u64,
    ) -> Result<Ticket, Rejected<OwnedBuffer, Refusal>> {
        self.start(Incoming::fetch_and_add(before, remote, add))
            .map_err(buffer_of)
    }

    /// Starts a batch: one doorbell, one completion, one ticket. All of it comes back, as it
    /// was, with the result, and can be started again. Its first failure is the batch's; what
    /// succeeded before that has been done.
    ///
    /// It is of work for the send queue: receives have a completion each, and are started one
    /// by one. Up to 32 long it allocates nothing.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with all of the work; [`Refusal::BatchTooLong`] for more
    /// than the send queue can ever hold, [`Refusal::EmptyBatch`],
    /// [`Refusal::ReceiveInBatch`].
    #[doc(alias = "ibv_post_send")]
    pub fn start_batch(
        &mut self,
        works: Vec<OwnedWork>,
    ) -> Result<Ticket, Rejected<Vec<OwnedWork>, Refusal>> {
        let (engine, at) = self.parts();
        engine.start_batch(at, works)
    }

    /// The result and the buffer of an operation, if it is done; polls once if it is not.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`](crate::Error::StaleTicket) if they were taken before, or the
    /// ticket is another channel's.
    #[inline]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        let (engine, at) = self.parts();
        engine.poll_ticket_of(at, ticket)
    }

    /// The result and the buffer of an operation, waited for; `None` if `timeout` passes
    /// first. It goes on then, and can be waited for again. Without a timeout it waits for
    /// ever.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn wait(&mut self, ticket: Ticket, timeout: Option<Duration>) -> Result<Option<Completed>> {
        let (engine, at) = self.parts();
        engine.wait_ticket_of(at, ticket, timeout)
    }
}

/// The buffer of a request that was rejected.
#[cold]
fn buffer_of(rejected: Rejected<OwnedWork, Refusal>) -> Rejected<OwnedBuffer, Refusal> {
    let refusal = *rejected.error();
    Rejected::new(refusal, rejected.into_given().buffer)
}
