//! The operations of a channel, whether or not it belongs to a group.
#![expect(
    unsafe_code,
    reason = "keeps borrows until the device is done with them; or passes the contract of a post on to the caller"
)]

use std::ops::RangeBounds;

use verbs_core::__private::indices;
use verbs_core::error::Rejected;
use verbs_core::verbs_sys::ibv_send_wr;
use verbs_core::work_request::{ChainRequest, RequestChain};
use verbs_core::{RemoteMemoryRegion, WorkSuccess};

use crate::channel::scope::{self, PollingScope};
use crate::channel::{Channel, Hold};
use crate::engine::{BufferOwner, Ticket};
use crate::error::{RejectReason, ScopeError, TransportError};
use crate::request::{GatherList, Incoming, Outgoing, Request, ScatterList};
use crate::waiting::AbortOnUnwind;

impl<H: Hold> Channel<H> {
    /// Sends a message, and waits until the peer's device has received it.
    ///
    /// To send all of a region: `channel.send(region.gather_element(..)?)`. If the peer has no receive
    /// posted, the device retries: see [`rnr_retry`](crate::ChannelConfig::rnr_retry).
    ///
    /// # Errors
    ///
    /// [`TransportError::Rejected`]: the request was not posted. With any other, the operation failed, or did not
    /// complete within the channel's [`timeout`](crate::ChannelConfig::timeout): the channel is down after that.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send(&mut self, list: impl GatherList) -> Result<(), TransportError> {
        self.run(Outgoing::send(list)).map(drop)
    }

    /// Waits for a message from the peer, and receives it.
    ///
    /// The returned [`WorkSuccess`] has the message's [length](WorkSuccess::byte_len) and
    /// [immediate data](WorkSuccess::imm_data), and returns the [message](WorkSuccess::message_in) as a
    /// slice of the buffer.
    ///
    /// Without a [`timeout`](crate::ChannelConfig::timeout), this waits forever if the peer sends
    /// nothing: for one receive, `channel.run(Incoming::receive(list).timeout(d))` has its own. If no message
    /// arrives in time, the channel is aborted, since a device gives posted receives back in no other way. To wait
    /// without an abort, use [`start_receive`](Self::start_receive) and [`wait`](Self::wait).
    ///
    /// If the peer sends before this call, its device retries until a receive is posted;
    /// soft-RoCE gives up, by default after about half a second. To have a receive posted earlier, use
    /// [`start_receive`](Self::start_receive) or a scope.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(&mut self, list: impl ScatterList) -> Result<WorkSuccess, TransportError> {
        self.run(Incoming::receive(list))
    }

    /// Writes to the start of `remote`, and waits until the peer's device has received the bytes.
    ///
    /// `remote` is the peer's [`SharedRegion::remote`], which the peer sends beforehand, for
    /// example as a message:
    ///
    /// ```no_run
    /// use verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion};
    /// use verbs_channel::{Channel, Error, Outgoing};
    ///
    /// /// Offers a region, and waits until the peer has written to it.
    /// fn offer(channel: &mut Channel) -> Result<[u8; 16], Error> {
    ///     let region = channel.pd().reg_shared(vec![0_u8; 4096], AccessFlags::REMOTE_WRITE)?;
    ///     let remote = channel.pd().reg_mr(region.remote().to_bytes().to_vec())?;
    ///     let mut unused = channel.pd().reg_mr(vec![0_u8; 1])?;
    ///     channel.scope(|scope| {
    ///         // The peer's write with immediate completes it. The bytes are in `region` then.
    ///         scope.post_receive(unused.scatter_element(..)?)?;
    ///         scope.post_send(remote.gather_element(..)?)?;
    ///         Ok(())
    ///     })?;
    ///     let mut bytes = [0; 16];
    ///     region.read(0, &mut bytes)?;
    ///     Ok(bytes)
    /// }
    ///
    /// fn write_there(channel: &mut Channel, data: Vec<u8>) -> Result<(), Error> {
    ///     let mut inbox = channel.pd().reg_mr(vec![0_u8; RemoteMemoryRegion::BYTES])?;
    ///     channel.receive(inbox.scatter_element(..)?)?;
    ///     let remote = RemoteMemoryRegion::from_bytes(&inbox)?;
    ///     let data = channel.pd().reg_mr(data)?;
    ///     channel.run(Outgoing::write(data.gather_element(..)?, remote).immediate(0))?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// [`SharedRegion::remote`]: verbs_core::SharedRegion::remote
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); [`RejectReason::RemoteTooShort`] if the bytes do not fit into
    /// `remote`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write(
        &mut self,
        list: impl GatherList,
        remote: RemoteMemoryRegion,
    ) -> Result<(), TransportError> {
        self.run(Outgoing::write(list, remote)).map(drop)
    }

    /// Reads from the start of `remote`, and waits until the bytes have arrived.
    ///
    /// The total length of the elements is the number of bytes that it reads.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); [`RejectReason::NoReads`] if the peer serves no reads.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read(
        &mut self,
        list: impl ScatterList,
        remote: RemoteMemoryRegion,
    ) -> Result<(), TransportError> {
        self.run(Incoming::read(list, remote)).map(drop)
    }

    /// Posts a request with its options, an [`Outgoing`] or an [`Incoming`], and waits until it has
    /// completed: `channel.run(Outgoing::send(list).immediate(7))`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn run(&mut self, request: impl Request) -> Result<WorkSuccess, TransportError> {
        let (poller, at) = self.parts();
        let timeout = request.timeout();
        let (mut list, op) = request.into_parts();
        let guard = AbortOnUnwind;
        // SAFETY: `list` and the memory that it borrows live until this returns. `finish` returns only when the device is
        // done with that memory, also if the post was rejected and the device may have a part of the request. If this
        // panics, the process is aborted.
        let posted = unsafe {
            let owner = BufferOwner::Borrowed;
            poller.engine.post_list(at, owner, &mut list, op)
        };
        poller.finish(guard, at, posted, timeout)
    }

    /// Posts a batch with one doorbell and one completion, and waits until it has completed.
    ///
    /// The requests are all [`Outgoing`] or all [`Incoming`]. The shortest of their timeouts holds for the batch.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); [`RejectReason::BatchTooLong`] if the send queue cannot hold it.
    #[doc(alias = "ibv_post_send")]
    pub fn run_batch<const N: usize>(
        &mut self,
        mut requests: [impl Request; N],
    ) -> Result<(), TransportError> {
        let (poller, at) = self.parts();
        let mut timeout = None;
        for request in &requests {
            timeout = timeout.into_iter().chain(request.timeout()).min();
        }
        let guard = AbortOnUnwind;
        // SAFETY: `requests` and the memory that they borrow live until this returns. `finish` returns only when the
        // device is done with that memory, also if the post was rejected and the device may have a part of the batch. If
        // this panics, the process is aborted.
        let posted = unsafe { poller.engine.post_batch_at(at, &mut requests) };
        poller.finish(guard, at, posted, timeout).map(drop)
    }

    /// Opens a scope, in which requests borrow their buffers until the scope ends.
    ///
    /// It works like [`std::thread::scope`], and ends when the device is done with all of the
    /// buffers:
    ///
    /// - If the closure returns `Ok`, the scope waits for the operations in flight, up to the
    ///   channel's timeout. It does not wait for receives if the closure has called
    ///   [`close_with_receives_left`](PollingScope::close_with_receives_left).
    /// - If the closure returns an error or panics, the scope waits for operations of the send queue
    ///   for at most the drain timeout, and not for receives. If any operations are still in flight,
    ///   they are aborted, and the channel is down.
    ///
    /// # Errors
    ///
    /// - [`ScopeError::ClosureError`]: the closure returned this error.
    /// - [`ScopeError::AutoPollError`]: an operation failed, and the closure did not take its
    ///   outcome.
    ///
    /// # Examples
    ///
    /// `?` converts both errors into [`Error`](crate::Error). In a function that returns this error,
    /// the closure can end with `Ok(())`. In a function that returns another error, such as the
    /// `Box<dyn Error>` of most `main`s, there are two cases:
    ///
    /// - The closure has only errors of this crate: end it with `Ok::<_, verbs_channel::Error>(())`,
    ///   since nothing else determines its error type.
    /// - It has others, too: end it with `Ok(())`, and add `.map_err(ScopeError::flatten)`.
    ///
    /// ```no_run
    /// # use std::error::Error;
    /// # use verbs_channel::{Channel, ScopeError, verbs_core::GatherElement};
    /// fn both(channel: &mut Channel, of: [GatherElement<'_>; 2]) -> verbs_channel::Result<()> {
    ///     channel.scope(|scope| {
    ///         let first = scope.post_send(of[0])?;
    ///         let second = scope.post_send(of[1])?;
    ///         first.spin_poll()?;
    ///         second.spin_poll()?;
    ///         Ok(())
    ///     })?;
    ///     Ok(())
    /// }
    ///
    /// fn two(channel: &mut Channel, of: GatherElement<'_>) -> Result<(), Box<dyn Error>> {
    ///     channel.scope(|scope| {
    ///         scope.post_send(of)?;
    ///         scope.post_send(of)?;
    ///         Ok::<_, verbs_channel::Error>(())
    ///     })?;
    ///     Ok(())
    /// }
    ///
    /// fn number(channel: &mut Channel, of: GatherElement<'_>) -> Result<u32, Box<dyn Error>> {
    ///     channel
    ///         .scope(|scope| {
    ///             scope.post_send(of)?;
    ///             Ok("7".parse()?)
    ///         })
    ///         .map_err(ScopeError::flatten)
    /// }
    /// ```
    ///
    /// A pipeline: parts of a region are filled, lent, and filled again when they are returned.
    ///
    /// ```no_run
    /// # use std::collections::VecDeque;
    /// # use std::error::Error;
    /// # use std::io::Read;
    /// # use verbs_channel::{Channel, Outgoing, ScopeError, ScopedPendingWork};
    /// # use verbs_channel::verbs_core::{MemoryRegion, ScatterElement};
    /// fn send_frames(
    ///     channel: &mut Channel,
    ///     window: &mut MemoryRegion<Vec<u8>>,
    ///     frames: u32,
    ///     mut from: impl Read,
    /// ) -> Result<(), Box<dyn Error>> {
    ///     // The most that can be in flight at once: the channel's `max_send_wr`, 64 unless set.
    ///     let parts = window.scatter_element(..)?.chunks_mut(4096)?;
    ///     let mut free: Vec<_> = parts.take(64).collect();
    ///     channel
    ///         .scope(|scope| {
    ///             let mut lent: VecDeque<ScopedPendingWork<'_, '_, ScatterElement<'_>>> =
    ///                 VecDeque::new();
    ///             for _ in 0..frames {
    ///                 if free.is_empty() {
    ///                     let (sent, part) = lent.pop_front().ok_or("an empty window")?.spin_poll();
    ///                     sent?;
    ///                     free.push(part);
    ///                 }
    ///                 let mut part = free.pop().expect("one is free");
    ///                 from.read_exact(&mut part)?;
    ///                 lent.push_back(scope.lend(Outgoing::send(part))?);
    ///             }
    ///             Ok(()) // The scope waits for those that are lent.
    ///         })
    ///         .map_err(ScopeError::flatten)
    /// }
    /// ```
    pub fn scope<'env, T, E>(
        &'env mut self,
        closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let (poller, at) = self.parts();
        scope::scope(poller, at, false, closure)
    }

    /// A [`scope`](Self::scope) that does not wait: its closure has to take every outcome.
    ///
    /// Operations that are in flight when the closure returns are aborted, which is an error.
    ///
    /// ```no_run
    /// # use verbs_channel::{Channel, verbs_core::GatherElement};
    /// fn both(channel: &mut Channel, of: [GatherElement<'_>; 2]) -> verbs_channel::Result<()> {
    ///     channel.manual_scope(|scope| {
    ///         let first = scope.post_send(of[0])?;
    ///         let second = scope.post_send(of[1])?;
    ///         first.spin_poll()?;
    ///         second.spin_poll()?; // Without this line, the second send would be aborted.
    ///         Ok(())
    ///     })?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`scope`](Self::scope).
    pub fn manual_scope<'env, T, E>(
        &'env mut self,
        closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let (poller, at) = self.parts();
        scope::scope(poller, at, true, closure)
    }

    /// Posts a request whose buffers the caller manages, and returns a ticket for it.
    ///
    /// This is for layers above. [`poll`](Self::poll) and [`wait`](Self::wait) take the outcome; its
    /// [`buffer`](crate::Completed::buffer) is `None`.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write), with the request. If the driver fails and may have
    /// taken the request, this returns a ticket and the channel is down.
    ///
    /// # Safety
    ///
    /// From this call until the outcome has been taken and is not
    /// [`Stuck`](crate::TransportError::Stuck):
    ///
    /// - the memory of the elements stays allocated and registered;
    /// - nothing writes to the memory from which a send or a write takes its bytes;
    /// - nothing accesses the memory into which a read or an atomic puts its bytes.
    ///
    /// If the outcome is `Stuck`, or the channel is dropped, leaked or removed before the outcome was
    /// taken, these conditions hold until the process ends. [`abort`](Self::abort) ends the
    /// operations in flight, so that their outcomes can be taken.
    #[doc(alias = "ibv_post_send")]
    pub unsafe fn post_unpolled<W: Request>(
        &mut self,
        request: W,
    ) -> Result<Ticket, Rejected<W, RejectReason>> {
        let (poller, at) = self.parts();
        // SAFETY: the caller promises to keep the memory until the result has been taken.
        unsafe { poller.engine.post_unpolled_at(at, request) }
    }

    /// Posts a receive whose buffers the caller manages: as
    /// [`post_unpolled`](Self::post_unpolled).
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send), with the list.
    ///
    /// # Safety
    ///
    /// As for [`post_unpolled`](Self::post_unpolled): nothing accesses the memory into which the
    /// message is received.
    #[doc(alias = "ibv_post_recv")]
    pub unsafe fn post_receive_unpolled<L: ScatterList>(
        &mut self,
        list: L,
    ) -> Result<Ticket, Rejected<L, RejectReason>> {
        // SAFETY: the caller promises to keep the memory until the result has been taken.
        let posted = unsafe { self.post_unpolled(Incoming::receive(list)) };
        posted.map_err(|rejected| {
            let (reason, request) = rejected.into_parts();
            Rejected::new(reason, request.into_list())
        })
    }

    /// Posts requests of a chain that was built once, and whose buffers the caller manages: all of them
    /// (`..`), or a part (`start..end`).
    ///
    /// They are posted in their order with one doorbell, and are one operation. Only the last is
    /// signalled, whatever [`signal_every`](RequestChain::signal_every) chose, and the chain's IDs
    /// are overwritten. Nothing is allocated. The ticket is like that of
    /// [`post_unpolled`](Self::post_unpolled). The chain can be patched for the next post once this
    /// returns.
    ///
    /// # Errors
    ///
    /// - As [`start_batch`](Self::start_batch), for the requests of the range.
    /// - [`RejectReason::Post`] if the range extends past the end of the chain.
    ///
    /// If the driver fails and may have taken requests, this returns a ticket and the channel is down.
    ///
    /// # Safety
    ///
    /// - As for [`post_unpolled`](Self::post_unpolled), for the elements of each request that is posted.
    /// - The region of each element belongs to the channel's protection domain. On another device, or in
    ///   another domain, the same `lkey` may refer to other memory.
    /// - If the chain is inline: this processor can read the memory of its elements, and no thread and no
    ///   peer writes to it during this call.
    #[doc(alias = "ibv_post_send")]
    pub unsafe fn post_chain_unpolled<R: ChainRequest<Wr = ibv_send_wr>>(
        &mut self,
        chain: &mut RequestChain<R>,
        range: impl RangeBounds<usize>,
    ) -> Result<Ticket, RejectReason> {
        let (start, end) = indices(chain.len(), range);
        let (poller, at) = self.parts();
        // SAFETY: the caller promises to keep the memory until the result has been taken.
        unsafe { poller.engine.post_chain_at(at, chain, start..end) }
    }
}
