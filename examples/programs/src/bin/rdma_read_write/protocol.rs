//! The messages of client and server over TCP.

use programs::{Hello, Pattern};
use serde::{Deserialize, Serialize};
use verbs_core::codes::WcOpcode;
use verbs_core::{QueuePairEndpoint, RemoteMemoryRegion};

/// Fills memory before anything is written to it.
pub(crate) const STALE: u8 = 0xa5;

/// The client's first message: what it needs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Needs {
    pub(crate) area: usize,
    pub(crate) depth: u32,
    pub(crate) endpoint: QueuePairEndpoint,
}

/// The server's answer: what it has.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) area: RemoteMemoryRegion,
    pub(crate) endpoint: QueuePairEndpoint,
}

/// The client's next request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Prepare(Run),
    Check,
    Bye,
}

/// The server's answer to each order but the last.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ready,
    Right,
    Wrong(String),
}

/// Messages of one kind and size: the one of index i goes to byte i × size of the area.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) operation: Operation,
    pub(crate) size: usize,
    pub(crate) count: u32,
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    Write,
    Read,
    WriteImm,
    SendImm,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Write, Self::Read, Self::WriteImm, Self::SendImm];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::WriteImm => "write_imm",
            Self::SendImm => "send_imm",
        }
    }

    /// Opcode of the server's completed receives, if it takes receives.
    pub(crate) const fn completes_as(self) -> Option<WcOpcode> {
        match self {
            Self::Write | Self::Read => None,
            Self::WriteImm => Some(WcOpcode::RECV_RDMA_WITH_IMM),
            Self::SendImm => Some(WcOpcode::RECV),
        }
    }
}

impl Run {
    pub(crate) const fn pattern(&self) -> Pattern {
        Pattern::new(self.seed)
    }

    pub(crate) fn len(&self) -> Option<usize> {
        self.size.checked_mul(usize::try_from(self.count).ok()?)
    }
}

pub(crate) fn hello() -> Hello {
    Hello::new("rdma_read_write", 1)
}
