//! Work for the send queue, with everything that can be said about it.

use verbs_core::{
    AtomicWorkRequest, PostError, ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest,
    WorkRequest, WriteWorkRequest,
};

use crate::error::Refusal;
use crate::list::{GatherList, ScatterList};

/// Work for the send queue: [`Outgoing`] or [`Incoming`].
pub trait Work: sealed::Sealed {}

impl<L: GatherList> Work for Outgoing<L> {}
impl<L: ScatterList> Work for Incoming<L> {}

pub(crate) mod sealed {
    use verbs_core::{PostError, WorkRequest};

    use crate::error::Refusal;

    #[expect(unnameable_types, reason = "seals `Work`")]
    pub trait Sealed {
        type List;

        /// The request, for a batch.
        fn request(&mut self, wr_id: u64, signaled: bool) -> Result<WorkRequest<'_>, Refusal>;

        /// Makes the request, signalled, where it is posted: one that is returned is copied.
        fn submit(
            &mut self,
            wr_id: u64,
            post: impl FnOnce(&mut [WorkRequest<'_>]) -> Result<(), PostError>,
        ) -> Result<(), Refusal>;

        fn into_list(self) -> Self::List;
    }
}

/// A send or a write: bytes go out.
///
/// ```
/// # use verbs_channel::{Outgoing, verbs_core::GatherElement};
/// # fn of(element: GatherElement<'_>) {
/// let work = Outgoing::send(element).immediate(7).solicited();
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "work does nothing until it is posted"]
pub struct Outgoing<L> {
    list: L,
    remote: Option<RemoteMemoryRegion>,
    imm_data: Option<u32>,
    inline: bool,
    fence: bool,
    solicited: bool,
}

/// A read or an atomic: bytes come in.
#[derive(Clone, Copy, Debug)]
#[must_use = "work does nothing until it is posted"]
pub struct Incoming<L> {
    list: L,
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

impl<L: GatherList> Outgoing<L> {
    /// A send: the elements go, in their order, into the receive that the peer posted first.
    #[inline]
    pub const fn send(list: L) -> Self {
        Self {
            list,
            remote: None,
            imm_data: None,
            inline: false,
            fence: false,
            solicited: false,
        }
    }

    /// An RDMA write: the elements go, in their order, to where `remote` begins.
    #[inline]
    pub const fn write(list: L, remote: RemoteMemoryRegion) -> Self {
        Self {
            list,
            remote: Some(remote),
            imm_data: None,
            inline: false,
            fence: false,
            solicited: false,
        }
    }

    /// Gives the peer 32 bits with it; a write uses up a receive of the peer's then.
    #[inline]
    #[doc(alias = "imm_data")]
    pub const fn immediate(mut self, imm_data: u32) -> Self {
        self.imm_data = Some(imm_data);
        self
    }

    /// Copies the bytes while it is posted; at most the channel's `max_inline_data`.
    #[inline]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub const fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Waits for earlier reads and atomics before it begins.
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Wakes a peer that waits for solicited completions only.
    #[inline]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub const fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }
}

impl<L: ScatterList> Incoming<L> {
    /// An RDMA read: the elements are filled, in their order, from where `remote` begins.
    #[inline]
    pub const fn read(list: L, remote: RemoteMemoryRegion) -> Self {
        Self {
            list,
            remote,
            op: IncomingOp::Read,
            fence: false,
        }
    }

    /// A compare-and-swap of the peer's 8 bytes at `remote`. What they were comes into the list,
    /// one element of 8 bytes.
    #[inline]
    pub const fn compare_and_swap(
        list: L,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self {
            list,
            remote,
            op: IncomingOp::CompareAndSwap { compare, swap },
            fence: false,
        }
    }

    /// A fetch-and-add on the peer's 8 bytes at `remote`. What they were comes into the list, one
    /// element of 8 bytes.
    #[inline]
    pub const fn fetch_and_add(list: L, remote: RemoteMemoryRegion, add: u64) -> Self {
        Self {
            list,
            remote,
            op: IncomingOp::FetchAndAdd { add },
            fence: false,
        }
    }

    /// Waits for earlier reads and atomics before it begins.
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}

impl<L: GatherList> sealed::Sealed for Outgoing<L> {
    type List = L;

    #[inline]
    fn request(&mut self, wr_id: u64, signaled: bool) -> Result<WorkRequest<'_>, Refusal> {
        let said = Said {
            wr_id,
            signaled,
            imm_data: self.imm_data,
            inline: self.inline,
            fence: self.fence,
            solicited: self.solicited,
        };
        let elements = self.list.elements();
        match &self.remote {
            None => Ok(said.of_send(SendWorkRequest::new(elements))),
            Some(remote) => match WriteWorkRequest::new(elements, remote) {
                Ok(request) => Ok(said.of_write(request)),
                Err(error) => Err(Refusal::from_core(&error)),
            },
        }
    }

    #[inline]
    fn submit(
        &mut self,
        wr_id: u64,
        post: impl FnOnce(&mut [WorkRequest<'_>]) -> Result<(), PostError>,
    ) -> Result<(), Refusal> {
        let said = Said {
            wr_id,
            signaled: true,
            imm_data: self.imm_data,
            inline: self.inline,
            fence: self.fence,
            solicited: self.solicited,
        };
        let elements = self.list.elements();
        let posted = match &self.remote {
            None => post(&mut [said.of_send(SendWorkRequest::new(elements))]),
            Some(remote) => match WriteWorkRequest::new(elements, remote) {
                Ok(request) => post(&mut [said.of_write(request)]),
                Err(error) => return Err(Refusal::from_core(&error)),
            },
        };
        posted.map_err(Refusal::Post)
    }

    #[inline]
    fn into_list(self) -> L {
        self.list
    }
}

/// What is said about a send or a write.
#[derive(Clone, Copy)]
struct Said {
    wr_id: u64,
    signaled: bool,
    imm_data: Option<u32>,
    inline: bool,
    fence: bool,
    solicited: bool,
}

macro_rules! said {
    ($of:ident $request:ident) => {
        #[inline]
        fn $of(self, request: $request<'_>) -> WorkRequest<'_> {
            let mut request = request.wr_id(self.wr_id);
            if let Some(imm_data) = self.imm_data {
                request = request.immediate(imm_data);
            }
            if self.inline {
                request = request.inline();
            }
            if self.fence {
                request = request.fence();
            }
            if self.solicited {
                request = request.solicited();
            }
            if !self.signaled {
                request = request.unsignaled();
            }
            request.into()
        }
    };
}

impl Said {
    said!(of_send SendWorkRequest);
    said!(of_write WriteWorkRequest);
}

impl<L: ScatterList> sealed::Sealed for Incoming<L> {
    type List = L;

    #[inline]
    fn request(&mut self, wr_id: u64, signaled: bool) -> Result<WorkRequest<'_>, Refusal> {
        let (elements, remote) = (self.list.elements(), &self.remote);
        macro_rules! finish {
            ($request:expr) => {{
                let mut request = $request
                    .map_err(|error| Refusal::from_core(&error))?
                    .wr_id(wr_id);
                if self.fence {
                    request = request.fence();
                }
                if !signaled {
                    request = request.unsignaled();
                }
                Ok(request.into())
            }};
        }
        let [before] = match (self.op, elements) {
            (IncomingOp::Read, elements) => {
                return finish!(ReadWorkRequest::new(elements, remote));
            }
            (_, [before]) => [before],
            (_, several) => {
                let len = several.len() as u64;
                let addr = remote.addr();
                return Err(Refusal::Misaligned { addr, len });
            }
        };
        match self.op {
            IncomingOp::FetchAndAdd { add } => {
                finish!(AtomicWorkRequest::fetch_and_add(before, remote, add))
            }
            IncomingOp::CompareAndSwap { compare, swap } => {
                finish!(AtomicWorkRequest::compare_and_swap(
                    before, remote, compare, swap
                ))
            }
            IncomingOp::Read => Err(Refusal::Misaligned { addr: 0, len: 0 }),
        }
    }

    #[inline]
    fn submit(
        &mut self,
        wr_id: u64,
        post: impl FnOnce(&mut [WorkRequest<'_>]) -> Result<(), PostError>,
    ) -> Result<(), Refusal> {
        post(&mut [self.request(wr_id, true)?]).map_err(Refusal::Post)
    }

    #[inline]
    fn into_list(self) -> L {
        self.list
    }
}
