//! A datagram endpoint that waits.

use std::fmt;
use std::time::{Duration, Instant};

use verbs_core::ProtectionDomain;
use verbs_core::completion::CompletionChannel;
use verbs_core::error::Rejected;
use verbs_core::path::DatagramEndpoint;

use super::datagram::Datagram;
use super::engine::DatagramEngine;
use super::failure::DatagramFailure;
use crate::buffer::OwnedBuffer;
use crate::error::{DownReason, Error, RejectReason, Result};
use crate::waiting::PollStrategy;
use crate::waiting::{Deadline, Pause, Paused, longest_sleep};

/// Sends datagrams to any number of peers, and receives from them, without connections.
///
/// A peer is identified by its [`endpoint`](Self::endpoint), which it sends to the others by any
/// means. Each received datagram has its sender's endpoint, so it can be answered.
///
/// A datagram has at most [`max_payload`](Self::max_payload) bytes: longer ones are rejected. It
/// arrives once or not at all, and in any order: there is no error if a peer is gone or has no
/// room left, or if datagrams overtake each other. For data that must arrive, use a
/// [`Channel`](crate::Channel).
///
/// [`max_recv_wr`](crate::datagrams::DatagramsConfig::max_recv_wr) receives are always posted. When all of
/// them are filled, because datagrams were not taken or their buffers are still in use, further
/// datagrams are dropped.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs_channel::verbs_core::Context;
/// use verbs_channel::{BufferPool, Datagrams};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let mut left = Datagrams::builder(&pd).build()?;
/// let mut right = Datagrams::builder(&pd).build()?;
///
/// let pool = BufferPool::new(&pd, 1024, 16)?;
/// let hello = pool.take_with(b"hello")?.ok_or("the pool is empty")?;
/// left.send_to(&right.endpoint(), hello)?;
///
/// if let Some(datagram) = right.receive_from(Duration::from_secs(1))? {
///     println!("{} bytes from {:?}", datagram.len(), datagram.from());
///     right.send_to(&datagram.from(), datagram.into_buffer())?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A datagram that fails, for example because this side's address has moved in the GID table since its address handle
/// was made, does not end the endpoint: see [`take_failed`](Self::take_failed).
///
/// Dropping it does not wait: it destroys the queue pair, then releases all buffers. Datagrams that
/// have not left may be lost: [`flush`](Self::flush) waits for them.
pub struct Datagrams {
    pub(super) engine: DatagramEngine,
    pub(super) completion_channel: Option<CompletionChannel>,
    pub(super) strategy: PollStrategy,
    pub(super) timeout: Option<Duration>,
    pub(super) is_armed: bool,
    /// Empty: room for buffers that are about to be dropped.
    pub(super) sent: Vec<OwnedBuffer>,
}

impl Datagrams {
    #[cfg(feature = "rdmacm")]
    pub(crate) const fn engine_mut(&mut self) -> &mut DatagramEngine {
        &mut self.engine
    }

    /// The number of its port.
    #[cfg(feature = "rdmacm")]
    pub(crate) const fn port_num(&self) -> u8 {
        self.engine.port_num()
    }

    /// The protection domain in which buffers are registered.
    pub(crate) fn pd(&self) -> Result<&ProtectionDomain> {
        self.engine.pd()
    }

    /// Sends a datagram: waits for room in the send queue, posts it and returns.
    ///
    /// When the datagram has left, its buffer is dropped: a block is free in its pool again. This
    /// does not mean that the datagram has arrived.
    ///
    /// The first datagram to a port, and the first after datagrams to many other ports, creates an
    /// address handle. On RoCE the kernel then resolves the address, which takes about a second if no
    /// host answers.
    ///
    /// # Errors
    ///
    /// Each error returns the buffer. The returned buffer is empty in one case: if the driver
    /// fails within the post, and then fails to destroy the queue pair, the device may still
    /// access the buffer, so it is leaked.
    ///
    /// - [`RejectReason::DatagramTooLong`]: it exceeds the MTU of one of the two ports.
    /// - [`RejectReason::OtherDomain`]: the buffer is registered in another protection domain.
    /// - [`RejectReason::Backpressure`]: the endpoint's [`timeout`](crate::datagrams::DatagramsConfig::timeout) has
    ///   passed, and there is no room yet.
    /// - [`RejectReason::NoCapacity`]: `max_send_wr` is 0.
    /// - [`RejectReason::Down`]: the endpoint has failed.
    /// - [`verbs_core::Error::Unreachable`]: there is no path to the peer.
    pub fn send_to(
        &mut self,
        peer: &DatagramEndpoint,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<(), Rejected<OwnedBuffer, Error>> {
        let mut buffer = buffer.into();
        let mut pause = Pause::new(self.strategy, Deadline::after(self.timeout));
        loop {
            let rejected = match self.try_send_to(peer, buffer) {
                Ok(()) => return Ok(()),
                Err(rejected) => rejected,
            };
            if !rejected.error().is_backpressure() || !self.pause(&mut pause) {
                return Err(rejected);
            }
            buffer = rejected.into_given();
        }
    }

    /// As [`send_to`](Self::send_to), but never waits for room.
    ///
    /// # Errors
    ///
    /// As `send_to`; [`RejectReason::Backpressure`] if there is no room now.
    pub fn try_send_to(
        &mut self,
        peer: &DatagramEndpoint,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<(), Rejected<OwnedBuffer, Error>> {
        let mut buffer = buffer.into();
        loop {
            let rejected = match self.engine.send_to(peer, buffer) {
                Ok(()) => return Ok(()),
                Err(rejected) => rejected,
            };
            // It posts first, and polls only if that fails: the send queue is most often not full.
            if !rejected.error().is_backpressure() || !self.poll_sends() {
                return Err(rejected);
            }
            buffer = rejected.into_given();
        }
    }

    /// Waits for a datagram; `None` if `timeout` passes first. Without a timeout it waits forever. With
    /// [`Duration::ZERO`] it takes a datagram that has arrived, and does not wait.
    ///
    /// # Errors
    ///
    /// - [`RejectReason::Down`]: the endpoint has failed, and all datagrams that arrived before
    ///   were taken.
    /// - [`RejectReason::NoCapacity`]: `max_recv_wr` is 0, so none can arrive.
    pub fn receive_from(
        &mut self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<Datagram>> {
        let mut pause = Pause::new(self.strategy, Deadline::after(timeout.into()));
        loop {
            if let Some(datagram) = self.take_received()? {
                return Ok(Some(datagram));
            }
            self.engine.check_receives()?;
            if !self.pause(&mut pause) {
                return self.take_received();
            }
        }
    }

    fn take_received(&mut self) -> Result<Option<Datagram>> {
        if let Some(datagram) = self.engine.received() {
            return Ok(Some(datagram));
        }
        self.poll_sends();
        match (self.engine.received(), self.engine.down_reason()) {
            (None, Some(reason)) => Err(RejectReason::Down(reason).into()),
            (datagram, _) => Ok(datagram),
        }
    }

    /// The data that a peer needs to send to this endpoint.
    #[must_use]
    pub const fn endpoint(&self) -> DatagramEndpoint {
        self.engine.endpoint()
    }

    /// The length in bytes of the longest datagram that it can send: the MTU of its port.
    #[must_use]
    pub const fn max_payload(&self) -> u32 {
        self.engine.max_payload()
    }

    /// Waits until every datagram has left; `false` if that takes longer than `timeout`. With
    /// `None` it waits forever. After a failure nothing is in flight, and this returns `true`.
    pub fn flush(&mut self, timeout: impl Into<Option<Duration>>) -> bool {
        let mut pause = Pause::new(self.strategy, Deadline::after(timeout.into()));
        while self.engine.sends_in_flight() > 0 {
            if !self.poll_sends() && !self.pause(&mut pause) {
                return self.engine.sends_in_flight() == 0;
            }
        }
        true
    }

    /// How many datagrams have been posted and not left yet.
    #[must_use]
    pub const fn sends_in_flight(&self) -> usize {
        self.engine.sends_in_flight()
    }

    /// Why it has failed; `None` while it works. An endpoint that has failed cannot be used again:
    /// build another one.
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        self.engine.down_reason()
    }

    /// Forgets the address handle to a peer's port: the next datagram to it resolves the address
    /// again. Call it for a peer whose host was replaced.
    pub fn forget(&mut self, peer: &DatagramEndpoint) {
        drop(self.engine.forget(peer));
    }

    /// Forgets all address handles, as [`forget`](Self::forget) does for one peer.
    ///
    /// Call it if you read the events of the device, and it reports a
    /// [`GID_CHANGE`](verbs_core::device::EventType::GID_CHANGE): this side's address may have another index now. Without
    /// that, the endpoint finds out while it waits, or by the failure of a datagram.
    pub fn forget_all(&mut self) {
        self.engine.forget_all();
        drop(self.engine.take_retired());
    }

    /// The oldest failure of a posted datagram that was not taken; `None` if there is none. It polls, and does not
    /// wait.
    ///
    /// A failed datagram is lost, and so may be those that were in flight with it, to any peer. It
    /// does not end the endpoint: the queue pair is restarted, and receives are posted again.
    /// Meanwhile datagrams that arrive are dropped. At most
    /// [`max_send_wr`](crate::datagrams::DatagramsConfig::max_send_wr) failures are kept; further ones
    /// replace the oldest.
    ///
    /// ```no_run
    /// # fn example(datagrams: &mut verbs_channel::Datagrams) {
    /// while let Some(failure) = datagrams.take_failed() {
    ///     eprintln!("{failure}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn take_failed(&mut self) -> Option<DatagramFailure> {
        self.poll_sends();
        self.engine.take_failed()
    }

    /// Destroys the queue pair, and returns the driver's error, which a drop would only log. It
    /// does not wait for datagrams that have not left.
    ///
    /// # Errors
    ///
    /// The errno. The buffers are then leaked.
    pub fn close(mut self) -> Result<()> {
        self.engine.fail(DownReason::Closed);
        match self.engine.take_ending() {
            Some(ending) => Ok(ending.destroy()?),
            None => Ok(()),
        }
    }

    /// Polls; whether a send has completed, or all have ended.
    fn poll_sends(&mut self) -> bool {
        self.engine.drive();
        let ended = self.engine.take_ending();
        self.engine.take_sent(&mut self.sent);
        let any = !self.sent.is_empty() || ended.is_some();
        drop((ended, self.engine.take_retired()));
        self.sent.clear();
        any
    }

    /// Waits a little; `false` when the time is over.
    fn pause(&mut self, pause: &mut Pause) -> bool {
        let longest = longest_sleep(self.engine.needs_blocks());
        let channel = self.completion_channel.as_ref();
        let now = pause.read_clock();
        match pause.after_empty(
            now,
            self.engine.queue(),
            channel,
            &mut self.is_armed,
            longest,
        ) {
            Ok(Paused::Poll) => true,
            Ok(Paused::Probe) => {
                self.engine.probe(Instant::now());
                drop(self.engine.take_ending());
                true
            }
            Ok(Paused::TimedOut) => false,
            Err(error) => {
                let errno = error.errno().unwrap_or(0);
                self.engine.fail(DownReason::Device(errno));
                drop(self.engine.take_ending());
                true
            }
        }
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams")
            .field("endpoint", &self.endpoint())
            .field("down_reason", &self.down_reason())
            .field("sends_in_flight", &self.sends_in_flight())
            .finish_non_exhaustive()
    }
}
