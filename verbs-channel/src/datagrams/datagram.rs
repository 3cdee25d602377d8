//! A datagram that arrived.

use std::ops::Deref;

use verbs_core::DatagramEndpoint;

use crate::buffer::OwnedBuffer;

/// A datagram that arrived, and the endpoint that sent it.
///
/// It derefs to its bytes, without the header of the device.
///
/// Its buffer is one of the endpoint's: when it is dropped, another datagram can be received into it.
#[derive(Debug)]
pub struct Datagram {
    pub(super) buffer: OwnedBuffer,
    pub(super) from: DatagramEndpoint,
}

impl Datagram {
    /// The endpoint that sent the datagram, to which an answer can be sent.
    ///
    /// The sender's key is in the immediate data of the datagram. A sender that is not a
    /// [`Datagrams`] endpoint sends none: then this is the key of this side. The sender's MTU is
    /// not known. It is 4096 here, so that this side's MTU decides.
    ///
    /// [`Datagrams`]: crate::Datagrams
    #[must_use]
    pub const fn from(&self) -> DatagramEndpoint {
        self.from
    }

    /// Its buffer, whose range is the datagram, for example to send it on without a copy.
    #[must_use]
    pub fn into_buffer(self) -> OwnedBuffer {
        self.buffer
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}
