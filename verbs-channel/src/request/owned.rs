//! Requests on owned buffers.

use super::work::{Incoming, IncomingSaid, Outgoing, OutgoingSaid};
use crate::buffer::OwnedBuffer;
use crate::error::Queue;

/// Work on a buffer that the channel owns meanwhile: the buffer, and all that is said about it.
///
/// Made by `into()` from an [`Outgoing`] or [`Incoming`] of a buffer, or by
/// [`receive`](Self::receive).
///
/// ```
/// # use verbs_channel::{Incoming, Outgoing, OwnedWork, PoolBuffer, verbs_core::RemoteMemoryRegion};
/// # fn of(block: PoolBuffer, another: PoolBuffer, third: PoolBuffer, remote: RemoteMemoryRegion) {
/// let batch: Vec<OwnedWork> = vec![
///     Outgoing::write(block, remote).into(),
///     Incoming::read(another, remote).fence().into(),
///     Outgoing::send(third).immediate(7).into(),
/// ];
/// # }
/// ```
#[derive(Debug)]
#[must_use = "work does nothing until it is started"]
pub struct OwnedWork {
    pub(crate) buffer: OwnedBuffer,
    pub(crate) said: Said,
}

/// What is said about work on an owned buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said {
    Outgoing(OutgoingSaid),
    Incoming(IncomingSaid),
    Receive,
}

impl OwnedWork {
    /// A receive into the buffer's range.
    pub fn receive(buffer: impl Into<OwnedBuffer>) -> Self {
        Self {
            buffer: buffer.into(),
            said: Said::Receive,
        }
    }

    /// The queue that it goes to.
    #[must_use]
    pub const fn queue(&self) -> Queue {
        match self.said {
            Said::Outgoing(_) | Said::Incoming(_) => Queue::Send,
            Said::Receive => Queue::Receive,
        }
    }

    /// The buffer.
    #[must_use]
    pub const fn buffer(&self) -> &OwnedBuffer {
        &self.buffer
    }

    /// The buffer, to fill it or to set its range.
    #[must_use]
    pub const fn buffer_mut(&mut self) -> &mut OwnedBuffer {
        &mut self.buffer
    }

    /// The buffer, back.
    #[must_use]
    pub fn into_buffer(self) -> OwnedBuffer {
        self.buffer
    }
}

impl<B: Into<OwnedBuffer>> From<Outgoing<B>> for OwnedWork {
    fn from(work: Outgoing<B>) -> Self {
        Self {
            buffer: work.list.into(),
            said: Said::Outgoing(work.said),
        }
    }
}

impl<B: Into<OwnedBuffer>> From<Incoming<B>> for OwnedWork {
    fn from(work: Incoming<B>) -> Self {
        Self {
            buffer: work.list.into(),
            said: Said::Incoming(work.said),
        }
    }
}
