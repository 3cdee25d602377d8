//! Channels: what can be begun on one connection.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbs_channel::verbs_core::{ProtectionDomain, QueuePairEndpoint, RemoteMemoryRegion};
use verbs_channel::{ChannelId, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedWork, Queue};

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::operation::Operation;
use crate::ring::Channels;
use crate::shared::Shared;

/// A connected endpoint for async code.
///
/// Each call begins an operation at once: it is posted, or gets in line for a place in its queue,
/// first come, first served, or is rejected if [too many](Self::ready) are in line. The [`Operation`] that comes back is a future of the result and the
/// buffer. Any number can be in flight; what was begun on one channel is posted in that order.
///
/// Dropping the channel closes it without waiting: what is in flight is aborted, and its operations
/// say so. [`close`](Self::close) lets it finish first.
pub struct AsyncChannel {
    shared: Arc<Shared>,
    at: ChannelId,
    // How much can be in line for each queue.
    backlog: usize,
}

/// Waits in [`AsyncChannel::ready`], until it is dropped.
struct ForRoom<'a> {
    channel: &'a AsyncChannel,
    queue: Queue,
    key: Option<usize>,
}

impl AsyncChannel {
    pub(crate) const fn new(shared: Arc<Shared>, at: ChannelId, backlog: usize) -> Self {
        Self {
            shared,
            at,
            backlog,
        }
    }

    /// Lets everything wait that is begun: for layers that have a bound of their own.
    pub(crate) const fn unbounded(mut self) -> Self {
        self.backlog = usize::MAX;
        self
    }

    /// Sends the buffer's range.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(&self, buffer: impl Into<OwnedBuffer>) -> Operation {
        self.run(Outgoing::send(buffer))
    }

    /// Sends, with 32 bits for the peer's completion.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_with_immediate(&self, buffer: impl Into<OwnedBuffer>, imm_data: u32) -> Operation {
        self.run(Outgoing::send(buffer).immediate(imm_data))
    }

    /// Receives a message into the buffer's range: its
    /// [length](verbs_channel::verbs_core::WorkSuccess::byte_len) and immediate data are in the
    /// result.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(&self, buffer: impl Into<OwnedBuffer>) -> Operation {
        self.run(OwnedWork::receive(buffer))
    }

    /// Writes the buffer's range to where `remote` begins.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(&self, buffer: impl Into<OwnedBuffer>, remote: RemoteMemoryRegion) -> Operation {
        self.run(Outgoing::write(buffer, remote))
    }

    /// Writes, with 32 bits for a receive of the peer's.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_with_immediate(
        &self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        imm_data: u32,
    ) -> Operation {
        self.run(Outgoing::write(buffer, remote).immediate(imm_data))
    }

    /// Reads into the buffer's range from where `remote` begins.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(&self, buffer: impl Into<OwnedBuffer>, remote: RemoteMemoryRegion) -> Operation {
        self.run(Incoming::read(buffer, remote))
    }

    /// If the 8 bytes at `remote` are `compare`, they become `swap`. What they were is in the
    /// buffer, whose range has 8 bytes.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(
        &self,
        before: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Operation {
        self.run(Incoming::compare_and_swap(before, remote, compare, swap))
    }

    /// Adds to the 8 bytes at `remote`. What they were is in the buffer, whose range has 8 bytes.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(
        &self,
        before: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        add: u64,
    ) -> Operation {
        self.run(Incoming::fetch_and_add(before, remote, add))
    }

    /// Begins work with everything that can be said about it: an [`Outgoing`] or an [`Incoming`] of
    /// an [`OwnedBuffer`], or [`OwnedWork`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn run(&self, work: impl Into<OwnedWork>) -> Operation {
        let begun = self.driver().start(self.at, work.into(), self.backlog);
        Operation::new(Arc::clone(&self.shared), begun)
    }

    /// Begins a batch: one doorbell, one completion, one future for all of it. It waits in line
    /// until there are places for all of it.
    #[doc(alias = "ibv_post_send")]
    pub fn batch(&self, works: Vec<OwnedWork>) -> Operation<Vec<OwnedWork>> {
        let begun = self.driver().start(self.at, works, self.backlog);
        Operation::new(Arc::clone(&self.shared), begun)
    }

    /// A receive that waits in the backlog however much is there: its buffer exists already.
    pub(crate) fn receive_unbounded(&self, buffer: OwnedBuffer) -> Operation {
        let work = OwnedWork::receive(buffer);
        let begun = self.driver().start(self.at, work, usize::MAX);
        Operation::new(Arc::clone(&self.shared), begun)
    }

    /// Waits until there is room in a queue's backlog for what is begun next.
    ///
    /// What finds no place in its queue waits in the backlog, whose length is
    /// [bounded](crate::AsyncGroup::set_backlog). What is begun beyond that is rejected: its outcome is
    /// [`Refusal::Backpressure`](verbs_channel::Refusal::Backpressure), with the buffer
    /// ([`Error::is_backpressure`]). Whoever begins operations without awaiting them waits here first:
    ///
    /// ```no_run
    /// # use verbs_async::{AsyncChannel, Operation, Result};
    /// # use verbs_async::verbs_channel::{OwnedBuffer, Queue};
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
    /// One that had to wait is woken when half of the backlog is gone. Room is not reserved: of many
    /// tasks that find it, some may find none any more. Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Down`]: the channel takes no more operations.
    pub async fn ready(&self, queue: Queue) -> Result<()> {
        let mut waits = ForRoom {
            channel: self,
            queue,
            key: None,
        };
        poll_fn(|cx| waits.poll(cx)).await;
        drop(waits);
        self.down_reason()
            .map_or(Ok(()), |reason| Err(Error::Down(reason)))
    }

    /// Closes the channel in order: lets what was sent, written and read finish, aborts the
    /// receives, and waits until the card is done with all buffers.
    ///
    /// A peer that never posts a receive is waited for: put a timeout of your runtime's around it.
    /// Dropping the future drops the channel, which waits for nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Down`] if the channel had gone down before, or goes down while it waits. That the
    /// peer has closed first is no error: what was not done by then has ended in one.
    pub async fn close(self) -> Result<()> {
        let is_left = self.down_reason() == Some(DownReason::PeerClosed);
        self.shared.drained(self.at, [true, false]).await;
        let down = self.down_reason().filter(|_| !is_left);
        self.shut_down();
        self.shared.drained(self.at, [true, true]).await;
        down.map_or(Ok(()), |reason| Err(Error::Down(reason)))
    }

    /// Gives the channel up: what is in flight is aborted, what is in line is refused. Their
    /// operations say so, in a moment.
    pub fn shut_down(&self) {
        let at = self.at;
        self.driver().with(Some(at), |ring| {
            if let Ok(mut channel) = ring.group.channel(at) {
                channel.shut_down();
            }
        });
    }

    /// Watches the peer by this descriptor from now on: as
    /// [`Channel::watch_peer`](verbs_channel::Channel::watch_peer). For handshakes by hand; those
    /// over TCP do it by themselves.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be watched: one of a regular file, or too many are open.
    pub fn watch_peer(&self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let descriptor = descriptor.into();
        let watched = |ring: &mut Channels| ring.group.channel(self.at)?.watch_peer(descriptor);
        self.driver().with_ring(watched)?;
        self.shared.watch_peers();
        Ok(())
    }

    /// The peer's address, if the channel was connected over TCP. It stays when the channel is down.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.driver()
            .with_ring(|ring| ring.group.channel(self.at).ok()?.peer_addr())
    }

    /// Whether it takes no more work.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down_reason().is_some()
    }

    /// Why it takes no more work, if it does not.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        self.driver()
            .with_ring(|ring| ring.group.channel(self.at).ok()?.down_reason())
    }

    /// How many more operations this queue has places for; what is begun beyond that gets in line, up
    /// to a [bound](Self::ready).
    #[must_use]
    pub fn credits(&self, queue: Queue) -> u32 {
        self.driver().with_ring(|ring| {
            let channel = ring.group.channel(self.at);
            channel.map_or(0, |channel| channel.credits(queue))
        })
    }

    /// The protection domain whose regions it works on.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.shared.pd()
    }

    /// What the peer knows of this side; `None` once the queue pair has been destroyed.
    #[must_use]
    pub fn endpoint(&self) -> Option<QueuePairEndpoint> {
        self.driver()
            .with_ring(|ring| ring.group.channel(self.at).ok()?.endpoint().copied())
    }

    pub(crate) const fn group(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn driver(&self) -> &Driver<Channels> {
        &self.shared.driver
    }
}

impl ForRoom<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let AsyncChannel { at, backlog, .. } = *self.channel;
        let driver = self.channel.driver();
        driver.poll_room(at, self.queue as usize, backlog, &mut self.key, cx)
    }
}

impl Drop for ForRoom<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let driver = self.channel.driver();
            driver.forget_room(self.channel.at, self.queue as usize, key);
        }
    }
}

impl Drop for AsyncChannel {
    fn drop(&mut self) {
        self.shared.end(self.at, DownReason::Closed, true);
    }
}

impl fmt::Debug for AsyncChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncChannel").field(&self.at).finish()
    }
}
