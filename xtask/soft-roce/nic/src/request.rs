//! Requests: what can be posted to the queues of a queue pair (10.8, 11.4).

use crate::address::AddressVector;
use crate::memory::Access;

/// A scatter/gather element (`ibv_sge`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Element {
    /// Address, in terms of the region's own.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// The bytes of a request.
#[derive(Clone, Debug)]
pub enum Data {
    /// Registered memory: read when a packet is made, or written when one arrives.
    Elements(Vec<Element>),
    /// The bytes themselves (`IBV_SEND_INLINE`).
    Inline(Vec<u8>),
}

impl Data {
    /// The elements, of which inline data has none.
    pub(crate) fn elements(&self) -> &[Element] {
        match self {
            Self::Elements(elements) => elements,
            Self::Inline(_) => &[],
        }
    }

    /// Bytes of all of it.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Elements(elements) => elements.iter().map(|it| u64::from(it.length)).sum(),
            Self::Inline(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        }
    }
}

/// A request for the send queue (`ibv_send_wr`).
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// Number for the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: SendOpcode,
    /// The bytes to be sent, or for a read or atomic, where the answer goes.
    pub data: Data,
    /// The receiver of a datagram (UD only).
    pub to: Option<DatagramAddress>,
    /// Whether success makes a completion, too.
    pub is_signaled: bool,
    /// Whether the peer gets a solicited event.
    pub is_solicited: bool,
    /// Whether to wait for all earlier reads and atomics.
    pub is_fenced: bool,
}

impl SendRequest {
    /// A request that is signaled, without other flags.
    #[must_use]
    pub const fn new(wr_id: u64, opcode: SendOpcode, data: Data) -> Self {
        Self {
            wr_id,
            opcode,
            data,
            to: None,
            is_signaled: true,
            is_solicited: false,
            is_fenced: false,
        }
    }
}

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DatagramAddress {
    /// The way.
    pub path: AddressVector,
    /// Queue pair there; 0xffffff for a multicast group.
    pub queue_pair: u32,
    /// Its `Q_Key`; with the highest bit set, the sender's own `Q_Key` is used (10.2.5).
    pub qkey: u32,
}

/// An operation for the send queue, with its parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOpcode {
    /// Send.
    Send,
    /// Send with immediate data, in the order of the network.
    SendWithImmediate([u8; 4]),
    /// Send, and invalidate this key of the peer's.
    SendWithInvalidate(u32),
    /// Write to the peer's memory.
    Write(RemoteAddress),
    /// Write to the peer's memory, and complete a receive there.
    WriteWithImmediate(RemoteAddress, [u8; 4]),
    /// Read the peer's memory.
    Read(RemoteAddress),
    /// Store `swap` in eight bytes of the peer's memory if they are `compare`.
    CompareSwap {
        /// The eight bytes.
        remote: RemoteAddress,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Add to eight bytes of the peer's memory.
    FetchAdd {
        /// The eight bytes.
        remote: RemoteAddress,
        /// Value to add.
        add: u64,
    },
    /// Bind a memory window.
    BindWindow(Bind),
    /// Invalidate an own key.
    LocalInvalidate(u32),
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RemoteAddress {
    /// Address.
    pub address: u64,
    /// Key.
    pub rkey: u32,
}

impl RemoteAddress {
    /// The place at an address, with the key for it.
    #[must_use]
    pub const fn new(address: u64, rkey: u32) -> Self {
        Self { address, rkey }
    }

    /// The place that is this number of bytes further.
    pub(crate) const fn plus(self, bytes: u64) -> Self {
        Self::new(self.address.wrapping_add(bytes), self.rkey)
    }
}

/// How to bind a memory window (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bind {
    /// The window's key as it is.
    pub window: u32,
    /// The key that it will have: only the lowest eight bits, the tag, count.
    pub rkey: u32,
    /// Key of the region to bind it to.
    pub lkey: u32,
    /// First address.
    pub address: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// Access that the window allows.
    pub access: Access,
}

/// A request for a receive queue (`ibv_recv_wr`).
#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    /// Number for the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub elements: Vec<Element>,
}
