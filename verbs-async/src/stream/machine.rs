//! The state of a stream without its device: its blocks, what waits to be sent, and what waits to
//! be read.
//!
//! The owner sends what [`next_send`](Machine::next_send) returns, posts the blocks in
//! [`unposted`](Machine::unposted), and reports what was received and sent. This is everything of a
//! stream except the device and the tasks, so tests run two of these against each other.

use std::collections::VecDeque;
use std::mem;
use std::ops::{DerefMut, Range};

use super::error::StreamError;
use super::half::Halves;
use super::protocol::{Protocol, Received};
use super::wire::Settings;

/// Memory that can be sent from, or received into.
pub(super) trait Block: DerefMut<Target = [u8]> {
    /// The length of the whole block.
    fn capacity(&self) -> usize;

    /// Makes the slice this part of the block.
    fn set_range(&mut self, range: Range<usize>);
}

/// One side of a stream.
#[derive(Debug)]
pub(super) struct Machine<B> {
    protocol: Protocol,
    /// Received and not taken by the reader, in this order.
    arrived: VecDeque<Segment<B>>,
    /// Short messages are copied into these, each as long as the longest of them.
    chunks: Vec<Vec<u8>>,
    chunk_len: usize,
    /// Blocks whose receives are to be posted.
    unposted: Vec<B>,
    /// Blocks to send from.
    free: Vec<B>,
    /// Written and not sent, in this order. Only the last may be written to.
    unsent: VecDeque<Unsent<B>>,
    /// Sends in flight, and how many there may be.
    sends: usize,
    max_sends: usize,
    /// DATA messages among them.
    data_in_flight: usize,
    /// A part of a block is in flight, and the rest is to be sent.
    is_split: bool,
    /// Everything written is to be sent as soon as there are credits.
    push: bool,
    /// Nothing more will be written.
    fin_requested: bool,
    /// Both halves were dropped.
    is_dropped: bool,
    /// The halves whose tasks may wait for something that happened.
    changed: Halves,
}

/// Bytes for the reader: a message, or the bytes of short ones.
#[derive(Debug)]
pub(super) enum Segment<B> {
    Block(B),
    Copied(Vec<u8>),
}

/// A block that is written to, or to be sent.
#[derive(Debug)]
struct Unsent<B> {
    block: B,
    start: usize,
    end: usize,
}

/// A message to be sent.
#[derive(Debug)]
pub(super) struct Send<B> {
    pub(super) what: Sent,
    pub(super) imm_data: u32,
    /// `None` for no bytes.
    pub(super) block: Option<B>,
}

/// A message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Data. The rest of the block, from `start` to `end`, is to be sent after it.
    Data {
        start: usize,
        end: usize,
    },
    Other,
}

impl<B: Block> Machine<B> {
    /// A machine that sends from these blocks, with a limit of sends in flight. Its HELLO was sent.
    pub(super) fn new(ours: Settings, free: Vec<B>, max_sends: usize) -> Self {
        let depth = usize::from(ours.depth);
        let block_len = usize::try_from(ours.block_len).unwrap_or(usize::MAX);
        let (count, chunk_len) = (depth / 2 + 1, block_len.div_ceil(2));
        let chunks = std::iter::repeat_with(|| Vec::with_capacity(chunk_len));
        Self {
            protocol: Protocol::new(ours),
            arrived: VecDeque::with_capacity(depth + count),
            chunks: chunks.take(count).collect(),
            chunk_len,
            unposted: Vec::with_capacity(depth + 1),
            unsent: VecDeque::with_capacity(free.capacity()),
            free,
            sends: 1,
            max_sends,
            data_in_flight: 0,
            is_split: false,
            push: false,
            fin_requested: false,
            is_dropped: false,
            changed: Halves::default(),
        }
    }

    /// Handles a message, which is the range of the block.
    pub(super) fn receive(&mut self, imm_data: Option<u32>, block: B) -> Result<(), StreamError> {
        let received = self.protocol.receive(imm_data, &block);
        // Credits come with any message.
        self.changed = Halves::BOTH;
        match received? {
            Received::Control => self.unposted.push(block),
            Received::Data if self.protocol.is_short_of_blocks() && self.copy(&block) => {
                self.unposted.push(block);
                self.protocol.consumed();
            }
            Received::Data => self.arrived.push_back(Segment::Block(block)),
        }
        Ok(())
    }

    /// Copies a short message to the end of what has arrived, if there is room for it.
    fn copy(&mut self, mut bytes: &[u8]) -> bool {
        let room_of = |chunk: &Vec<u8>| chunk.capacity() - chunk.len();
        let begun = match self.arrived.back() {
            Some(Segment::Copied(chunk)) => room_of(chunk),
            _ => 0,
        };
        let room = begun + self.chunks.iter().map(room_of).sum::<usize>();
        if bytes.len() > self.chunk_len.min(room) {
            return false;
        }
        loop {
            if let Some(Segment::Copied(chunk)) = self.arrived.back_mut() {
                let (fits, rest) = bytes.split_at(bytes.len().min(room_of(chunk)));
                chunk.extend_from_slice(fits);
                bytes = rest;
            }
            if bytes.is_empty() {
                return true;
            }
            let next = self.chunks.pop().unwrap_or_default();
            self.arrived.push_back(Segment::Copied(next));
        }
    }

    /// The next bytes for the reader, which [returns](Self::recycle) them.
    pub(super) fn next_segment(&mut self) -> Option<Segment<B>> {
        self.arrived.pop_front()
    }

    /// Takes back bytes that the reader has read.
    pub(super) fn recycle(&mut self, segment: Segment<B>) {
        match segment {
            Segment::Block(block) => {
                self.unposted.push(block);
                self.protocol.consumed();
            }
            Segment::Copied(mut chunk) => {
                chunk.clear();
                self.chunks.push(chunk);
            }
        }
    }

    /// The reader is dropped. `unread`: whether it had bytes that it has not read.
    pub(super) fn discard(&mut self, unread: bool) {
        self.protocol.discard(unread || !self.arrived.is_empty());
        while let Some(segment) = self.arrived.pop_front() {
            self.recycle(segment);
        }
    }

    /// Lets `fill` write into the free room. Returns how much it wrote, or `None` if there is no
    /// room.
    pub(super) fn write(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> Option<usize> {
        let max_len = self.max_len();
        let room_in = |last: &Unsent<B>| room_in(last, max_len);
        if self.unsent.back().is_none_or(|last| room_in(last) == 0) {
            let block = self.free.pop()?;
            let (start, end) = (0, 0);
            self.unsent.push_back(Unsent { block, start, end });
        }
        let last = self.unsent.back_mut()?;
        let room = room_in(last);
        last.block.set_range(last.end..last.end + room);
        let filled = fill(&mut last.block).min(room);
        last.end += filled;
        if last.end == last.start {
            let last = self.unsent.pop_back()?;
            self.free.push(last.block);
        }
        Some(filled)
    }

    /// Whether there is room to write into.
    pub(super) fn has_room(&self) -> bool {
        let last = self.unsent.back();
        last.is_some_and(|last| room_in(last, self.max_len()) > 0) || !self.free.is_empty()
    }

    fn max_len(&self) -> usize {
        self.protocol.max_len().unwrap_or(usize::MAX)
    }

    /// Sends everything written as soon as there are credits.
    pub(super) fn push(&mut self) {
        self.push = !self.unsent.is_empty();
    }

    /// Ends the data: a FIN follows what was written.
    pub(super) fn request_fin(&mut self) {
        self.fin_requested = true;
        self.push();
    }

    /// Both halves are dropped: a CLOSE or RESET follows what was written.
    pub(super) fn drop_stream(&mut self) {
        self.is_dropped = true;
        self.push();
    }

    /// The next message to send, if one may be sent.
    pub(super) fn next_send(&mut self) -> Option<Send<B>> {
        if self.sends >= self.max_sends {
            return None;
        }
        let send = self.next_control().or_else(|| self.next_data())?;
        self.sends += 1;
        Some(send)
    }

    fn next_control(&mut self) -> Option<Send<B>> {
        let is_all_sent = self.unsent.is_empty() && !self.is_split;
        // Before the last message, only what the peer needs is sent.
        let mut next = None;
        if is_all_sent && self.is_dropped {
            next = self.protocol.close();
        }
        next = next.or_else(|| self.protocol.control());
        if is_all_sent && self.fin_requested && !self.is_dropped {
            next = next.or_else(|| self.protocol.fin());
        }
        next.map(Send::without_data)
    }

    fn next_data(&mut self) -> Option<Send<B>> {
        let first = self.unsent.front()?;
        let max_len = self.protocol.max_len()?;
        let is_full = self.unsent.len() > 1 || first.end - first.start >= max_len;
        let may_join =
            !is_full && !self.push && self.data_in_flight >= self.max_sends.min(LONE_SENDS);
        if may_join || self.is_split || !self.protocol.may_send_data() {
            return None;
        }
        let Unsent {
            mut block,
            start,
            end,
        } = self.unsent.pop_front()?;
        let sent = end.min(start.saturating_add(max_len));
        block.set_range(start..sent);
        self.is_split = sent < end;
        self.data_in_flight += 1;
        self.push &= !self.unsent.is_empty() || self.is_split;
        Some(Send {
            what: Sent::Data { start: sent, end },
            imm_data: self.protocol.data(),
            block: Some(block),
        })
    }

    /// A message has arrived. Takes back its block.
    pub(super) fn sent(&mut self, what: Sent, block: Option<B>) {
        self.sends -= 1;
        self.changed.write = true;
        if let Sent::Data { start, end } = what {
            self.data_in_flight -= 1;
            if start < end
                && let Some(block) = block
            {
                self.is_split = false;
                self.unsent.push_front(Unsent { block, start, end });
                return;
            }
        }
        self.free.extend(block);
    }

    /// The last message of a stream that is aborted, if it can be sent.
    pub(super) fn reset(&mut self) -> Option<Send<B>> {
        if self.sends >= self.max_sends {
            return None;
        }
        let imm_data = self.protocol.reset()?;
        self.sends += 1;
        Some(Send::without_data(imm_data))
    }

    /// A message has not arrived, and those after it will not. Its data count as in flight.
    pub(super) fn not_sent(&mut self, block: Option<B>) {
        self.sends -= 1;
        self.free.extend(block);
        self.fail();
    }

    /// The stream has failed: both tasks may wait for that.
    pub(super) const fn fail(&mut self) {
        self.changed = Halves::BOTH;
    }

    /// Blocks whose receives are to be posted.
    pub(super) const fn unposted(&mut self) -> &mut Vec<B> {
        &mut self.unposted
    }

    /// Whether everything written has been sent and has arrived.
    pub(super) fn has_arrived(&self) -> bool {
        self.unsent.is_empty() && self.data_in_flight == 0
    }

    /// Whether the peer's reader has read, or can read, everything written and the end. `None`
    /// while that is not known.
    pub(super) fn is_seen(&self) -> Option<bool> {
        let is_seen = self.protocol.is_seen()?;
        Some(is_seen && self.unsent.is_empty() && !self.is_split)
    }

    /// Whether something to be sent waits for a send in flight.
    pub(super) fn waits_for_sends(&self) -> bool {
        // The rest of a block that is sent in pieces waits for the piece before it.
        let has_data = (!self.unsent.is_empty() || self.is_split) && self.protocol.may_send_data();
        let has_end = self.fin_requested && !self.protocol.fin_was_sent();
        self.is_dropped || has_data || has_end || self.sends >= self.max_sends
    }

    /// Whether a stream that was dropped has nothing more to send, and nothing in flight.
    pub(super) fn is_over(&self) -> bool {
        let is_idle = self.unsent.is_empty() && self.sends == 0;
        self.is_dropped && (self.protocol.peer_has_closed() || is_idle)
    }

    pub(super) const fn fin_is_requested(&self) -> bool {
        self.fin_requested
    }

    pub(super) const fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// The halves whose tasks may wait for something that happened since the last call.
    pub(super) fn take_changed(&mut self) -> Halves {
        mem::take(&mut self.changed)
    }
}

impl<B> Send<B> {
    const fn without_data(imm_data: u32) -> Self {
        Self {
            what: Sent::Other,
            imm_data,
            block: None,
        }
    }
}

impl<B: Block> Segment<B> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Block(block) => block,
            Self::Copied(chunk) => chunk,
        }
    }
}

/// A write is sent at once while fewer DATA messages than this are in flight. Otherwise it is
/// joined with the next.
const LONE_SENDS: usize = 4;

/// The room in a block that is written to.
fn room_in<B: Block>(last: &Unsent<B>, max_len: usize) -> usize {
    let len = last.end - last.start;
    (max_len.saturating_sub(len)).min(last.block.capacity() - last.end)
}
