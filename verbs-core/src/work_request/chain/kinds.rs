//! Methods of chains, for each kind of request.
#![expect(unsafe_code, reason = "reads the elements of a request")]

use verbs_sys::{
    __be32, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, ibv_send_wr, ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma,
    ibv_wr_opcode,
};

use super::{ChainRequest, RequestChain, no_request};
use crate::error::{Error, Result};
use crate::memory::{ChainGather, ChainScatter, RemoteMemoryRegion, total_len};
use crate::work_request::{
    INLINE, ReadWorkRequest, ReceiveWorkRequest, SOLICITED, SendWorkRequest, WriteWorkRequest,
};

impl<'l> RequestChain<SendWorkRequest<'l>> {
    /// A chain of `len` sends, each of up to `max_sge` elements.
    ///
    /// Each is signalled, and empty until its elements are [`set`](Self::set). The chain takes
    /// `len * (128 + 16 * max_sge)` bytes of memory. As for a `Vec`, the process is aborted if it cannot
    /// be allocated.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] unless `len` is 1 to 2²⁴, and `max_sge` 1 to 65,536.
    #[doc(alias = "IBV_WR_SEND")]
    pub fn sends(len: usize, max_sge: u32) -> Result<Self> {
        Self::of(IBV_WR_SEND, len, max_sge)
    }
}

impl<'l> RequestChain<ReceiveWorkRequest<'l>> {
    /// A chain of `len` receives, each of up to `max_sge` elements.
    ///
    /// Each has no room until its elements are [`set`](Self::set). That is enough for writes with immediate
    /// data.
    ///
    /// # Errors
    ///
    /// As [`sends`](RequestChain::sends).
    pub fn receives(len: usize, max_sge: u32) -> Result<Self> {
        Self::new(len, max_sge)
    }
}

/// Methods of chains of requests without an address at the peer.
macro_rules! local {
    ($request:ident, $element:ident) => {
        impl<'l> RequestChain<$request<'l>> {
            /// Sets the elements of a request to this one. If the element is empty, the request has
            /// none.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if the chain has no such request.
            #[inline]
            pub fn set(&mut self, index: usize, element: impl $element + 'l) -> Result<()> {
                self.put(index, element.to_c())?;
                Ok(())
            }

            /// Sets the elements of a request to these, in their order. Empty elements are left out.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if the chain has no such request, or there are more elements
            /// than [`max_sge`](Self::max_sge): the request has no elements then.
            #[inline]
            pub fn set_list<E: $element + 'l>(
                &mut self,
                index: usize,
                elements: impl IntoIterator<Item = E>,
            ) -> Result<()> {
                let elements = elements.into_iter();
                self.put_all(index, elements.map(|element| element.to_c()))?;
                Ok(())
            }
        }
    };
}

local!(SendWorkRequest, ChainGather);
local!(ReceiveWorkRequest, ChainScatter);

/// Methods of chains of writes and of reads.
macro_rules! remote {
    ($request:ident, $element:ident, $opcode:ident, $new:ident, $what:literal) => {
        impl<'l> RequestChain<$request<'l>> {
            #[doc = concat!("A chain of `len` ", $what, ", each of up to `max_sge` elements.")]
            ///
            /// Each is signalled, and empty until its elements are [`set`](Self::set).
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if `len` is not 1 to 2²⁴, or `max_sge` is not 1 to 65,536.
            pub fn $new(len: usize, max_sge: u32) -> Result<Self> {
                Self::of($opcode, len, max_sge)
            }

            /// Sets the elements of a request to this one, and its address at the peer to the start of
            /// `remote`. If the element is empty, the request has none.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if the chain has no such request, [`Error::RemoteTooShort`] if the
            /// element has more bytes than `remote`. The request is not changed then.
            #[inline]
            pub fn set(
                &mut self,
                index: usize,
                element: impl $element + 'l,
                remote: &RemoteMemoryRegion,
            ) -> Result<()> {
                let sge = element.to_c();
                fits(sge.length.into(), remote)?;
                self.put(index, sge)?.wr.rdma = place(remote);
                Ok(())
            }

            /// Sets the elements of a request to these, in their order, and its address at the peer to
            /// the start of `remote`. Empty elements are left out.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if the chain has no such request, or there are more elements than
            /// [`max_sge`](Self::max_sge). [`Error::RemoteTooShort`] if the elements have more bytes than
            /// `remote`. The request has no elements then.
            #[inline]
            pub fn set_list<E: $element + 'l>(
                &mut self,
                index: usize,
                elements: impl IntoIterator<Item = E>,
                remote: &RemoteMemoryRegion,
            ) -> Result<()> {
                let elements = elements.into_iter();
                let total = self.put_all(index, elements.map(|element| element.to_c()))?;
                self.put_remote(index, total, remote)
            }

            /// Sets the address of a request at the peer to the start of `remote`. Its elements stay.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if the chain has no such request, [`Error::RemoteTooShort`] if its
            /// elements have more bytes than `remote`. In the second case it has no elements then.
            #[inline]
            pub fn set_remote(&mut self, index: usize, remote: &RemoteMemoryRegion) -> Result<()> {
                let len = self.len();
                let Some(request) = self.block.get(index) else {
                    return Err(no_request(index, len));
                };
                let count = request.num_sge.unsigned_abs() as usize;
                // SAFETY: `num_sge` elements at `sg_list` are in the same block, which is borrowed.
                let total = unsafe { total_len(request.sg_list, count) };
                self.put_remote(index, total, remote)
            }
        }
    };
}

remote!(
    WriteWorkRequest,
    ChainGather,
    IBV_WR_RDMA_WRITE,
    writes,
    "RDMA writes"
);
remote!(
    ReadWorkRequest,
    ChainScatter,
    IBV_WR_RDMA_READ,
    reads,
    "RDMA reads"
);

impl<R: ChainRequest<Wr = ibv_send_wr>> RequestChain<R> {
    fn put_remote(&mut self, index: usize, total: u64, remote: &RemoteMemoryRegion) -> Result<()> {
        let fits = fits(total, remote);
        if let Some(request) = self.block.get(index) {
            match fits {
                Ok(()) => request.wr.rdma = place(remote),
                Err(_) => request.num_sge = 0,
            }
        }
        fits
    }
}

/// Further methods of chains of sends and of writes.
macro_rules! carries_data {
    ($request:ident, $opcode:ident, $with_imm:ident) => {
        impl RequestChain<$request<'_>> {
            /// Sets or removes the 32 bits of immediate data of a request, which are in the peer's
            /// completion.
            ///
            /// In a transfer of several requests, it is the last one that has them.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if the chain has no such request.
            #[inline]
            #[doc(alias = "imm_data")]
            pub fn set_immediate(&mut self, index: usize, imm_data: Option<u32>) -> Result<()> {
                self.put_immediate(index, imm_data, ($opcode, $with_imm))
            }

            /// The bytes of each request are copied during the post: see [`SendWorkRequest::inline`].
            #[must_use]
            #[doc(alias = "IBV_SEND_INLINE")]
            pub fn inline(self) -> Self {
                self.flagged(INLINE)
            }

            /// Each request causes an event at the peer, even if the peer armed its queue for
            /// solicited completions only. A write does that only with [immediate
            /// data](Self::set_immediate).
            #[must_use]
            #[doc(alias = "IBV_SEND_SOLICITED")]
            pub fn solicited(self) -> Self {
                self.flagged(SOLICITED)
            }
        }
    };
}

carries_data!(SendWorkRequest, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM);
carries_data!(
    WriteWorkRequest,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM
);

impl<R: ChainRequest<Wr = ibv_send_wr>> RequestChain<R> {
    #[inline]
    fn put_immediate(
        &mut self,
        index: usize,
        imm_data: Option<u32>,
        (plain, with_imm): (ibv_wr_opcode, ibv_wr_opcode),
    ) -> Result<()> {
        let len = self.len();
        let Some(request) = self.block.get(index) else {
            return Err(no_request(index, len));
        };
        request.opcode = imm_data.map_or(plain, |_| with_imm);
        request.__bindgen_anon_1.imm_data = __be32(imm_data.unwrap_or(0).to_be());
        Ok(())
    }
}

#[inline]
fn fits(local: u64, remote: &RemoteMemoryRegion) -> Result<()> {
    let remote = remote.len();
    if local > remote {
        return Err(Error::RemoteTooShort { local, remote });
    }
    Ok(())
}

#[inline]
fn place(remote: &RemoteMemoryRegion) -> Rdma {
    Rdma {
        remote_addr: remote.addr(),
        rkey: remote.rkey(),
    }
}
