//! The operations of a channel, its end and its state.

use std::future::poll_fn;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use verbs_channel::engine::{Counters, Engine};
use verbs_channel::error::{CloseError, Queue};
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::{ProtectionDomain, QueuePairEndpoint, RemoteMemoryRegion};
use verbs_channel::{
    ChannelId, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedRequest, RejectReason, Ticket,
    TransportError,
};

use super::AsyncChannel;
use super::operation::Operation;
use crate::driver::{Awaited, Driver, Request, Submission};
use crate::engine::SharedEngine;
use crate::error::Result;
use crate::task::coop;
use crate::task::sync::Mutex;

/// Has the queue pair of a channel destroyed when it is dropped.
struct CloseOnDrop<'a> {
    channel: &'a AsyncChannel,
}

impl AsyncChannel {
    /// A channel that has joined, and its prepared receives.
    pub(crate) fn new(
        shared: Arc<SharedEngine>,
        at: ChannelId,
        backlog: usize,
        prepared: Vec<Ticket>,
    ) -> Self {
        let posted = |ticket| Operation::new(Arc::clone(&shared), Submission::Posted(ticket));
        let prepared = Mutex::new(prepared.into_iter().map(posted).collect());
        Self {
            shared,
            at,
            backlog,
            prepared,
        }
    }

    /// Removes the bound of the backlog: for layers that have a bound of their own.
    pub(crate) const fn unbounded(mut self) -> Self {
        self.backlog = usize::MAX;
        self
    }

    /// Sends the bytes in the buffer's range: all of its bytes, unless
    /// [`filled`](verbs_channel::PoolBuffer::filled) or [`set_range`](OwnedBuffer::set_range)
    /// has chosen fewer.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(&self, buffer: impl Into<OwnedBuffer>) -> Operation {
        self.run(Outgoing::send(buffer))
    }

    /// Receives a message into the buffer's range.
    ///
    /// The result has the message's [length](verbs_channel::verbs_core::WorkSuccess::byte_len) and
    /// immediate data, and returns the [message](verbs_channel::verbs_core::WorkSuccess::message_in)
    /// as a slice of the buffer.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(&self, buffer: impl Into<OwnedBuffer>) -> Operation {
        self.run(OwnedRequest::receive(buffer))
    }

    /// Takes the operations of the receives that were posted as the channel joined its group: those
    /// of [`PreparedChannel::start_receive`], in the same order. A second call returns none.
    ///
    /// [`incoming`](Self::incoming) takes them, too. If neither is called, they are abandoned when the
    /// channel is dropped.
    ///
    /// [`PreparedChannel::start_receive`]: verbs_channel::PreparedChannel::start_receive
    #[must_use = "dropping the operations abandons them"]
    pub fn prepared_receives(&self) -> Vec<Operation> {
        mem::take(&mut *self.prepared.lock())
    }

    /// Writes the buffer's range to the start of `remote`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(&self, buffer: impl Into<OwnedBuffer>, remote: RemoteMemoryRegion) -> Operation {
        self.run(Outgoing::write(buffer, remote))
    }

    /// Reads from the start of `remote` into the buffer's range.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(&self, buffer: impl Into<OwnedBuffer>, remote: RemoteMemoryRegion) -> Operation {
        self.run(Incoming::read(buffer, remote))
    }

    /// Begins a request with its options: an [`Outgoing`] or an [`Incoming`] on an [`OwnedBuffer`],
    /// or an [`OwnedRequest`]. `channel.run(Outgoing::send(buffer).immediate(7))` sends immediate data.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn run(&self, request: impl Into<OwnedRequest>) -> Operation {
        let submission = self.driver().start(self.at, request.into(), self.backlog);
        Operation::new(Arc::clone(&self.shared), submission)
    }

    /// Begins a batch: one doorbell, one completion and one future for all requests.
    ///
    /// It waits in the backlog until there is room for all of them.
    #[doc(alias = "ibv_post_send")]
    pub fn batch(&self, requests: Vec<OwnedRequest>) -> Operation<Vec<OwnedRequest>> {
        let submission = self
            .driver()
            .start_any(self.at, Request::Batch(requests), self.backlog);
        Operation::new(Arc::clone(&self.shared), submission)
    }

    /// Begins a chain that was built before: one doorbell, one completion and one future for all of its
    /// requests.
    ///
    /// It waits in the backlog until there is room for all of them. The chain is returned with the
    /// outcome, and can be begun again. [`done`](OwnedChain::done) returns how many of its requests
    /// succeeded.
    ///
    /// ```no_run
    /// # use verbs_async::{AsyncChannel, Result};
    /// # use verbs_async::verbs_channel::request::OwnedChain;
    /// # async fn example(channel: AsyncChannel, mut pages: OwnedChain) -> Result<()> {
    /// loop {
    ///     let (result, returned) = channel.chain(pages).await;
    ///     result?;
    ///     pages = returned;
    ///     // Replace some of its requests here.
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_post_send")]
    pub fn chain(&self, chain: OwnedChain) -> Operation<OwnedChain> {
        let submission =
            self.driver()
                .start_any(self.at, Request::Chain(Some(chain)), self.backlog);
        Operation::new(Arc::clone(&self.shared), submission)
    }

    /// A receive that is queued however long the backlog is: its buffer exists already.
    pub(crate) fn receive_unbounded(&self, buffer: OwnedBuffer) -> Operation {
        let request = OwnedRequest::receive(buffer);
        let submission = self.driver().start(self.at, request, usize::MAX);
        Operation::new(Arc::clone(&self.shared), submission)
    }

    /// Waits until the backlog of a queue has room for another operation.
    ///
    /// An operation that finds its queue full waits in the backlog, whose length is
    /// [bounded](crate::AsyncGroup::set_backlog). An operation beyond that is rejected with
    /// [`RejectReason::Backpressure`](verbs_channel::RejectReason::Backpressure), and its buffer is returned
    /// ([`Error::is_backpressure`](crate::Error::is_backpressure)). Code that begins operations without awaiting
    /// them calls this first:
    ///
    /// ```no_run
    /// # use verbs_async::{AsyncChannel, Operation, Result};
    /// # use verbs_async::verbs_channel::OwnedBuffer;
    /// # use verbs_async::verbs_channel::error::Queue;
    /// # async fn example(channel: AsyncChannel, outgoing: Vec<OwnedBuffer>) -> Result<()> {
    /// let mut sends = Vec::new();
    /// for buffer in outgoing {
    ///     channel.ready(Queue::Send).await?;
    ///     sends.push(channel.send(buffer));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A waiting task is woken when half of the backlog has been posted. Room is not reserved:
    /// another task may take it first. Dropping the future has no effect.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`]: the channel takes no more operations.
    pub async fn ready(&self, queue: Queue) -> Result<(), TransportError> {
        let room = Awaited::Room(queue, self.backlog);
        let mut wait = self.driver().wait_for(self.at, room);
        poll_fn(|cx| coop::poll(self.shared.must_yield(cx), cx, || wait.poll(cx))).await;
        drop(wait);
        let down = self.down_reason();
        down.map_or(Ok(()), |reason| Err(RejectReason::Down(reason).into()))
    }

    /// Closes the channel cleanly: lets sends, writes, reads and atomics finish, aborts the receives,
    /// destroys the queue pair on a helper thread, and waits until the device has released all buffers.
    ///
    /// If the peer never posts a receive for a send, this may wait forever: put a timeout of your
    /// runtime around it. It does not wait for the operations of a channel that is down: those are aborted
    /// at once. Dropping the future closes the channel without waiting, as dropping the channel does.
    ///
    /// # Errors
    ///
    /// [`CloseError::Down`] if the channel was down before, or goes down while this waits. It is not an error if
    /// the peer or this side closed it before: the operations that were aborted by that return errors
    /// themselves. [`CloseError::Stuck`]: the driver failed to destroy the queue pair. **The device may still access this
    /// memory**, and owned buffers in flight have been leaked.
    #[doc(alias = "ibv_destroy_qp")]
    pub async fn close(&self) -> Result<(), CloseError> {
        let destroyed_at_the_end = CloseOnDrop { channel: self };
        let has_ended = |reason| matches!(reason, DownReason::PeerClosed | DownReason::Closed);
        let has_ended = self.down_reason().is_some_and(has_ended);
        let mut wait = self.driver().wait_for(self.at, Awaited::Drained);
        poll_fn(|cx| wait.poll(cx)).await;
        drop(wait);
        let down = self.down_reason().filter(|_| !has_ended);
        // Not when the device has flushed the receives: it may never do so.
        drop(destroyed_at_the_end);
        self.shared.until_destroyed(self.at).await?;
        down.map_or(Ok(()), |reason| Err(CloseError::Down(reason)))
    }

    /// Takes the channel down without waiting: a helper thread destroys its queue pair, which aborts the operations
    /// in flight. Those in the backlog are rejected.
    ///
    /// To wait until the device is done with all memory of the channel, [`close`](Self::close) it afterwards.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn abort(&self) {
        self.shared.end(self.at, DownReason::Closed);
    }

    /// Watches the peer through this descriptor from now on, as
    /// [`Channel::watch_peer`](verbs_channel::Channel::watch_peer) does.
    ///
    /// This is for your own handshake: channels that were connected over TCP already watch their
    /// peer.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be watched: it is a regular file, too many descriptors are open, or the runtime of the
    /// group's notifier has ended.
    pub fn watch_peer(&self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let descriptor = descriptor.into();
        self.shared.watch_peers()?;
        Ok((self.driver()).with_engine(|engine| engine.watch_peer(self.at, descriptor))?)
    }

    /// The peer's address, if the channel was connected over TCP or `rdma_cm`.
    ///
    /// It is also available after the channel has gone down.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.driver()
            .with_engine(|engine| engine.peer_addr(self.at))
    }

    /// Whether the channel takes no more operations.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down_reason().is_some()
    }

    /// Why the channel takes no more operations; `None` while it is up.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        self.driver()
            .with_engine(|engine| engine.down_reason(self.at))
    }

    /// The number of operations that this queue has room for. Operations beyond that wait in the
    /// backlog, up to its [bound](Self::ready).
    #[must_use]
    pub fn credits(&self, queue: Queue) -> u32 {
        self.driver()
            .with_engine(|engine| engine.credits(self.at, queue))
    }

    /// The number of operations that this queue holds, with or without room for them now.
    pub(crate) fn capacity(&self, queue: Queue) -> u32 {
        self.driver()
            .with_engine(|engine| engine.capacity(self.at, queue))
    }

    /// The id of the channel in its group. The operations and outcomes of an
    /// [`AsyncTransfer`](crate::AsyncTransfer) have it, too.
    #[must_use]
    pub const fn id(&self) -> ChannelId {
        self.at
    }

    /// The counters of the channel, from when it joined its group on.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let counters = |engine: &mut Engine| engine.channel_counters(self.at);
        self.shared.driver.with_engine(counters)
    }

    /// The protection domain of the channel: buffers must be registered in it.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.shared.pd()
    }

    /// The endpoint of this side, as sent to the peer; `None` once the queue pair has been
    /// destroyed.
    #[must_use]
    pub fn endpoint(&self) -> Option<QueuePairEndpoint> {
        self.driver()
            .with_engine(|engine| engine.endpoint(self.at).copied())
    }

    pub(crate) const fn group(&self) -> &Arc<SharedEngine> {
        &self.shared
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.shared.driver
    }
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.channel.abort();
    }
}
