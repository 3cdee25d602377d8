//! Fields that only completions of received datagrams have.

use verbs_sys::{IBV_WC_GRH, ibv_wc};

use super::grh::Grh;
use super::work_completion::WorkSuccess;
use crate::codes::WcOpcode;

impl WorkSuccess {
    /// The number of the queue pair that sent the datagram. Undefined for anything else.
    #[inline]
    #[must_use]
    pub const fn src_qp(&self) -> u32 {
        self.wc.src_qp
    }

    /// Whether the [`Grh::LEN`] bytes before the datagram hold a header: always on RoCE. Undefined for
    /// anything but a datagram.
    #[inline]
    #[must_use]
    #[doc(alias = "IBV_WC_GRH")]
    pub const fn has_grh(&self) -> bool {
        self.wc.wc_flags & IBV_WC_GRH.0 != 0
    }

    /// The LID that the datagram came from; 0 on RoCE. Undefined for anything but a datagram.
    #[inline]
    #[must_use]
    pub const fn slid(&self) -> u16 {
        self.wc.slid
    }

    /// The datagram that arrived, for a receive of one element, without the [`Grh::LEN`] bytes before it.
    ///
    /// `bytes` are the bytes of that element. It is `None` for all other requests, and if `bytes` is
    /// shorter than what arrived, and so is not the whole element.
    #[inline]
    #[must_use]
    pub fn datagram_in<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.message_in(bytes)?.get(Grh::LEN..)
    }

    /// The header before the datagram, if there is one, for a receive of one element.
    ///
    /// `bytes` are the bytes of that element, as for [`datagram_in`](Self::datagram_in).
    #[must_use]
    pub fn grh_in(&self, bytes: &[u8]) -> Option<Grh> {
        if !self.has_grh() || self.opcode() != WcOpcode::RECV {
            return None;
        }
        Grh::of_datagram(bytes.first_chunk()?, self.datagram_len())
    }

    /// The length of the datagram that arrived.
    pub(crate) fn datagram_len(&self) -> Option<u32> {
        self.byte_len().checked_sub(40)
    }

    /// C's struct.
    pub(crate) const fn as_raw(&self) -> ibv_wc {
        self.wc
    }
}
