//! Requests: an opcode with its options, and the elements or the buffer; and how the driver gets them.

use std::mem::MaybeUninit;
use std::time::Duration;

use verbs_core::__private::set_options;
use verbs_core::codes::WcOpcode;
use verbs_core::memory::Sge;
use verbs_core::verbs_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
};
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};
use verbs_core::{ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest};

use super::list::{GatherList, ScatterList};
use super::opcodes::Opcodes;
use crate::error::{Queue, RejectReason};

/// A request: [`Outgoing`] or [`Incoming`].
pub trait Request: sealed::Sealed {}

impl<L: GatherList> Request for Outgoing<L> {}
impl<L: ScatterList> Request for Incoming<L> {}

pub(crate) mod sealed {
    use std::time::Duration;

    use super::super::list::List;
    use super::Op;

    #[expect(unnameable_types, reason = "seals `Request`")]
    pub trait Sealed: Sized {
        type List: List;

        /// The list, and the opcode with its options.
        ///
        /// They are separate because the driver is given the list's address. Options in the same
        /// struct would be written to memory and read back.
        fn into_parts(self) -> (Self::List, Op);

        fn timeout(&self) -> Option<Duration>;

        /// As `into_parts`, of a request that stays in place: in a batch, or to be handed back.
        fn parts(&mut self) -> (&mut Self::List, &Op);
    }
}

/// A send or a write, with all its options.
///
/// With elements it can be [run](crate::Channel::run), or [posted](crate::PollingScope::post) in a
/// scope. With an owned buffer it can be [started](crate::Channel::start).
///
/// ```
/// # use verbs_channel::{Channel, Outgoing, PoolBuffer, verbs_core::GatherElement};
/// # fn of(channel: &mut Channel, element: GatherElement<'_>, block: PoolBuffer)
/// # -> verbs_channel::Result<()> {
/// channel.run(Outgoing::send(element).immediate(7).solicited())?;
/// let ticket = channel.start(Outgoing::send(block).immediate(7).solicited())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct Outgoing<L> {
    pub(crate) list: L,
    pub(crate) op: Op,
    timeout: Option<Duration>,
}

/// A read, an atomic or a receive, with all its options.
///
/// It has elements or an owned buffer, as an [`Outgoing`] has.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct Incoming<L> {
    pub(crate) list: L,
    pub(crate) op: Op,
    timeout: Option<Duration>,
}

impl<L> Outgoing<L> {
    /// A send: the bytes of the elements go to the oldest receive that the peer has posted.
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    pub const fn send(list: L) -> Self {
        Self::new(list, Kind::Send)
    }

    /// An RDMA write: the bytes of the elements go to the start of `remote`.
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub const fn write(list: L, remote: RemoteMemoryRegion) -> Self {
        Self::new(list, Kind::Write(remote))
    }

    /// Adds 32 bits of immediate data. With them a write, too, completes a receive of the peer.
    #[inline]
    #[doc(alias = "imm_data")]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub const fn immediate(mut self, imm_data: u32) -> Self {
        self.op.extra = Extra::Immediate(imm_data);
        self
    }

    /// Gives a lease back to the peer: the message also invalidates the key that the peer has
    /// [lent](crate::lease::Lease) to this side.
    ///
    /// When the peer has the message, [`Lease::given_back`](crate::lease::Lease::given_back) returns its memory. Reads and writes with the
    /// key that this side has posted before are carried out first.
    ///
    /// The key must be that of a [window](crate::lease::LeaseKind::Window): all others fail, as one that the peer has revoked
    /// does, and take the channel down on both sides. A send has either this or immediate data; a write is rejected with
    /// [`RejectReason::InvalidatingWrite`](crate::RejectReason::InvalidatingWrite).
    #[inline]
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    #[doc(alias = "invalidate_rkey")]
    pub const fn invalidate(mut self, rkey: u32) -> Self {
        self.op.extra = Extra::Invalidate(rkey);
        self
    }

    /// Sends the bytes inline: they are copied during the post.
    ///
    /// The request is rejected if it has more bytes than the channel's
    /// [`max_inline_data`](crate::ChannelConfig::max_inline_data), or bytes of a
    /// [`SharedElement`](verbs_core::memory::SharedElement) or a [`SharedSlice`](crate::buffer::SharedSlice).
    #[inline]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub const fn inline(mut self) -> Self {
        self.op.flags |= IBV_SEND_INLINE.0;
        self
    }

    /// The message causes an event at the peer, even if the peer's completion queue is armed for
    /// solicited completions only. A write needs [`immediate`](Self::immediate) too.
    #[inline]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub const fn solicited(mut self) -> Self {
        self.op.flags |= IBV_SEND_SOLICITED.0;
        self
    }
}

impl<L> Incoming<L> {
    /// A receive: the next message of the peer is written to the elements.
    ///
    /// It has a completion of its own, so it is [rejected](crate::RejectReason::ReceiveInBatch) in a batch.
    #[inline]
    #[doc(alias = "ibv_post_recv")]
    pub const fn receive(list: L) -> Self {
        Self::new(list, Kind::Receive)
    }

    /// An RDMA read: the elements are filled from the start of `remote`.
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub const fn read(list: L, remote: RemoteMemoryRegion) -> Self {
        Self::new(list, Kind::Read(remote))
    }

    /// A compare-and-swap: replaces the first 8 bytes of `remote` with `swap` if they are equal to
    /// `compare`.
    ///
    /// Their previous value is written to `list`, which must be one element of 8 bytes. Each machine uses its own
    /// byte order, so both hosts must have the same endianness.
    ///
    /// It is rejected with [`RejectReason::Misaligned`](crate::RejectReason::Misaligned) if `list` is not 8 bytes long, or the address of `remote` is
    /// not divisible by 8; with [`RejectReason::RemoteTooShort`](crate::RejectReason::RemoteTooShort) if `remote` has fewer than 8 bytes; and with
    /// [`RejectReason::NoReads`](crate::RejectReason::NoReads) if the peer serves no atomics.
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "compare_exchange")]
    pub const fn compare_and_swap(
        list: L,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(list, Kind::CompareAndSwap(remote, compare, swap))
    }

    /// A fetch-and-add: adds `add` to the first 8 bytes of `remote`, with wrap-around.
    ///
    /// Their previous value is written to `list`, as for [`compare_and_swap`](Self::compare_and_swap), and it is
    /// rejected for the same reasons.
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[doc(alias = "fetch_add")]
    pub const fn fetch_and_add(list: L, remote: RemoteMemoryRegion, add: u64) -> Self {
        Self::new(list, Kind::FetchAndAdd(remote, add))
    }
}

/// The methods of both kinds of requests.
macro_rules! both {
    ($request:ident of $list:ident) => {
        impl<L> $request<L> {
            #[inline]
            const fn new(list: L, kind: Kind) -> Self {
                Self {
                    list,
                    op: Op::new(kind),
                    timeout: None,
                }
            }

            /// The device starts the request only after earlier reads and atomics of the channel are done.
            #[inline]
            #[doc(alias = "IBV_SEND_FENCE")]
            pub const fn fence(mut self) -> Self {
                self.op.flags |= IBV_SEND_FENCE.0;
                self
            }

            /// How long [`Channel::run`](crate::Channel::run) and [`run_batch`](crate::Channel::run_batch) wait before the channel
            /// is aborted, instead of the channel's [`timeout`](crate::ChannelConfig::timeout). All other calls ignore it: they return a handle or a ticket, whose
            /// waits have their own.
            #[inline]
            pub const fn timeout(mut self, timeout: Duration) -> Self {
                self.timeout = Some(timeout);
                self
            }

            /// Converts into the elements or the buffer, for example of a request that was rejected.
            #[must_use]
            pub fn into_list(self) -> L {
                self.list
            }
        }

        impl<L: $list> sealed::Sealed for $request<L> {
            type List = L;

            #[inline(always)]
            fn into_parts(self) -> (L, Op) {
                (self.list, self.op)
            }

            #[inline(always)]
            fn timeout(&self) -> Option<Duration> {
                self.timeout
            }

            #[inline(always)]
            fn parts(&mut self) -> (&mut L, &Op) {
                (&mut self.list, &self.op)
            }
        }
    };
}

both!(Outgoing of GatherList);
both!(Incoming of ScatterList);

/// The opcode of a request, and its options.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Op {
    kind: Kind,
    extra: Extra,
    // The flags of C, and its opcode above them.
    flags: u32,
}

/// A number that the peer gets with the request.
#[derive(Clone, Copy, Debug)]
enum Extra {
    None,
    Immediate(u32),
    /// The key that a send invalidates.
    Invalidate(u32),
}

/// The opcode of a request, with the remote memory and the numbers that it has.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write(RemoteMemoryRegion),
    Read(RemoteMemoryRegion),
    CompareAndSwap(RemoteMemoryRegion, u64, u64),
    FetchAndAdd(RemoteMemoryRegion, u64),
    Receive,
}

impl Op {
    pub(crate) const RECEIVE: Self = Self::new(Kind::Receive);

    #[inline(always)]
    const fn new(kind: Kind) -> Self {
        let opcode = match kind {
            Kind::Send => WcOpcode::SEND,
            Kind::Write(_) => WcOpcode::RDMA_WRITE,
            Kind::Read(_) => WcOpcode::RDMA_READ,
            Kind::CompareAndSwap(..) | Kind::FetchAndAdd(..) => WcOpcode::COMP_SWAP,
            Kind::Receive => WcOpcode::RECV,
        };
        Self {
            kind,
            extra: Extra::None,
            flags: Opcodes::of(opcode).in_flags(),
        }
    }

    /// The part of a write or a read over `len` bytes from `start` on, if it can be split. Its immediate is with the
    /// last.
    pub(crate) fn part(mut self, start: u64, len: u64, is_last: bool) -> Option<Self> {
        let (Kind::Write(remote) | Kind::Read(remote)) = &mut self.kind else {
            return None;
        };
        *remote = remote.slice(start..start.checked_add(len)?).ok()?;
        if !is_last {
            self.extra = Extra::None;
        }
        Some(self)
    }

    /// The memory of the peer that it accesses.
    pub(crate) const fn remote_mut(&mut self) -> Option<&mut RemoteMemoryRegion> {
        match &mut self.kind {
            Kind::Send | Kind::Receive => None,
            Kind::Write(remote)
            | Kind::Read(remote)
            | Kind::CompareAndSwap(remote, ..)
            | Kind::FetchAndAdd(remote, _) => Some(remote),
        }
    }

    /// Whether it does no more when it is carried out twice: a read, or a write of which the peer gets no completion.
    pub(crate) const fn is_repeatable(&self) -> bool {
        matches!(
            (self.kind, self.extra),
            (Kind::Read(_), _) | (Kind::Write(_), Extra::None)
        )
    }

    /// The queue that it is posted to.
    #[inline(always)]
    pub(crate) const fn queue(&self) -> Queue {
        self.opcodes().queue()
    }

    #[inline(always)]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE.0 != 0
    }

    #[inline(always)]
    pub(crate) const fn opcodes(&self) -> Opcodes {
        Opcodes::in_these(self.flags)
    }

    /// The flags of C of a request that has a completion.
    #[inline(always)]
    pub(crate) const fn signaled(&self) -> u32 {
        self.unsignaled() | IBV_SEND_SIGNALED.0
    }

    #[inline(always)]
    const fn unsignaled(&self) -> u32 {
        self.flags & (Opcodes::ONE - 1)
    }

    /// Requirements of a request over these elements on a queue pair.
    #[inline(always)]
    pub(crate) fn needs(&self, elements: &[Sge], is_shared: bool) -> Needs {
        Needs {
            len: elements.iter().map(|sge| u64::from(sge.length())).sum(),
            elements: elements.iter().filter(|sge| sge.length() > 0).count(),
            is_shared,
            is_read: !matches!(self.kind, Kind::Send | Kind::Write(_) | Kind::Receive),
            flags: self.flags,
        }
    }

    /// Builds the request for the send queue in its place, without a completion.
    #[inline(always)]
    pub(crate) fn build<'p, 'l>(
        &self,
        elements: &'l mut [Sge],
        wr_id: u64,
        place: &'p mut MaybeUninit<WorkRequest<'l>>,
    ) -> Result<&'p mut WorkRequest<'l>, RejectReason> {
        // Written in each arm: after the match, the request would be copied.
        let request = match (&self.kind, elements) {
            (Kind::Send, elements) => {
                let mut request = SendWorkRequest::new(elements);
                match self.extra {
                    Extra::None => {}
                    Extra::Immediate(imm_data) => request = request.immediate(imm_data),
                    Extra::Invalidate(rkey) => request = request.invalidate(rkey),
                }
                place.write(request.into())
            }
            (Kind::Write(remote), elements) => {
                let mut request = WriteWorkRequest::new(elements, remote).map_err(reason)?;
                match self.extra {
                    Extra::None => {}
                    Extra::Immediate(imm_data) => request = request.immediate(imm_data),
                    Extra::Invalidate(_) => return Err(RejectReason::InvalidatingWrite),
                }
                place.write(request.into())
            }
            (Kind::Read(remote), elements) => place.write(
                ReadWorkRequest::new(elements, remote)
                    .map_err(reason)?
                    .into(),
            ),
            (Kind::CompareAndSwap(remote, compare, swap), [before]) => {
                let request = AtomicWorkRequest::compare_and_swap(before, remote, *compare, *swap);
                place.write(request.map_err(reason)?.into())
            }
            (Kind::FetchAndAdd(remote, add), [before]) => {
                let request = AtomicWorkRequest::fetch_and_add(before, remote, *add);
                place.write(request.map_err(reason)?.into())
            }
            (Kind::CompareAndSwap(remote, ..) | Kind::FetchAndAdd(remote, _), []) => {
                return Err(RejectReason::Misaligned {
                    addr: remote.addr(),
                    len: 0,
                });
            }
            (Kind::CompareAndSwap(..) | Kind::FetchAndAdd(..), several) => {
                return Err(RejectReason::TooManyElements {
                    count: several.len(),
                    max: 1,
                });
            }
            (Kind::Receive, _) => return Err(RejectReason::ReceiveInBatch),
        };
        set_options(request, wr_id, self.unsignaled());
        Ok(request)
    }
}

#[cold]
fn reason(error: verbs_core::Error) -> RejectReason {
    RejectReason::from_core(&error)
}

/// Requirements of one or more requests on a queue pair.
///
/// The numbers of several requests are combined by bitwise or, which is cheaper than the maximum and
/// never less. So if the combination passes the checks, each request does. If not, they are checked
/// one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// The length of the message, in bytes.
    pub(crate) len: u64,
    /// Elements that are not empty.
    pub(crate) elements: usize,
    /// A peer or another thread may write to the memory while it is sent.
    pub(crate) is_shared: bool,
    // Not by its flag: the compiler knows of most requests whether they are.
    pub(crate) is_read: bool,
    /// Their flags, and their [opcodes](Opcodes) above them.
    pub(crate) flags: u32,
}

impl Needs {
    /// Adds those of another request.
    #[inline(always)]
    pub(crate) const fn add(&mut self, other: &Self) {
        self.len |= other.len;
        self.elements |= other.elements;
        self.is_shared |= other.is_shared;
        self.is_read |= other.is_read;
        self.flags |= other.flags;
    }

    #[inline(always)]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE.0 != 0
    }
}
