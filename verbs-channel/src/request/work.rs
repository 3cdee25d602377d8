//! Requests for the send queue.
#![expect(unsafe_code, reason = "takes the elements of lists for the driver")]

use verbs_core::verbs_sys::{IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SOLICITED};
use verbs_core::{
    AtomicWorkRequest, ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest, WcOpcode, WorkRequest,
    WriteWorkRequest,
};

use super::list::{GatherList, ScatterList};
use super::needs::{Needs, opcode_flag};
use crate::error::RejectReason;

/// A request for the send queue: [`Outgoing`] or [`Incoming`].
pub trait Request: sealed::Sealed {}

impl<L: GatherList> Request for Outgoing<L> {}
impl<L: ScatterList> Request for Incoming<L> {}

pub(crate) mod sealed {
    use verbs_core::WorkRequest;

    use super::super::list::List;
    use super::super::needs::Needs;
    use crate::error::RejectReason;

    #[expect(unnameable_types, reason = "seals `Request`")]
    pub trait Sealed: Sized {
        type List: List;
        type Options: Copy;

        /// The list and the options.
        ///
        /// They are separate because the driver is given the list's address. Options in the same
        /// struct would be written to memory and read back.
        fn into_parts(self) -> (Self::List, Self::Options);

        fn from_parts(list: Self::List, options: Self::Options) -> Self;

        /// As `into_parts`, for a batch, whose requests stay in place.
        fn parts(&mut self) -> (&mut Self::List, Self::Options);

        /// Whether its bytes are sent inline.
        fn is_inline(options: Self::Options) -> bool;

        /// Adds what it requires of a queue pair.
        fn add_needs(list: &Self::List, options: Self::Options, needs: &mut Needs);

        /// Builds the request and passes it to `then`: returning it would copy it.
        ///
        /// # Safety
        ///
        /// - If the list is [wide](List::IS_WIDE), its elements have been put
        ///   [side by side](List::put_side_by_side).
        unsafe fn request<'l, R>(
            list: &'l mut Self::List,
            options: Self::Options,
            wr_id: u64,
            signaled: bool,
            then: impl FnOnce(WorkRequest<'l>) -> R,
        ) -> Result<R, RejectReason>;
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
    pub(crate) options: SendOptions,
}

/// The opcode, remote address and flags of a send or a write.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct SendOptions {
    remote: Option<RemoteMemoryRegion>,
    imm_data: Option<u32>,
    // The flags of C, so that all three can be tested at once, and that of its opcode.
    flags: u32,
}

/// A read or an atomic, with all its options.
///
/// It has elements or an owned buffer, as an [`Outgoing`] has.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct Incoming<L> {
    pub(crate) list: L,
    pub(crate) options: ReadOptions,
}

/// The opcode, remote address and flags of a read or an atomic.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct ReadOptions {
    remote: RemoteMemoryRegion,
    op: IncomingOp,
    fence: bool,
}

#[derive(Clone, Copy, Debug)]
enum IncomingOp {
    Read,
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd { add: u64 },
}

impl<L> Outgoing<L> {
    /// A send: the bytes of the elements go to the oldest receive that the peer has posted.
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    pub const fn send(list: L) -> Self {
        Self::new(list, None, WcOpcode::SEND)
    }

    /// An RDMA write: the bytes of the elements go to the start of `remote`.
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub const fn write(list: L, remote: RemoteMemoryRegion) -> Self {
        Self::new(list, Some(remote), WcOpcode::RDMA_WRITE)
    }

    #[inline]
    const fn new(list: L, remote: Option<RemoteMemoryRegion>, opcode: WcOpcode) -> Self {
        let options = SendOptions {
            remote,
            imm_data: None,
            flags: opcode_flag(opcode),
        };
        Self { list, options }
    }

    /// Adds 32 bits of immediate data. With them a write, too, completes a receive of the peer.
    #[inline]
    #[doc(alias = "imm_data")]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub const fn immediate(mut self, imm_data: u32) -> Self {
        self.options.imm_data = Some(imm_data);
        self
    }

    /// Sends the bytes inline: they are copied during the post.
    ///
    /// The request is rejected if it has more bytes than the channel's
    /// [`max_inline_data`](crate::ChannelConfig::max_inline_data), or bytes of a
    /// [`SharedElement`](verbs_core::SharedElement) or a [`SharedSlice`](crate::SharedSlice).
    #[inline]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub const fn inline(mut self) -> Self {
        self.options.flags |= IBV_SEND_INLINE.0;
        self
    }

    /// The device starts the request only after earlier reads and atomics of the channel are done.
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const fn fence(mut self) -> Self {
        self.options.flags |= IBV_SEND_FENCE.0;
        self
    }

    /// The message causes an event at the peer, even if the peer's completion queue is armed for
    /// solicited completions only. A write needs [`immediate`](Self::immediate) too.
    #[inline]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub const fn solicited(mut self) -> Self {
        self.options.flags |= IBV_SEND_SOLICITED.0;
        self
    }

    /// Converts into the elements or the buffer, for example of a request that was rejected.
    #[must_use]
    pub fn into_list(self) -> L {
        self.list
    }
}

impl<L> Incoming<L> {
    /// An RDMA read: the elements are filled from the start of `remote`.
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub const fn read(list: L, remote: RemoteMemoryRegion) -> Self {
        Self::new(list, remote, IncomingOp::Read)
    }

    /// A compare-and-swap: replaces the first 8 bytes of `remote` with `swap` if they are equal to
    /// `compare`.
    ///
    /// Their previous value is written to `list`, which must be one element of 8 bytes. Each machine uses its own
    /// byte order, so both hosts must have the same endianness.
    ///
    /// It is rejected with [`RejectReason::Misaligned`] if `list` is not 8 bytes long, or the address of `remote` is
    /// not divisible by 8; with [`RejectReason::RemoteTooShort`] if `remote` has fewer than 8 bytes; and with
    /// [`RejectReason::NoReads`] if the peer serves no atomics.
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "compare_exchange")]
    pub const fn compare_and_swap(
        list: L,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(list, remote, IncomingOp::CompareAndSwap { compare, swap })
    }

    /// A fetch-and-add: adds `add` to the first 8 bytes of `remote`, with wrap-around.
    ///
    /// Their previous value is written to `list`, as for [`compare_and_swap`](Self::compare_and_swap), and it is
    /// rejected for the same reasons.
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[doc(alias = "fetch_add")]
    pub const fn fetch_and_add(list: L, remote: RemoteMemoryRegion, add: u64) -> Self {
        Self::new(list, remote, IncomingOp::FetchAndAdd { add })
    }

    #[inline]
    const fn new(list: L, remote: RemoteMemoryRegion, op: IncomingOp) -> Self {
        let fence = false;
        let options = ReadOptions { remote, op, fence };
        Self { list, options }
    }

    /// The device starts the request only after earlier reads and atomics of the channel are done.
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const fn fence(mut self) -> Self {
        self.options.fence = true;
        self
    }

    /// Converts into the elements or the buffer, for example of a request that was rejected.
    #[must_use]
    pub fn into_list(self) -> L {
        self.list
    }
}

impl<L: GatherList> sealed::Sealed for Outgoing<L> {
    type List = L;
    type Options = SendOptions;

    #[inline(always)]
    fn into_parts(self) -> (L, SendOptions) {
        (self.list, self.options)
    }

    #[inline(always)]
    fn from_parts(list: L, options: SendOptions) -> Self {
        Self { list, options }
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut L, SendOptions) {
        (&mut self.list, self.options)
    }

    #[inline(always)]
    fn add_needs(list: &L, options: SendOptions, needs: &mut Needs) {
        needs.add_outgoing(list, options.flags);
    }

    #[inline(always)]
    fn is_inline(options: SendOptions) -> bool {
        options.is_inline()
    }

    #[inline(always)]
    unsafe fn request<'l, R>(
        list: &'l mut L,
        options: SendOptions,
        wr_id: u64,
        signaled: bool,
        then: impl FnOnce(WorkRequest<'l>) -> R,
    ) -> Result<R, RejectReason> {
        // SAFETY: the caller promises that a wide list was put side by side; a request writes
        // nothing but their order.
        let elements = unsafe { list.elements() };
        // Called in each arm: after the match, the request would be copied.
        match &options.remote {
            None => {
                let request = SendWorkRequest::new(elements);
                Ok(then(options.of_send(request, wr_id, signaled)))
            }
            Some(remote) => match WriteWorkRequest::new(elements, remote) {
                Ok(request) => Ok(then(options.of_write(request, wr_id, signaled))),
                Err(error) => Err(RejectReason::from_core(&error)),
            },
        }
    }
}

macro_rules! with_options {
    ($of:ident $request:ident) => {
        #[inline(always)]
        fn $of(self, request: $request<'_>, wr_id: u64, signaled: bool) -> WorkRequest<'_> {
            let mut request = request.wr_id(wr_id);
            if let Some(imm_data) = self.imm_data {
                request = request.immediate(imm_data);
            }
            if self.flags & IBV_SEND_INLINE.0 != 0 {
                request = request.inline();
            }
            if self.flags & IBV_SEND_FENCE.0 != 0 {
                request = request.fence();
            }
            if self.flags & IBV_SEND_SOLICITED.0 != 0 {
                request = request.solicited();
            }
            if !signaled {
                request = request.unsignaled();
            }
            request.into()
        }
    };
}

impl SendOptions {
    #[inline(always)]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE.0 != 0
    }

    pub(crate) const fn flags(&self) -> u32 {
        self.flags
    }

    with_options!(of_send SendWorkRequest);
    with_options!(of_write WriteWorkRequest);
}

impl ReadOptions {
    /// The flag of its opcode: no check looks at the others.
    #[inline(always)]
    pub(crate) const fn flags(&self) -> u32 {
        opcode_flag(match self.op {
            IncomingOp::Read => WcOpcode::RDMA_READ,
            IncomingOp::CompareAndSwap { .. } => WcOpcode::COMP_SWAP,
            IncomingOp::FetchAndAdd { .. } => WcOpcode::FETCH_ADD,
        })
    }
}

impl<L: ScatterList> sealed::Sealed for Incoming<L> {
    type List = L;
    type Options = ReadOptions;

    #[inline(always)]
    fn into_parts(self) -> (L, ReadOptions) {
        (self.list, self.options)
    }

    #[inline(always)]
    fn from_parts(list: L, options: ReadOptions) -> Self {
        Self { list, options }
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut L, ReadOptions) {
        (&mut self.list, self.options)
    }

    #[inline(always)]
    fn add_needs(list: &L, options: ReadOptions, needs: &mut Needs) {
        needs.add_incoming(list, options.flags());
    }

    #[inline(always)]
    fn is_inline(_options: ReadOptions) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn request<'l, R>(
        list: &'l mut L,
        options: ReadOptions,
        wr_id: u64,
        signaled: bool,
        then: impl FnOnce(WorkRequest<'l>) -> R,
    ) -> Result<R, RejectReason> {
        // SAFETY: the caller promises that a wide list was put side by side; a request writes
        // nothing but their order.
        let (elements, remote) = (unsafe { list.elements() }, &options.remote);
        macro_rules! finish {
            ($request:expr) => {{
                let mut request = $request
                    .map_err(|error| RejectReason::from_core(&error))?
                    .wr_id(wr_id);
                if options.fence {
                    request = request.fence();
                }
                if !signaled {
                    request = request.unsignaled();
                }
                Ok(then(request.into()))
            }};
        }
        match (options.op, elements) {
            (IncomingOp::Read, elements) => finish!(ReadWorkRequest::new(elements, remote)),
            (IncomingOp::FetchAndAdd { add }, [before]) => {
                finish!(AtomicWorkRequest::fetch_and_add(before, remote, add))
            }
            (IncomingOp::CompareAndSwap { compare, swap }, [before]) => {
                finish!(AtomicWorkRequest::compare_and_swap(
                    before, remote, compare, swap
                ))
            }
            (_, []) => Err(RejectReason::Misaligned {
                addr: remote.addr(),
                len: 0,
            }),
            (_, several) => Err(RejectReason::TooManyElements {
                count: several.len(),
                max: 1,
            }),
        }
    }
}
