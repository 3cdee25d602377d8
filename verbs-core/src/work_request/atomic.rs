//! Atomics.
#![expect(unsafe_code, reason = "is seen as a request of any kind")]

use std::slice;

use verbs_sys::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic, ibv_wr_opcode,
};

use super::{Remote, WorkRequest, as_any, work_request};
use crate::error::{Error, Result};
use crate::memory::{RemoteMemoryRegion, Scatter};

/// A compare-and-swap or a fetch-and-add on 8 bytes of the peer's memory.
///
/// The previous value of the bytes is written to an element of this side. Each machine uses its own byte
/// order, so both hosts must have the same endianness. An example is on
/// [`QueuePair::post_atomic`](crate::QueuePair::post_atomic).
///
/// An atomic never completes on a queue pair whose
/// [`max_rd_atomic`](crate::QueuePair::max_rd_atomic) is 0.
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
#[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
pub struct AtomicWorkRequest<'l> {
    any: WorkRequest<'l>,
}

impl<'l> AtomicWorkRequest<'l> {
    /// A signalled compare-and-swap: if the first 8 bytes of `remote` are equal to `compare`, they
    /// become `swap`.
    ///
    /// Their previous value is written to `before`, which must be 8 bytes long.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`] if `before` is not 8 bytes long, or the address of `remote` is not
    /// divisible by 8. [`Error::RemoteTooShort`] if `remote` has fewer than 8 bytes.
    #[inline]
    #[doc(alias = "compare_exchange")]
    pub fn compare_and_swap<E: Scatter>(
        before: &'l mut E,
        remote: &RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Result<Self> {
        Self::new(IBV_WR_ATOMIC_CMP_AND_SWP, before, remote, (compare, swap))
    }

    /// A signalled fetch-and-add: `add` is added to the first 8 bytes of `remote`, with wrap-around.
    ///
    /// Their previous value is written to `before`, which must be 8 bytes long.
    ///
    /// # Errors
    ///
    /// As [`compare_and_swap`](Self::compare_and_swap).
    #[inline]
    #[doc(alias = "fetch_add")]
    pub fn fetch_and_add<E: Scatter>(
        before: &'l mut E,
        remote: &RemoteMemoryRegion,
        add: u64,
    ) -> Result<Self> {
        Self::new(IBV_WR_ATOMIC_FETCH_AND_ADD, before, remote, (add, 0))
    }

    #[inline]
    fn new<E: Scatter>(
        opcode: ibv_wr_opcode,
        before: &'l mut E,
        remote: &RemoteMemoryRegion,
        (compare_add, swap): (u64, u64),
    ) -> Result<Self> {
        const LEN: u64 = size_of::<u64>() as u64;
        let mut any = WorkRequest::new(opcode, slice::from_mut(before));
        let (local, remote_addr) = (any.total_len(), remote.addr());
        if remote.len() < LEN {
            return Err(Error::RemoteTooShort {
                local: LEN,
                remote: remote.len(),
            });
        }
        if local != LEN || remote_addr % LEN != 0 {
            return Err(Error::Misaligned {
                addr: remote_addr,
                len: local,
            });
        }
        let atomic = Atomic {
            remote_addr,
            compare_add,
            swap,
            rkey: remote.rkey(),
        };
        any.wr.wr.write(Remote { atomic });
        Ok(Self { any })
    }
}

work_request!(AtomicWorkRequest);
as_any!(AtomicWorkRequest);
