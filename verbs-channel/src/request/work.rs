//! Requests: an opcode with its options, and the elements or the buffer.

use std::time::Duration;

use verbs_core::RemoteMemoryRegion;
use verbs_core::verbs_sys::{IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SOLICITED};

use super::list::{GatherList, ScatterList};
use super::op::{Kind, Op};

/// A request: [`Outgoing`] or [`Incoming`].
pub trait Request: sealed::Sealed {}

impl<L: GatherList> Request for Outgoing<L> {}
impl<L: ScatterList> Request for Incoming<L> {}

pub(crate) mod sealed {
    use std::time::Duration;

    use super::super::list::List;
    use super::super::op::Op;

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
        self.op = self.op.with_immediate(imm_data);
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
        self.op = self.op.with_invalidate(rkey);
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
        self.op = self.op.with_flag(IBV_SEND_INLINE.0);
        self
    }

    /// The message causes an event at the peer, even if the peer's completion queue is armed for
    /// solicited completions only. A write needs [`immediate`](Self::immediate) too.
    #[inline]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub const fn solicited(mut self) -> Self {
        self.op = self.op.with_flag(IBV_SEND_SOLICITED.0);
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
                self.op = self.op.with_flag(IBV_SEND_FENCE.0);
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
