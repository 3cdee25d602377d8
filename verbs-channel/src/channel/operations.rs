//! Everything that can be done on a channel, whether it is one of its own or one of a group.
#![expect(unsafe_code, reason = "hands the contract of a post on to the caller")]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, ProtectionDomain, QueuePairEndpoint, Rejected,
    RemoteMemoryRegion, WorkSuccess,
};

use crate::channel::scope::{self, PollingScope};
use crate::channel::{Channel, Hold};
use crate::engine::member::Member;
use crate::engine::slots::{BufferOwner, Reservation};
use crate::engine::{Link, Ticket};
use crate::error::{DownReason, Queue, Result, ScopeError};
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::{Error, Refusal};
use crate::exchange::ExchangeError;
use crate::request::{GatherList, ScatterList};
use crate::request::{Incoming, Outgoing, Work};

impl<H: Hold> Channel<H> {
    /// Sends, and waits until the peer's device has it.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it was not posted; [`Error::Transport`] if it failed, or was not
    /// done within the channel's timeout: then the channel has been aborted, and is down.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(&mut self, list: impl GatherList) -> Result<()> {
        self.complete(Outgoing::send(list), None)
    }

    /// Receives, and waits for the peer's message: its
    /// [length](WorkSuccess::byte_len) and [immediate data](WorkSuccess::imm_data) come back.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(&mut self, list: impl ScatterList) -> Result<WorkSuccess> {
        let (engine, at) = self.parts();
        engine.run_receive(at, list, None)
    }

    /// [`receive`](Self::receive) with a timeout of its own.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn receive_timeout(
        &mut self,
        list: impl ScatterList,
        timeout: Duration,
    ) -> Result<WorkSuccess> {
        let (engine, at) = self.parts();
        engine.run_receive(at, list, Some(timeout))
    }

    /// Writes to where `remote` begins, and waits until the peer's device has it.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); [`Refusal::RemoteTooShort`] if it would reach past the end
    /// of `remote`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(&mut self, list: impl GatherList, remote: RemoteMemoryRegion) -> Result<()> {
        self.complete(Outgoing::write(list, remote), None)
    }

    /// Reads from where `remote` begins, and waits until the bytes are here.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(&mut self, list: impl ScatterList, remote: RemoteMemoryRegion) -> Result<()> {
        self.complete(Incoming::read(list, remote), None)
    }

    /// If the 8 bytes at `remote` are `compare`, they become `swap`. What they were is in
    /// the list, one element of 8 bytes, when this returns.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); [`Refusal::Misaligned`], [`Refusal::RemoteTooShort`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(
        &mut self,
        before: impl ScatterList,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Result<()> {
        self.complete(
            Incoming::compare_and_swap(before, remote, compare, swap),
            None,
        )
    }

    /// Adds to the 8 bytes at `remote`. What they were is in the list, one element of 8
    /// bytes, when this returns.
    ///
    /// # Errors
    ///
    /// As [`compare_swap`](Self::compare_swap).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(
        &mut self,
        before: impl ScatterList,
        remote: RemoteMemoryRegion,
        add: u64,
    ) -> Result<()> {
        self.complete(Incoming::fetch_and_add(before, remote, add), None)
    }

    #[inline(always)]
    fn complete(&mut self, work: impl Work, timeout: Option<Duration>) -> Result<()> {
        let (engine, at) = self.parts();
        engine.run_blocking(at, work, timeout)
    }

    /// Runs a fully specified request, an [`Outgoing`] or an
    /// [`Incoming`], and waits until it is done.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "ibv_post_send")]
    pub fn run(&mut self, work: impl Work) -> Result<WorkSuccess> {
        let (engine, at) = self.parts();
        engine.run(at, work, None)
    }

    /// [`run`](Self::run) with a timeout of its own.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn run_timeout(&mut self, work: impl Work, timeout: Duration) -> Result<WorkSuccess> {
        let (engine, at) = self.parts();
        engine.run(at, work, Some(timeout))
    }

    /// Runs a batch, one doorbell and one completion for all of it, and waits until it is
    /// done.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); [`Refusal::BatchTooLong`] for more than the send queue can
    /// ever hold.
    pub fn run_batch<const N: usize>(&mut self, mut works: [impl Work; N]) -> Result<()> {
        let (engine, at) = self.parts();
        engine.run_batch(at, &mut works, None)
    }

    /// Opens a scope, in the shape of [`std::thread::scope`]: work that is posted in it
    /// borrows its buffers until it ends, and it ends when the device is done with all of them.
    ///
    /// - If the closure returns, the scope waits for what is left, up to the channel's
    ///   timeout; except for receives, if the closure has called
    ///   [`close_with_receives_left`](PollingScope::close_with_receives_left).
    /// - If it returns an error, or panics, what is left gets the drain timeout; receives
    ///   alone get none. What is not done by then is aborted, and the channel is down.
    ///
    /// # Errors
    ///
    /// [`ScopeError::ClosureError`] with the closure's error;
    /// [`ScopeError::AutoPollError`] if work whose result it did not take has failed.
    ///
    /// # Examples
    ///
    /// `?` makes an [`Error`](crate::Error) of both. For an error that any other becomes,
    /// such as `Box<dyn Error>` or anyhow's, [`ScopeError::flatten`] does.
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
    /// fn number(channel: &mut Channel, of: GatherElement<'_>) -> Result<u32, Box<dyn Error>> {
    ///     channel
    ///         .scope(|scope| {
    ///             scope.post_send(of)?;
    ///             Ok("7".parse()?)
    ///         })
    ///         .map_err(ScopeError::flatten)
    /// }
    /// ```
    pub fn scope<'env, T, E>(
        &'env mut self,
        closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let (engine, at) = self.parts();
        scope::scope(engine, at, closure)
    }

    /// A [`scope`](Self::scope) whose closure takes every result itself: what it leaves is
    /// not waited for but aborted, and is an error.
    ///
    /// # Errors
    ///
    /// As [`scope`](Self::scope).
    pub fn manual_scope<'env, T, E>(
        &'env mut self,
        closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let (engine, at) = self.parts();
        scope::manual_scope(engine, at, closure)
    }

    /// Posts work whose buffers the caller keeps, and returns a ticket for it.
    ///
    /// The base for other layers. [`poll`](Self::poll) and [`wait`](Self::wait) take the
    /// result; its [`buffer`](crate::Completed::buffer) is `None`.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write), with the work. If the driver has failed and may
    /// have taken the work all the same, that is no rejection: the channel is down, and the
    /// ticket's result says whether the device is done with the memory.
    ///
    /// # Safety
    ///
    /// From now until the result has been taken, and is not
    /// [`Stuck`](crate::TransportError::Stuck):
    ///
    /// - what the work names stays registered and allocated;
    /// - nothing writes to what it sends from, and nothing touches what it reads into.
    ///
    /// A channel that is dropped, forgotten or removed before the result was taken never
    /// gives the memory back, nor does one whose result is `Stuck`: it stays the device's
    /// until the process ends. [`abort`](Self::abort) ends what is in flight, so that the
    /// result can be taken.
    pub unsafe fn post_unpolled<W: Work>(
        &mut self,
        work: W,
    ) -> Result<Ticket, Rejected<W, Refusal>> {
        let (engine, at) = self.parts();
        let (mut list, options) = work.into_parts();
        let reservation = Reservation::send(at).owned_by(BufferOwner::Caller);
        // SAFETY: the caller's promise.
        match unsafe { engine.post::<W>(reservation, &mut list, options) } {
            Ok(ticket) => Ok(ticket),
            Err(refusal) => match engine.end_half_unpolled(at, refusal) {
                Some(ticket) => Ok(ticket),
                None => Err(Rejected::new(refusal, W::from_parts(list, options))),
            },
        }
    }

    /// Posts a receive whose buffers the caller keeps: as
    /// [`post_unpolled`](Self::post_unpolled).
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send), with the list.
    ///
    /// # Safety
    ///
    /// As [`post_unpolled`](Self::post_unpolled).
    pub unsafe fn post_receive_unpolled<L: ScatterList>(
        &mut self,
        mut list: L,
    ) -> Result<Ticket, Rejected<L, Refusal>> {
        let (engine, at) = self.parts();
        let reservation = Reservation::receive(at).owned_by(BufferOwner::Caller);
        // SAFETY: the caller's promise.
        match unsafe { engine.post_receive(reservation, &mut list) } {
            Ok(ticket) => Ok(ticket),
            Err(refusal) => match engine.end_half_unpolled(at, refusal) {
                Some(ticket) => Ok(ticket),
                None => Err(Rejected::new(refusal, list)),
            },
        }
    }

    /// Gives the channel up: everything in flight is aborted, and it is down.
    ///
    /// The results of owned buffers can still be taken.
    pub fn abort(&mut self) {
        let (engine, at) = self.parts();
        engine.abort(at, DownReason::Closed);
    }

    /// The first half of [`abort`](Self::abort), which does not wait: from now on it is down,
    /// and what is in flight comes back flushed, by and by, through the usual results. If the
    /// device cannot be told so, all of it has ended when this returns.
    ///
    /// What does not come back, [`give_up`](Self::give_up) ends.
    pub fn shut_down(&mut self) {
        let (engine, at) = self.parts();
        engine.shut_down(at, DownReason::Closed);
    }

    /// The last step of [`abort`](Self::abort), at once: destroys the queue pair, so that
    /// everything in flight has ended when this returns. Unless the channel is down already,
    /// `reason` is why.
    ///
    /// The results of owned buffers can still be taken.
    pub fn give_up(&mut self, reason: DownReason) {
        let (engine, at) = self.parts();
        engine.destroy(at, reason);
    }

    /// Places in one of its queues that are free.
    ///
    /// An untaken result has freed its credit but not its slot, so a channel with many untaken results
    /// may reject requests although it has credits.
    #[must_use]
    pub fn credits(&self, queue: Queue) -> u32 {
        let (engine, at) = self.shared();
        let member = engine.members.get(at as usize);
        member.map_or(0, |member| member.credits(queue))
    }

    /// How many places of this queue are taken by what is in flight.
    #[must_use]
    pub fn in_flight(&self, queue: Queue) -> u32 {
        let (engine, at) = self.shared();
        let member = engine.members.get(at as usize);
        member.map_or(0, |member| member.capacity(queue) - member.credits(queue))
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let (engine, at) = self.shared();
        engine.members.get(at as usize).is_none_or(Member::is_idle)
    }

    /// Watches the peer by this descriptor from now on: when it ends, the peer has left, and
    /// the channel goes down. For handshakes by hand; those over TCP do it by themselves.
    ///
    /// It is a socket whose other end the peer keeps as long as its channel (TCP, Unix), or an
    /// end of a pipe. The channel owns it: when it goes down or is dropped, it closes it, and
    /// so the peer notices in the same way. Nothing is read from it. A half-closed socket
    /// (`shutdown(2)`) counts as an end. On TCP, keepalive is set as the channel's
    /// `peer_timeout` says; if that is `None`, the descriptor is kept and not watched.
    ///
    /// What the peer sent before its end is delivered first. Then the channel is
    /// [down](Self::down_reason), with [`DownReason::PeerClosed`] or
    /// [`DownReason::PeerLost`]. It is noticed by whatever waits or polls.
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`] if the descriptor cannot be watched: one of a regular file, or too
    /// many are open.
    pub fn watch_peer(&mut self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let (engine, at) = self.parts();
        let link = Link::new(descriptor.into(), engine.waits.peer_timeout);
        let watched = link.and_then(|link| engine.watch_peer(at, link));
        Ok(watched.map_err(ExchangeError::not_watched)?)
    }

    /// The peer's address, if the channel was connected over TCP or has been given a TCP
    /// socket to [watch the peer by](Self::watch_peer). It stays when the channel is down.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let (engine, at) = self.shared();
        engine.members.get(at as usize)?.peer.address()
    }

    /// Whether it takes no more work.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down_reason().is_some()
    }

    /// Why it takes no more work, if it does not.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        let (engine, at) = self.shared();
        engine.members.get(at as usize)?.down()
    }

    /// The protection domain whose regions it works on.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.shared().0.pd()
    }

    /// The queue that its work completes on, to have arrivals announced, and to know it by.
    ///
    /// # Safety
    ///
    /// Through it and all of its clones:
    ///
    /// - nothing polls it: the operation of a completion taken there is waited for until its deadline;
    /// - nothing makes it smaller, or has other queue pairs complete on it: it would overrun.
    #[must_use]
    pub unsafe fn cq(&self) -> &CompletionQueue {
        self.shared().0.cq()
    }

    /// What announces its completions; there with
    /// [`PollStrategy::Notify`](crate::PollStrategy::Notify).
    #[must_use]
    pub fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.shared().0.announcer()
    }

    /// What the peer knows of this side; `None` once the queue pair has been destroyed.
    #[must_use]
    pub fn endpoint(&self) -> Option<&QueuePairEndpoint> {
        let (engine, at) = self.shared();
        let member = engine.members.get(at as usize)?;
        member.qp().map(verbs_core::QueuePair::endpoint)
    }
}
