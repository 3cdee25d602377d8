//! What goes on in a stream: what arrives, what was sent, and who waits for which.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Wake as _, ready};

use verbs_channel::verbs_core::{WcOpcode, WorkSuccess};
use verbs_channel::{Outgoing, OwnedBuffer};

use super::error::{Failure, StreamError};
use super::protocol::Heard;
use super::wire::Settings;
use super::{ByteStream, Sent};

impl ByteStream {
    /// Waits until there is something to read: `true`, or `false` at the end.
    pub(super) fn poll_readable(&mut self, cx: &Context<'_>) -> Poll<io::Result<bool>> {
        if !self.arrived.is_empty() {
            return Poll::Ready(Ok(true));
        }
        self.tasks.reader.set(cx.waker());
        if self.drive() {
            self.tasks.writer.wake_by_ref();
        }
        if !self.arrived.is_empty() {
            return Poll::Ready(Ok(true));
        }
        if self.protocol.fin_was_heard() {
            return Poll::Ready(Ok(false));
        }
        match (self.receive_failure, self.send_failure) {
            (None, _) => Poll::Pending,
            // What took the channel down is not the receives, which are only flushed then.
            (Some(Failure::Transport(_)), Some(first)) => Poll::Ready(Err(first.into())),
            (Some(failure), _) => Poll::Ready(Err(failure.into())),
        }
    }

    /// What has arrived and can be read at once, without what comes in the next message.
    pub(super) fn unread(&self) -> &[u8] {
        let first = self.arrived.front().map_or(&[][..], |block| block);
        first.get(self.read..).unwrap_or_default()
    }

    /// So much of it has been read.
    pub(super) fn consume(&mut self, count: usize) {
        let left = self.unread().len();
        self.read += count.min(left);
        if count < left || left == 0 {
            return;
        }
        self.read = 0;
        if let Some(block) = self.arrived.pop_front() {
            self.post(block);
            self.protocol.consumed();
            self.give_credit();
        }
    }

    /// Waits until something can be written, and writes as much as `fill` puts into a message.
    pub(super) fn poll_write_with(
        &mut self,
        cx: &Context<'_>,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        if self.protocol.fin_was_sent() {
            let kind = io::ErrorKind::BrokenPipe;
            let error = io::Error::new(kind, "the stream was shut down for writing");
            return Poll::Ready(Err(error));
        }
        self.drive_to_write(cx);
        if let Some(failure) = self.failure() {
            return Poll::Ready(Err(failure.into()));
        }
        let room = self.protocol.room();
        if room == 0 {
            return Poll::Pending;
        }
        let Some(mut block) = self.free.pop() else {
            return Poll::Pending;
        };
        let room = room.min(block.capacity());
        set_len(&mut block, room);
        let filled = fill(&mut block).min(room);
        if filled == 0 {
            self.free.push(block);
            return Poll::Ready(Ok(0));
        }
        set_len(&mut block, filled);
        let imm_data = self.protocol.data();
        self.data_in_flight += 1;
        self.send(Sent::Data, block, imm_data);
        Poll::Ready(Ok(filled))
    }

    /// Waits until all that was written has arrived.
    pub(super) fn poll_arrived(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.drive_to_write(cx);
        if self.data_in_flight == 0 {
            return Poll::Ready(Ok(()));
        }
        match self.failure() {
            Some(failure) => Poll::Ready(Err(failure.into())),
            None => Poll::Pending,
        }
    }

    /// Says that nothing more will be written, and waits until that has arrived.
    pub(super) fn poll_end(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.protocol.fin_was_sent() && self.failure().is_none() {
            let imm_data = self.protocol.fin();
            self.send(Sent::Fin, OwnedBuffer::empty(), imm_data);
        }
        let arrived = ready!(self.poll_arrived(cx));
        if self.fin_arrived {
            return Poll::Ready(Ok(()));
        }
        match self.failure() {
            // A peer that has read everything, or will, and has said its own end, may be gone.
            Some(_) if arrived.is_ok() && self.protocol.fin_was_heard() => Poll::Ready(Ok(())),
            Some(failure) => Poll::Ready(Err(failure.into())),
            None => Poll::Pending,
        }
    }

    /// Why nothing can be written any more.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.send_failure.or(self.receive_failure)
    }

    /// [Drives](Self::drive) for the task that writes.
    fn drive_to_write(&mut self, cx: &Context<'_>) {
        self.tasks.writer.set(cx.waker());
        if self.drive() {
            self.tasks.reader.wake_by_ref();
        }
    }

    /// Takes in what has arrived and what has been sent; says what it can after that. Whether there
    /// was something: nobody else hears of it, so the other task has to be woken.
    ///
    /// The tasks are woken when there is more: of each queue, the oldest operation has their waker.
    pub(super) fn drive(&mut self) -> bool {
        let has_arrived = self.take_arrivals();
        let was_sent = self.take_sent();
        self.give_credit();
        has_arrived || was_sent
    }

    fn take_arrivals(&mut self) -> bool {
        let mut any = false;
        while self.receive_failure.is_none()
            && let Some(receive) = self.receives.front_mut()
        {
            let mut cx = Context::from_waker(&self.tasks.on_arrival);
            let Poll::Ready((result, block)) = Pin::new(receive).poll(&mut cx) else {
                break;
            };
            any = true;
            drop(self.receives.pop_front());
            match result {
                Ok(success) => self.take_arrival(success, block),
                Err(error) => self.receive_failure = Some(error.into()),
            }
        }
        any
    }

    fn take_arrival(&mut self, success: WorkSuccess, mut block: OwnedBuffer) {
        set_len(
            &mut block,
            success.byte_len().try_into().unwrap_or(usize::MAX),
        );
        let heard = if success.opcode() == WcOpcode::RECV {
            self.protocol.hear(success.imm_data(), &block)
        } else {
            Err(StreamError::Protocol("a write in place of a message"))
        };
        match heard {
            Ok(Heard::Data) => self.arrived.push_back(block),
            Ok(Heard::Nothing) => self.post(block),
            Err(error) => self.receive_failure = Some(Failure::Peer(error)),
        }
    }

    fn take_sent(&mut self) -> bool {
        let mut any = false;
        while let Some((_, send)) = self.sends.front_mut() {
            let mut cx = Context::from_waker(&self.tasks.on_sent);
            let Poll::Ready((result, block)) = Pin::new(send).poll(&mut cx) else {
                break;
            };
            let Some((sent, _)) = self.sends.pop_front() else {
                break;
            };
            any = true;
            if block.capacity() > 0 {
                self.free.push(block);
            }
            match (result, sent) {
                (Ok(_), Sent::Data) => self.data_in_flight -= 1,
                (Ok(_), Sent::Fin) => self.fin_arrived = true,
                (Ok(_), Sent::Other) => {}
                (Err(error), _) => {
                    self.send_failure.get_or_insert_with(|| error.into());
                }
            }
        }
        any
    }

    fn give_credit(&mut self) {
        if self.failure().is_none()
            && let Some(imm_data) = self.protocol.credit()
        {
            self.send(Sent::Other, OwnedBuffer::empty(), imm_data);
        }
    }

    pub(super) fn say_hello(&mut self, ours: Settings) {
        let Some(mut block) = self.free.pop() else {
            return;
        };
        let hello = ours.encode();
        set_len(&mut block, hello.len());
        block.copy_from_slice(&hello);
        let imm_data = self.protocol.hello();
        self.send(Sent::Other, block, imm_data);
    }

    fn send(&mut self, what: Sent, block: OwnedBuffer, imm_data: u32) {
        let send = self.channel.run(Outgoing::send(block).immediate(imm_data));
        self.sends.push_back((what, send));
    }

    pub(super) fn post(&mut self, mut block: OwnedBuffer) {
        let capacity = block.capacity();
        set_len(&mut block, capacity);
        self.receives.push_back(self.channel.receive(block));
    }
}

/// Lets the range be the first so many bytes, or all if there are fewer.
fn set_len(block: &mut OwnedBuffer, len: usize) {
    let end = len.min(block.capacity());
    // It is not past the end.
    drop(block.set_range(..end));
}
