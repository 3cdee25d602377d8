//! Requests for the send queue.

use verbs_core::verbs_sys::{IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SOLICITED};
use verbs_core::{
    AtomicWorkRequest, ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest, WorkRequest,
    WriteWorkRequest,
};

use super::list::{GatherList, ScatterList};
use super::needs::Needs;
use crate::error::Refusal;

/// Work for the send queue: [`Outgoing`] or [`Incoming`].
pub trait Work: sealed::Sealed {}

impl<L: GatherList> Work for Outgoing<L> {}
impl<L: ScatterList> Work for Incoming<L> {}

pub(crate) mod sealed {
    use verbs_core::WorkRequest;

    use super::super::needs::Needs;
    use crate::error::Refusal;

    #[expect(unnameable_types, reason = "seals `Work`")]
    pub trait Sealed: Sized {
        type List;
        type Options: Copy;

        /// The list, and the options.
        ///
        /// Apart, since the device gets the list's address: whatever lay beside it would have to be
        /// written to memory, and read again.
        fn into_parts(self) -> (Self::List, Self::Options);

        fn from_parts(list: Self::List, options: Self::Options) -> Self;

        /// The same, for a batch, whose work stays where it is.
        fn parts(&mut self) -> (&mut Self::List, Self::Options);

        /// Adds what it needs of a queue pair.
        fn add_needs(list: &Self::List, options: Self::Options, needs: &mut Needs);

        /// Makes the request, and hands it on: one that is returned is copied.
        fn request<'l, R>(
            list: &'l mut Self::List,
            options: Self::Options,
            wr_id: u64,
            signaled: bool,
            then: impl FnOnce(WorkRequest<'l>) -> R,
        ) -> Result<R, Refusal>;
    }
}

/// A send or a write: bytes go out.
///
/// Of elements, to be [`run`](crate::Channel::run) or [`post`](crate::PollingScope::post)ed; of an
/// owned buffer, to be [`start`](crate::Channel::start)ed.
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
#[must_use = "work does nothing until it is posted"]
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
    // As in C: so all three are looked at in one go.
    flags: u32,
}

/// A read or an atomic: bytes come in.
///
/// Of elements or an owned buffer, as [`Outgoing`].
#[derive(Clone, Copy, Debug)]
#[must_use = "work does nothing until it is posted"]
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
    /// A send: the elements go, in their order, into the receive that the peer posted first.
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    pub const fn send(list: L) -> Self {
        Self::new(list, None)
    }

    /// An RDMA write: the elements go, in their order, to where `remote` begins.
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub const fn write(list: L, remote: RemoteMemoryRegion) -> Self {
        Self::new(list, Some(remote))
    }

    #[inline]
    const fn new(list: L, remote: Option<RemoteMemoryRegion>) -> Self {
        let options = SendOptions {
            remote,
            imm_data: None,
            flags: 0,
        };
        Self { list, options }
    }

    /// Gives the peer 32 bits with it; a write uses up a receive of the peer's then.
    #[inline]
    #[doc(alias = "imm_data")]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub const fn immediate(mut self, imm_data: u32) -> Self {
        self.options.imm_data = Some(imm_data);
        self
    }

    /// Copies the bytes while it is posted; at most the channel's `max_inline_data`, and not from a
    /// [`SharedElement`](verbs_core::SharedElement).
    #[inline]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub const fn inline(mut self) -> Self {
        self.options.flags |= IBV_SEND_INLINE.0;
        self
    }

    /// Waits for earlier reads and atomics before it begins.
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const fn fence(mut self) -> Self {
        self.options.flags |= IBV_SEND_FENCE.0;
        self
    }

    /// Wakes a peer that waits for solicited completions only.
    #[inline]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub const fn solicited(mut self) -> Self {
        self.options.flags |= IBV_SEND_SOLICITED.0;
        self
    }

    /// The elements or the buffer, back: of work that was rejected.
    #[must_use]
    pub fn into_list(self) -> L {
        self.list
    }
}

impl<L> Incoming<L> {
    /// An RDMA read: the elements are filled, in their order, from where `remote` begins.
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub const fn read(list: L, remote: RemoteMemoryRegion) -> Self {
        Self::new(list, remote, IncomingOp::Read)
    }

    /// A compare-and-swap of the peer's 8 bytes at `remote`. What they were comes into the list,
    /// one element of 8 bytes.
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub const fn compare_and_swap(
        list: L,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(list, remote, IncomingOp::CompareAndSwap { compare, swap })
    }

    /// A fetch-and-add on the peer's 8 bytes at `remote`. What they were comes into the list, one
    /// element of 8 bytes.
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub const fn fetch_and_add(list: L, remote: RemoteMemoryRegion, add: u64) -> Self {
        Self::new(list, remote, IncomingOp::FetchAndAdd { add })
    }

    #[inline]
    const fn new(list: L, remote: RemoteMemoryRegion, op: IncomingOp) -> Self {
        let fence = false;
        let options = ReadOptions { remote, op, fence };
        Self { list, options }
    }

    /// Waits for earlier reads and atomics before it begins.
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const fn fence(mut self) -> Self {
        self.options.fence = true;
        self
    }

    /// The elements or the buffer, back: of work that was rejected.
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
        needs.add_outgoing(list, options.flags & IBV_SEND_INLINE.0 != 0);
    }

    #[inline(always)]
    fn request<'l, R>(
        list: &'l mut L,
        options: SendOptions,
        wr_id: u64,
        signaled: bool,
        then: impl FnOnce(WorkRequest<'l>) -> R,
    ) -> Result<R, Refusal> {
        let elements = list.elements();
        // Handed on from each arm: where they meet, the request would be copied.
        match &options.remote {
            None => {
                let request = SendWorkRequest::new(elements);
                Ok(then(options.of_send(request, wr_id, signaled)))
            }
            Some(remote) => match WriteWorkRequest::new(elements, remote) {
                Ok(request) => Ok(then(options.of_write(request, wr_id, signaled))),
                Err(error) => Err(Refusal::from_core(&error)),
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
    with_options!(of_send SendWorkRequest);
    with_options!(of_write WriteWorkRequest);
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
    fn add_needs(list: &L, _said: ReadOptions, needs: &mut Needs) {
        needs.add_incoming(list);
    }

    #[inline(always)]
    fn request<'l, R>(
        list: &'l mut L,
        options: ReadOptions,
        wr_id: u64,
        signaled: bool,
        then: impl FnOnce(WorkRequest<'l>) -> R,
    ) -> Result<R, Refusal> {
        let (elements, remote) = (list.elements(), &options.remote);
        macro_rules! finish {
            ($request:expr) => {{
                let mut request = $request
                    .map_err(|error| Refusal::from_core(&error))?
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
            (_, several) => {
                let len = several.len() as u64;
                let addr = remote.addr();
                Err(Refusal::Misaligned { addr, len })
            }
        }
    }
}
