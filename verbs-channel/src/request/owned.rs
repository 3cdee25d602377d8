//! Requests on owned buffers.

use super::op::Op;
use super::work::{Incoming, Outgoing};
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

impl OwnedRequest {
    /// A receive into the buffer's range.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(buffer: impl Into<OwnedBuffer>) -> Self {
        Self {
            buffer: buffer.into(),
            op: Op::RECEIVE,
        }
    }

    /// The queue that it is posted to.
    #[doc(hidden)]
    #[must_use]
    pub const fn queue(&self) -> Queue {
        self.op.queue()
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
            op: request.op,
        }
    }
}

impl<B: Into<OwnedBuffer>> From<Incoming<B>> for OwnedRequest {
    #[inline]
    fn from(request: Incoming<B>) -> Self {
        Self {
            buffer: request.list.into(),
            op: request.op,
        }
    }
}
