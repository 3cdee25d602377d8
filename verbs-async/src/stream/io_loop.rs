//! The operations of a stream, and how their outcomes change it.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::{Outgoing, OwnedBuffer, TransportError};

use super::error::{Failure, StreamError};
use super::half::{Half, Halves};
use super::machine::{self, Block, Machine, Send, Sent};
use super::protocol::Protocol;
use super::tasks::Event;
use super::wire::{SPARE, Settings};
use crate::channel::{AsyncChannel, Operation};
use crate::threads::Timed;

/// Bytes for the reader.
pub(super) type Segment = machine::Segment<OwnedBuffer>;

/// The state behind the lock. No waker is woken, cloned or dropped under it.
pub(super) struct StreamState {
    machine: Machine<OwnedBuffer>,
    /// `None` once the stream has ended.
    channel: Option<AsyncChannel>,
    /// Posted, in this order.
    receives: VecDeque<Operation>,
    /// In flight, in this order.
    sends: VecDeque<(Sent, Operation)>,
    /// Why nothing more can be received, and why nothing more can be sent.
    receive_failure: Option<Failure>,
    send_failure: Option<Failure>,
    on_arrival: Waker,
    on_sent: Waker,
    /// Whether data to be sent waits for operations in flight.
    is_urgent: Arc<AtomicBool>,
    pub(super) linger: Duration,
    /// Identifies the stream while it lingers.
    pub(super) linger_key: Option<Timed>,
    has_reader: bool,
    has_writer: bool,
}

/// Remains of a stream that has ended, to be dropped without the lock.
pub(super) type Remains = (
    Option<AsyncChannel>,
    VecDeque<Operation>,
    VecDeque<(Sent, Operation)>,
);

impl StreamState {
    pub(super) fn new(
        channel: AsyncChannel,
        ours: Settings,
        mut blocks: Vec<OwnedBuffer>,
        is_urgent: Arc<AtomicBool>,
        signal: impl Fn(Event) -> Waker,
    ) -> Self {
        // Each send has room in the queue: none waits in the backlog.
        let max_sends = channel.credits(Queue::Send).max(1);
        let max_sends = usize::try_from(max_sends).unwrap_or(usize::MAX);
        let receives = usize::from(ours.depth) + usize::from(SPARE);
        let to_receive = blocks.split_off(blocks.len().saturating_sub(receives));
        let hello = blocks.pop();
        let mut machine = Machine::new(ours, blocks, max_sends);
        machine.unposted().extend(to_receive);
        let mut state = Self {
            machine,
            channel: Some(channel),
            receives: VecDeque::with_capacity(receives),
            sends: VecDeque::with_capacity(max_sends.min(2 * receives)),
            receive_failure: None,
            send_failure: None,
            on_arrival: signal(Event::Arrival),
            on_sent: signal(Event::Sent),
            is_urgent,
            linger: LINGER,
            linger_key: None,
            has_reader: true,
            has_writer: true,
        };
        state.post();
        state.send_hello(hello, ours);
        state
    }

    /// Handles arrivals and completed sends, then sends what it can.
    ///
    /// The tasks are woken when more arrives: the oldest receive has their waker. Before a task
    /// sleeps until a send has completed, it calls [`watch_sends`](Self::watch_sends).
    pub(super) fn drive(&mut self) {
        self.take_arrivals();
        self.take_sent();
        self.send_all();
    }

    /// The next bytes for the reader. Takes back those that it has read.
    pub(super) fn next_segment(&mut self, read: Option<Segment>) -> Option<Segment> {
        if let Some(read) = read {
            self.recycle(read);
            self.send_all();
        }
        self.machine.next_segment()
    }

    /// Takes back bytes that the reader has read.
    pub(super) fn recycle(&mut self, read: Segment) {
        self.machine.recycle(read);
        self.post();
    }

    /// Waits until there is something to read. `None` at the end of the data.
    pub(super) fn poll_next(&mut self) -> Poll<io::Result<Option<Segment>>> {
        let mut next = self.machine.next_segment();
        if next.is_none() {
            self.drive();
            next = self.machine.next_segment();
        }
        if next.is_some() || self.machine.protocol().fin_was_received() {
            return Poll::Ready(Ok(next));
        }
        match self.receive_failure.and_then(|_| self.failure()) {
            Some(failure) => Poll::Ready(Err(failure.into())),
            None => Poll::Pending,
        }
    }

    /// Waits until something can be written, and writes as much as `fill` puts into a block.
    pub(super) fn poll_write(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        if self.machine.fin_is_requested() {
            let kind = io::ErrorKind::BrokenPipe;
            let error = io::Error::new(kind, "the stream was shut down for writing");
            return Poll::Ready(Err(error));
        }
        self.drive();
        if !self.machine.has_room() {
            self.watch_sends();
        }
        if let Some(failure) = self.failure() {
            return Poll::Ready(Err(failure.into()));
        }
        let Some(filled) = self.machine.write(fill) else {
            return Poll::Pending;
        };
        self.send_all();
        Poll::Ready(Ok(filled))
    }

    /// Waits until everything written has arrived.
    pub(super) fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        self.machine.push();
        self.drive();
        if !self.machine.has_arrived() {
            self.watch_sends();
        }
        if self.machine.has_arrived() {
            return Poll::Ready(Ok(()));
        }
        match self.failure() {
            // The peer's reader has read all of it.
            Some(_) if self.machine.is_seen() == Some(true) => Poll::Ready(Ok(())),
            Some(failure) => Poll::Ready(Err(failure.into())),
            None => Poll::Pending,
        }
    }

    /// Ends the data, and waits until the peer's stream has confirmed that.
    pub(super) fn poll_end(&mut self) -> Poll<io::Result<()>> {
        self.machine.request_fin();
        self.drive();
        self.watch_sends();
        match (self.machine.is_seen(), self.failure()) {
            // Nothing after the confirmation revokes it.
            (Some(true), _) => Poll::Ready(Ok(())),
            (Some(false), Some(Failure::Peer(error))) => Poll::Ready(Err(error.into())),
            (Some(false), _) => Poll::Ready(Err(StreamError::Reset.into())),
            (None, Some(failure)) => Poll::Ready(Err(failure.into())),
            (None, None) => Poll::Pending,
        }
    }

    pub(super) const fn channel(&self) -> Option<&AsyncChannel> {
        self.channel.as_ref()
    }

    /// Why nothing more can be written.
    fn failure(&self) -> Option<Failure> {
        if self.machine.protocol().peer_has_closed() {
            return Some(Failure::Peer(StreamError::Reset));
        }
        match (self.receive_failure, self.send_failure) {
            (Some(peer @ Failure::Peer(_)), _) => Some(peer),
            // Receives are only flushed when the channel goes down: the send has the cause.
            (_, Some(first)) => Some(first),
            (received, None) => received,
        }
    }

    pub(super) fn is_down(&self) -> bool {
        let is_down = self.channel.as_ref().is_none_or(AsyncChannel::is_down);
        is_down || self.failure().is_some()
    }

    /// Whether both halves were dropped, and the stream has not ended.
    pub(super) const fn is_dropped(&self) -> bool {
        !self.has_reader && !self.has_writer && self.channel.is_some()
    }

    /// Drops a half; the reading half possibly with unread bytes. If the stream is undivided, the
    /// reading half is dropped first, and the writing half follows.
    pub(super) fn drop_half(&mut self, half: Half, unread: bool, is_undivided: bool) {
        match half {
            Half::Read => {
                self.has_reader = false;
                self.machine.discard(unread);
            }
            Half::Write => {
                self.has_writer = false;
                self.machine.request_fin();
            }
        }
        if self.is_dropped() {
            self.machine.drop_stream();
        }
        if half == Half::Write || !is_undivided {
            self.drive();
        }
    }

    /// The halves whose tasks may wait for something that happened since the last call.
    pub(super) fn take_changed(&mut self) -> Halves {
        self.machine.take_changed()
    }

    pub(super) fn take_if_over(&mut self) -> Option<Remains> {
        let is_over = self.machine.is_over() || self.failure().is_some();
        (self.is_dropped() && is_over).then(|| self.take())
    }

    pub(super) fn take(&mut self) -> Remains {
        let (receives, sends) = (mem::take(&mut self.receives), mem::take(&mut self.sends));
        (self.channel.take(), receives, sends)
    }

    fn take_arrivals(&mut self) {
        while self.receive_failure.is_none()
            && let Some(receive) = self.receives.front_mut()
        {
            let mut cx = Context::from_waker(&self.on_arrival);
            let Poll::Ready((result, block)) = receive.poll_uncounted(&mut cx) else {
                break;
            };
            drop(self.receives.pop_front());
            let arrived = match result {
                Ok(success) => self.take_arrival(success, block),
                Err(error) => Err(Failure::Transport(error)),
            };
            if let Err(failure) = arrived {
                self.receive_failure = Some(failure);
                self.machine.fail();
            }
        }
        self.post();
    }

    fn take_arrival(
        &mut self,
        success: WorkSuccess,
        mut block: OwnedBuffer,
    ) -> Result<(), Failure> {
        let len = success.byte_len().try_into().unwrap_or(usize::MAX);
        Block::set_range(&mut block, 0..len);
        let received = if success.opcode() == WcOpcode::RECV {
            self.machine.receive(success.imm_data(), block)
        } else {
            Err(StreamError::Protocol("an RDMA write with immediate"))
        };
        received.map_err(Failure::Peer)
    }

    /// Handles completed sends. Whether there were any.
    fn take_sent(&mut self) -> bool {
        let mut any = false;
        while let Some((_, send)) = self.sends.front_mut() {
            let mut cx = Context::from_waker(&self.on_sent);
            let Poll::Ready((result, block)) = send.poll_uncounted(&mut cx) else {
                break;
            };
            let Some((sent, _)) = self.sends.pop_front() else {
                break;
            };
            any = true;
            self.end_send(sent, result, block);
        }
        any
    }

    fn end_send(
        &mut self,
        sent: Sent,
        result: Result<WorkSuccess, TransportError>,
        block: OwnedBuffer,
    ) {
        let block = (block.capacity() > 0).then_some(block);
        match result {
            Ok(_) => self.machine.sent(sent, block),
            Err(error) => {
                self.machine.not_sent(block);
                self.send_failure.get_or_insert(Failure::Transport(error));
            }
        }
    }

    /// Handles completed sends until the oldest send has the waker, before a task sleeps until a
    /// send has completed. A send that [`send_all`](Self::send_all) posted when none was in flight
    /// has no waker yet, or has completed.
    fn watch_sends(&mut self) {
        while self.take_sent() {
            self.send_all();
        }
    }

    /// Sends everything that may be sent.
    fn send_all(&mut self) {
        loop {
            while self.failure().is_none()
                && let Some(send) = self.machine.next_send()
            {
                self.send(send);
            }
            let waits = self.failure().is_none() && self.machine.waits_for_sends();
            self.is_urgent.store(waits, Ordering::Relaxed);
            // A send that was just posted has no waker yet, or has completed.
            if !waits || !self.take_sent() {
                return;
            }
        }
    }

    fn send_hello(&mut self, block: Option<OwnedBuffer>, ours: Settings) {
        let Some(mut block) = block else {
            return;
        };
        let hello = ours.encode();
        Block::set_range(&mut block, 0..hello.len());
        block.copy_from_slice(&hello);
        self.send(Send {
            what: Sent::Other,
            imm_data: Protocol::hello(),
            block: Some(block),
        });
    }

    /// Sends a RESET, as the stream is aborted.
    pub(super) fn send_reset(&mut self) {
        if self.failure().is_none()
            && let Some(reset) = self.machine.reset()
        {
            self.send(reset);
        }
    }

    fn send(&mut self, send: Send<OwnedBuffer>) {
        let Some(channel) = &self.channel else {
            return;
        };
        let block = send.block.unwrap_or_default();
        let mut operation = channel.run(Outgoing::send(block).immediate(send.imm_data));
        // A refused post is noticed before the next one: bytes after a gap must not be sent.
        if !operation.was_posted()
            && let Poll::Ready((result, block)) =
                operation.poll_uncounted(&mut Context::from_waker(Waker::noop()))
        {
            return self.end_send(send.what, result, block);
        }
        self.sends.push_back((send.what, operation));
    }

    /// Posts the receives of free blocks.
    fn post(&mut self) {
        if let Some(channel) = &self.channel {
            for mut block in self.machine.unposted().drain(..) {
                let capacity = block.capacity();
                Block::set_range(&mut block, 0..capacity);
                self.receives.push_back(channel.receive(block));
            }
        }
    }
}

impl Block for OwnedBuffer {
    fn capacity(&self) -> usize {
        Self::capacity(self)
    }

    fn set_range(&mut self, range: Range<usize>) {
        let end = range.end.min(Self::capacity(self));
        // It is within the capacity, so this does not fail.
        drop(Self::set_range(self, range.start.min(end)..end));
    }
}

/// The default linger time.
const LINGER: Duration = Duration::from_secs(10);
