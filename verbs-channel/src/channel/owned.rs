//! Operations on owned buffers, which are moved in and returned with the outcome.

use std::mem::ManuallyDrop;
use std::time::Duration;

use verbs_core::error::Rejected;
use verbs_core::{RemoteMemoryRegion, WorkSuccess};

use super::{Channel, Hold};
use crate::buffer::OwnedBuffer;
use crate::engine::{Completed, Ticket};
use crate::error::{RejectReason, Result};
use crate::request::{Incoming, Outgoing, OwnedChain, OwnedRequest};
use crate::waiting::Steps as _;

impl<H: Hold> Channel<H> {
    /// Posts a request on an owned buffer, with its options.
    ///
    /// The ticket identifies the operation. [`poll`](Self::poll), [`wait`](Self::wait),
    /// [`wait_success`](Self::wait_success) and [`next_completed`](Channel::next_completed) take
    /// its outcome with the buffer, in any order.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use verbs_channel::{BufferPool, Channel, Error, Outgoing};
    /// # fn example(channel: &mut Channel, pool: &BufferPool) -> Result<(), Error> {
    /// if let Some(hello) = pool.take_with(b"hello")? {
    ///     let ticket = channel.start(Outgoing::send(hello).immediate(7))?;
    ///     match channel.wait(ticket, Duration::from_secs(1))? {
    ///         Some(completed) => println!("{:?}, and {:?}", completed.result, completed.buffer),
    ///         None => println!("still in flight: the ticket can be waited for again"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The request is handed back, with the reason: the queue is full or the channel is down, the request does
    /// not fit the channel ([`RejectReason::RemoteTooShort`], [`RejectReason::Misaligned`] …), or the driver
    /// rejected it. The returned buffer is empty in one case: if the driver fails within the post and then
    /// fails to destroy the queue pair, the buffer has to be leaked.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn start(
        &mut self,
        request: impl Into<OwnedRequest>,
    ) -> Result<Ticket, Rejected<OwnedRequest, RejectReason>> {
        let mut request = request.into();
        let (poller, at) = self.parts();
        match poller.engine.start_at(at, &mut request.buffer, request.op) {
            Ok(ticket) => {
                // Its buffer is in its slot.
                let _empty = ManuallyDrop::new(request);
                Ok(ticket)
            }
            Err(reason) => Err(Rejected::new(poller.rejected(reason), request)),
        }
    }

    /// Posts a send of the buffer's range: all of its bytes, unless
    /// [`filled`](crate::PoolBuffer::filled) or [`set_range`](OwnedBuffer::set_range) has chosen fewer.
    ///
    /// The buffer is returned with the outcome, as [`start`](Self::start) describes.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with the buffer.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn start_send(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<Ticket, Rejected<OwnedBuffer, RejectReason>> {
        let Outgoing { list, op, .. } = Outgoing::send(buffer);
        let mut buffer = list.into();
        let (poller, at) = self.parts();
        match poller.engine.start_at(at, &mut buffer, op) {
            Ok(ticket) => {
                // It is in its slot.
                let _empty = ManuallyDrop::new(buffer);
                Ok(ticket)
            }
            Err(reason) => Err(Rejected::new(poller.rejected(reason), buffer)),
        }
    }

    /// Posts a receive into the buffer's range. The [message](Completed::message) is in
    /// the [`Completed`] operation.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send).
    #[doc(alias = "ibv_post_recv")]
    pub fn start_receive(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<Ticket, Rejected<OwnedBuffer, RejectReason>> {
        self.start(OwnedRequest::receive(buffer)).map_err(buffer_of)
    }

    /// Takes the tickets of the receives that were prepared by
    /// [`PreparedChannel::start_receive`](crate::PreparedChannel::start_receive), in the same order.
    ///
    /// These receives were posted when the channel was connected or joined its group. A second call
    /// returns no tickets.
    pub fn prepared_receives(&mut self) -> Vec<Ticket> {
        let id = self.id();
        self.engine_mut().prepared_receives(id)
    }

    /// Posts a write of the buffer's range to the start of `remote`.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send); [`RejectReason::RemoteTooShort`] if the bytes do not
    /// fit into `remote`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn start_write(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
    ) -> Result<Ticket, Rejected<OwnedBuffer, RejectReason>> {
        self.start(Outgoing::write(buffer, remote))
            .map_err(buffer_of)
    }

    /// Posts a read from the start of `remote` into the buffer's range.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write), or [`RejectReason::NoReads`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn start_read(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
    ) -> Result<Ticket, Rejected<OwnedBuffer, RejectReason>> {
        self.start(Incoming::read(buffer, remote))
            .map_err(buffer_of)
    }

    /// Posts a batch with one doorbell, one completion and one ticket.
    ///
    /// The requests are returned unchanged with the outcome, and can be started again. The outcome of
    /// the batch is its first failure; the requests before that one have succeeded.
    ///
    /// A batch is for the send queue only. Each receive has its own completion, so start receives one
    /// by one. A batch of up to 32 requests allocates nothing.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with all requests; [`RejectReason::BatchTooLong`] if the send queue
    /// cannot hold them, [`RejectReason::EmptyBatch`], [`RejectReason::ReceiveInBatch`].
    #[doc(alias = "ibv_post_send")]
    pub fn start_batch(
        &mut self,
        requests: Vec<OwnedRequest>,
    ) -> Result<Ticket, Rejected<Vec<OwnedRequest>, RejectReason>> {
        let id = self.id();
        self.engine_mut().start_batch(id, requests)
    }

    /// Posts a chain of requests that was built before, with one doorbell, one completion and one ticket.
    ///
    /// All of its requests are posted, unless a [range](OwnedChain::set_range) of them was chosen. The
    /// [`chain`](Completed::chain) is returned with the outcome, and can be started again. The outcome is
    /// the chain's first failure, and [`done`](OwnedChain::done) returns how many requests succeeded before
    /// it.
    ///
    /// Nothing is allocated, and nothing is built: see [`OwnedChain`].
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with the chain; [`RejectReason::BatchTooLong`] if the send queue cannot
    /// hold its range, [`RejectReason::EmptyBatch`]. The returned chain is empty in one case: the driver
    /// failed within the post and then failed to destroy the queue pair, so the buffers had to be leaked.
    #[doc(alias = "ibv_post_send")]
    pub fn start_chain(
        &mut self,
        chain: OwnedChain,
    ) -> Result<Ticket, Rejected<OwnedChain, RejectReason>> {
        let id = self.id();
        self.engine_mut().start_chain(id, chain)
    }

    /// Takes the outcome and the buffer of an operation if it has completed. Polls once if it has not.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`](crate::Error::StaleTicket): they were taken before, or the ticket
    /// belongs to another channel.
    #[inline(always)]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        let (poller, at) = self.parts();
        poller.poll_ticket(at, ticket)
    }

    /// Waits for the outcome and the buffer of an operation; `None` if `timeout` passes first.
    ///
    /// After a timeout the operation continues, and can be waited for again. Without a timeout this
    /// waits forever.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    #[inline(always)]
    pub fn wait(
        &mut self,
        ticket: Ticket,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<Completed>> {
        let (poller, at) = self.parts();
        poller.wait_ticket(at, ticket, timeout.into())
    }

    /// Waits for an operation up to the channel's [`timeout`](crate::ChannelConfig::timeout), and
    /// returns its success with the buffer.
    ///
    /// ```no_run
    /// # use verbs_channel::{BufferPool, Channel, Error};
    /// # fn reply(channel: &mut Channel, pool: &BufferPool) -> Result<(), Error> {
    /// # let (to_send, for_reply) = (pool.take().unwrap(), pool.take().unwrap());
    /// let receive = channel.start_receive(for_reply)?;
    /// let send = channel.start_send(to_send)?;
    /// channel.wait_success(send)?;
    /// let (received, reply) = channel.wait_success(receive)?;
    /// println!("{:?}", received.message_in(&reply));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It does not abort the channel. At its timeout the operation continues and keeps its buffer: wait
    /// for the same ticket again, or [`abort`](Self::abort) the channel to get the buffer back. Without
    /// a timeout this waits forever.
    ///
    /// If the operation failed, its buffer is dropped; a block returns to its pool. To reuse the buffer,
    /// call [`wait`](Self::wait) instead, and look at the [`Completed`]. Do so for a batch or a chain,
    /// too: here the returned buffer is empty.
    ///
    /// # Errors
    ///
    /// - [`Error::InFlight`](crate::Error::InFlight): the timeout has passed, and the operation
    ///   continues.
    /// - [`Error::Transport`](crate::Error::Transport): the operation failed.
    /// - [`Error::StaleTicket`](crate::Error::StaleTicket), as [`poll`](Self::poll).
    pub fn wait_success(&mut self, ticket: Ticket) -> Result<(WorkSuccess, OwnedBuffer)> {
        let (poller, at) = self.parts();
        poller.wait_success(at, ticket)
    }
}

/// The buffer of a request that was rejected.
#[cold]
fn buffer_of(
    rejected: Rejected<OwnedRequest, RejectReason>,
) -> Rejected<OwnedBuffer, RejectReason> {
    let reason = *rejected.error();
    Rejected::new(reason, rejected.into_given().buffer)
}
