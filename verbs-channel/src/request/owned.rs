//! Requests on owned buffers.

use super::work::{Incoming, Outgoing, ReadOptions, SendOptions};
use crate::buffer::OwnedBuffer;
use crate::error::Queue;

/// A request whose buffer the channel owns while it is in flight.
///
/// `into()` makes one from an [`Outgoing`] or an [`Incoming`] with a buffer, and
/// [`receive`](Self::receive) from a buffer.
///
/// ```
/// # use verbs_channel::{Incoming, Outgoing, OwnedRequest, PoolBuffer, verbs_core::RemoteMemoryRegion};
/// # fn of(block: PoolBuffer, another: PoolBuffer, third: PoolBuffer, remote: RemoteMemoryRegion) {
/// let batch: Vec<OwnedRequest> = vec![
///     Outgoing::write(block, remote).into(),
///     Incoming::read(another, remote).fence().into(),
///     Outgoing::send(third).immediate(7).into(),
/// ];
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is started"]
pub struct OwnedRequest {
    pub(crate) buffer: OwnedBuffer,
    pub(crate) op: Op,
}

/// The opcode of a request on an owned buffer, and its options.
// With a tag of its own: one that hides in the options takes longer to look at.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Op {
    Outgoing(SendOptions),
    Incoming(ReadOptions),
    Receive,
}

impl Op {
    pub(crate) const fn is_inline(self) -> bool {
        match self {
            Self::Outgoing(options) => options.is_inline(),
            Self::Incoming(_) | Self::Receive => false,
        }
    }

    /// Its flags, and that of its opcode; a receive has none.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Outgoing(options) => options.flags(),
            Self::Incoming(options) => options.flags(),
            Self::Receive => 0,
        }
    }
}

impl OwnedRequest {
    /// A receive into the buffer's range.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(buffer: impl Into<OwnedBuffer>) -> Self {
        Self {
            buffer: buffer.into(),
            op: Op::Receive,
        }
    }

    /// The queue that it is posted to.
    #[must_use]
    pub const fn queue(&self) -> Queue {
        match self.op {
            Op::Outgoing(_) | Op::Incoming(_) => Queue::Send,
            Op::Receive => Queue::Receive,
        }
    }

    /// The request's buffer.
    #[must_use]
    pub const fn buffer(&self) -> &OwnedBuffer {
        &self.buffer
    }

    /// The request's buffer, to fill it or to set its range.
    #[must_use]
    pub const fn buffer_mut(&mut self) -> &mut OwnedBuffer {
        &mut self.buffer
    }

    /// Converts into the buffer.
    #[must_use]
    pub fn into_buffer(self) -> OwnedBuffer {
        self.buffer
    }
}

impl<B: Into<OwnedBuffer>> From<Outgoing<B>> for OwnedRequest {
    #[inline]
    fn from(request: Outgoing<B>) -> Self {
        Self {
            buffer: request.list.into(),
            op: Op::Outgoing(request.options),
        }
    }
}

impl<B: Into<OwnedBuffer>> From<Incoming<B>> for OwnedRequest {
    #[inline]
    fn from(request: Incoming<B>) -> Self {
        Self {
            buffer: request.list.into(),
            op: Op::Incoming(request.options),
        }
    }
}
