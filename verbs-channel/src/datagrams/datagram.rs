//! A datagram that arrived.

use std::ops::Deref;

use verbs_core::WorkSuccess;
use verbs_core::codes::WcOpcode;
use verbs_core::completion::Grh;
use verbs_core::path::{DatagramEndpoint, QKey};

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
    /// The datagram in a block; the block, if there is none, or its sender has no address.
    pub(super) fn of(
        mut buffer: OwnedBuffer,
        received: &WorkSuccess,
        own_qkey: QKey,
    ) -> Result<Self, OwnedBuffer> {
        let Some((from, end)) = sender(&buffer, received, own_qkey) else {
            return Err(buffer);
        };
        match buffer.set_range(Grh::LEN..end) {
            Ok(()) => Ok(Self { buffer, from }),
            Err(_) => Err(buffer),
        }
    }

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

/// Who sent a datagram, and where it ends.
fn sender(
    block: &OwnedBuffer,
    received: &WorkSuccess,
    own_qkey: QKey,
) -> Option<(DatagramEndpoint, usize)> {
    if received.opcode() != WcOpcode::RECV {
        return None;
    }
    let end = usize::try_from(received.byte_len()).ok()?;
    // A sender that is no endpoint of this kind is taken to have this side's key.
    let qkey = received.imm_data().and_then(|qkey| QKey::new(qkey).ok());
    let qkey = qkey.unwrap_or(own_qkey);
    let from = DatagramEndpoint::builder(received.src_qp(), qkey)
        .lid(received.slid())
        .gid(received.grh_in(block).map(|grh| grh.sgid()))
        .build()
        .ok()?;
    Some((from, end))
}
