//! Owned buffers: given to the channel by value, returned with the result.
#![expect(unsafe_code, reason = "hands buffers to the card that the slot keeps")]

use std::fmt;
use std::ops::{Deref, DerefMut, Range, RangeBounds};
use std::time::Duration;

use verbs_core::{Error as CoreError, GatherElement, MemoryRegion, RemoteMemoryRegion};
use verbs_core::{ScatterElement, WorkSuccess};

use crate::engine::Engine;
use crate::error::{Error, Refusal, Rejected, Result, TransportError};
use crate::pool::PoolBuffer;
use crate::slots::{Claim, Id, Keeper};
use crate::work::{Incoming, Outgoing, Work};

/// A registered buffer that a channel can own while the card uses it: a block of a
/// [`BufferPool`](crate::BufferPool), or a registered vector.
///
/// Operations work on its [`range`](Self::set_range), which is all of it unless set.
pub struct OwnedBuffer {
    source: Source,
    range: Range<usize>,
}

enum Source {
    Pool(PoolBuffer),
    Region(MemoryRegion<Vec<u8>>),
}

impl OwnedBuffer {
    /// Lets operations, and `Deref`, see only this part of the buffer.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`] past the buffer's end; the range stays as it was.
    pub fn set_range(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        let capacity = self.capacity();
        let start = match range.start_bound() {
            std::ops::Bound::Included(start) => *start,
            std::ops::Bound::Excluded(before) => before.saturating_add(1),
            std::ops::Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            std::ops::Bound::Included(last) => last.saturating_add(1),
            std::ops::Bound::Excluded(end) => *end,
            std::ops::Bound::Unbounded => capacity,
        };
        if start > end || end > capacity {
            return Err(Error::Core(CoreError::OutOfBounds {
                start: start as u64,
                end: end as u64,
                len: capacity as u64,
            }));
        }
        self.range = start..end;
        Ok(())
    }

    /// The length of the whole buffer, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.source {
            Source::Pool(block) => block.len(),
            Source::Region(region) => region.len(),
        }
    }

    /// The registered vector, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is a block of a pool; dropping that returns it to its pool.
    pub fn into_region(self) -> Result<MemoryRegion<Vec<u8>>, Self> {
        match self.source {
            Source::Region(region) => Ok(region),
            source => Err(Self {
                source,
                range: self.range,
            }),
        }
    }

    /// The block, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is a registered vector.
    pub fn into_block(self) -> Result<PoolBuffer, Self> {
        match self.source {
            Source::Pool(block) => Ok(block),
            source => Err(Self {
                source,
                range: self.range,
            }),
        }
    }

    /// The range as an element; empty if the driver could not be told of it.
    #[inline]
    pub(crate) fn element(&mut self) -> Result<ScatterElement<'_>> {
        let Range { start, end } = self.range;
        let whole = match &mut self.source {
            Source::Pool(block) => block.element(),
            Source::Region(region) => return Ok(region.scatter_element(start..end)?),
        };
        let (_, from_start) = whole.split_at_mut(start)?;
        let (element, _) = from_start.split_at_mut(end - start)?;
        Ok(element)
    }
}

impl From<PoolBuffer> for OwnedBuffer {
    fn from(block: PoolBuffer) -> Self {
        let range = 0..block.len();
        let source = Source::Pool(block);
        Self { source, range }
    }
}

impl From<MemoryRegion<Vec<u8>>> for OwnedBuffer {
    fn from(region: MemoryRegion<Vec<u8>>) -> Self {
        let range = 0..region.len();
        let source = Source::Region(region);
        Self { source, range }
    }
}

impl Deref for OwnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.source {
            Source::Pool(block) => block,
            Source::Region(region) => region,
        };
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl DerefMut for OwnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range.clone();
        let all: &mut [u8] = match &mut self.source {
            Source::Pool(block) => block,
            Source::Region(region) => region,
        };
        all.get_mut(range).unwrap_or_default()
    }
}

impl fmt::Debug for OwnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBuffer")
            .field("range", &self.range)
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// Names an operation on an owned buffer. Its result can be taken once, in any order.
///
/// Losing a ticket loses nothing:
/// [`next_completed`](crate::Channel::next_completed) finds what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a ticket is how the buffer comes back"]
pub struct Ticket {
    engine: u64,
    id: Id,
}

/// An operation on an owned buffer that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Which operation it was.
    pub ticket: Ticket,
    /// Which channel of its group it was on; 0 for a channel of its own.
    pub channel: usize,
    /// How it ended. A receive's length is its
    /// [`byte_len`](verbs_core::WorkSuccess::byte_len).
    pub result: Result<WorkSuccess, TransportError>,
    /// The buffer, back; `None` if the card could not be made to let go of it.
    pub buffer: Option<OwnedBuffer>,
}

/// What to do with an owned buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnedOp {
    Send(Option<u32>),
    Write(RemoteMemoryRegion, Option<u32>),
    Read(RemoteMemoryRegion),
    Receive,
}

impl Engine {
    /// Posts an operation on a buffer, which goes into its slot.
    pub(crate) fn start(
        &mut self,
        at: u32,
        mut buffer: OwnedBuffer,
        op: OwnedOp,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        let length = buffer.range.len() as u64;
        let posted = match buffer.element() {
            // The range was checked when it was set, so it is its length.
            Err(_) => Err(Refusal::ElementTooLong { len: length }),
            Ok(mut element) => match op {
                OwnedOp::Receive => {
                    let claim = Claim::receive(at).kept_by(Keeper::Slot);
                    // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue
                    // pair cannot be destroyed; moving the buffer does not move its bytes.
                    unsafe { self.post_receive(claim, &mut element) }
                }
                OwnedOp::Read(remote) => {
                    let work = Incoming::read(element, remote);
                    // SAFETY: as above.
                    unsafe { self.post_owned(at, work) }
                }
                OwnedOp::Send(imm_data) => {
                    let work = Outgoing::send(element.into_gather());
                    // SAFETY: as above.
                    unsafe { self.post_owned(at, with(work, imm_data)) }
                }
                OwnedOp::Write(remote, imm_data) => {
                    let work = Outgoing::write(element.into_gather(), remote);
                    // SAFETY: as above.
                    unsafe { self.post_owned(at, with(work, imm_data)) }
                }
            },
        };
        match posted {
            Ok(id) => {
                self.slots.keep(id, buffer);
                Ok(Ticket {
                    engine: self.id(),
                    id,
                })
            }
            Err(refusal) => Err(Rejected::new(refusal, buffer)),
        }
    }

    /// [`post`](Self::post) for a slot that keeps the buffer.
    ///
    /// # Safety
    ///
    /// - As for [`post`](Self::post).
    unsafe fn post_owned<W: Work>(&mut self, at: u32, work: W) -> Result<Id, Refusal> {
        let (mut list, said) = work.into_parts();
        let claim = Claim::send(at).kept_by(Keeper::Slot);
        // SAFETY: the caller's promise.
        unsafe { self.post::<W>(claim, &mut list, said) }
    }

    /// A ticket for an operation whose buffers an `unsafe` caller keeps.
    pub(crate) const fn ticket(&self, id: Id) -> Ticket {
        Ticket {
            engine: self.id(),
            id,
        }
    }

    /// The result of an operation, if it is done; polls once if it is not.
    pub(crate) fn poll_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        if !self.is_done(ticket)? {
            self.drive();
        }
        if !self.is_done(ticket)? {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The result of an operation, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ticket(
        &mut self,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        self.is_done(ticket)?;
        if !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The result of the operation that has been done for longest; polls once if there is none.
    pub(crate) fn next_ready(&mut self) -> Option<Completed> {
        if self.slots.first_ready().is_none() {
            self.drive();
        }
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    /// The same, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ready(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.wait_until(timeout, |engine| engine.slots.first_ready().is_some());
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        let ours = (ticket.engine == self.id()).then_some(ticket.id);
        let done = ours.and_then(|id| self.slots.is_done(id));
        done.ok_or(Error::StaleTicket)
    }

    fn take(&mut self, id: Id) -> Option<Completed> {
        let ticket = self.ticket(id);
        let buffer = self.slots.take_buffer(id);
        let (claim, result) = self.slots.release(id)?;
        Some(Completed {
            ticket,
            channel: claim.member as usize,
            result,
            buffer,
        })
    }
}

/// Adds immediate data, if there is some.
fn with(work: Outgoing<GatherElement<'_>>, imm_data: Option<u32>) -> Outgoing<GatherElement<'_>> {
    match imm_data {
        Some(imm_data) => work.immediate(imm_data),
        None => work,
    }
}
