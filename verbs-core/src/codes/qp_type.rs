//! The types of connected queue pairs.

use std::fmt;

use verbs_sys::{IBV_QPT_RC, IBV_QPT_UC, ibv_qp_type};

/// The type of a connected queue pair. Both ends have the same type.
///
/// Queue pairs for datagrams have a type of their own: [`DatagramQueuePair`](crate::datagram::DatagramQueuePair).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_type")]
pub enum QpType {
    /// A reliable connection: everything arrives, once and in order, or the queue pair fails.
    #[default]
    #[doc(alias = "IBV_QPT_RC")]
    Rc,
    /// An unreliable connection: sends and writes only, and nothing is acknowledged.
    ///
    /// A request has succeeded when its last packet has left. A message is dropped silently if one of its
    /// packets is lost, or if the peer has no receive posted. Messages that arrive are whole and in order.
    /// A write may arrive in part. Drivers accept a read or an atomic, which then breaks the queue pair:
    /// check [`max_rd_atomic`](crate::QueuePair::max_rd_atomic), which is 0, before you post one.
    #[doc(alias = "IBV_QPT_UC")]
    Uc,
}

impl QpType {
    pub(crate) const fn as_raw(self) -> ibv_qp_type {
        match self {
            Self::Rc => IBV_QPT_RC,
            Self::Uc => IBV_QPT_UC,
        }
    }

    /// For the endpoint: C's number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Rc, Self::Uc]
            .into_iter()
            .find(|known| known.code() == code)
    }

    pub(crate) fn code(self) -> u8 {
        u8::try_from(self.as_raw().0).unwrap_or(0)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
        })
    }
}
