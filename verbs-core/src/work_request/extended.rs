//! Requests that are written into a send queue by `ibv_wr_*`.
#![expect(unsafe_code, reason = "calls functions of an `ibv_qp_ex`")]

use std::ptr;

use verbs_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp_ex,
    ibv_sge,
};

use super::WorkRequest;

/// Calls a function of the queue pair; the result is `false` if it has none, since it was not created for that.
macro_rules! call {
    ($qp:ident.$op:ident($($argument:expr),*)) => {{
        // SAFETY: the caller has a living queue pair, whose functions are not changed.
        let Some(op) = (unsafe { (*$qp).$op }) else {
            return false;
        };
        // SAFETY: a batch is open, and the arguments are those of a request whose kind has them.
        unsafe { op($qp $(, $argument)*) }
    }};
}

impl WorkRequest<'_> {
    /// The flag of its kind in `SendOpsFlags`: C numbers both alike.
    #[inline]
    pub(crate) const fn send_ops_flag(&self) -> u64 {
        1 << self.wr.opcode.0
    }

    /// Adds the request to the open batch; `false` if the queue pair was not created for such requests.
    ///
    /// # Safety
    ///
    /// - The queue pair is alive, and the calling thread has begun a batch on it.
    /// - The contract of [`QueuePair::post`](crate::QueuePair::post) holds for the request.
    #[inline]
    pub(crate) unsafe fn put_into(&self, qp: *mut ibv_qp_ex) -> bool {
        // SAFETY: the caller has a living queue pair, and alone uses its batch.
        unsafe { (*qp).wr_id = self.wr.wr_id };
        // SAFETY: the caller has a living queue pair, and alone uses its batch.
        unsafe { (*qp).wr_flags = self.wr.send_flags };
        let imm_data = self.wr.imm_data;
        match self.wr.opcode {
            IBV_WR_SEND => call!(qp.wr_send()),
            IBV_WR_SEND_WITH_IMM => call!(qp.wr_send_imm(imm_data)),
            IBV_WR_SEND_WITH_INV => call!(qp.wr_send_inv(imm_data.0)),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                // SAFETY: the constructors of writes and reads have set it.
                let remote = unsafe { self.wr.wr.assume_init_ref() };
                // SAFETY: the constructor of a request with this opcode has set this field of the union.
                let rdma = unsafe { remote.rdma };
                let (rkey, addr) = (rdma.rkey, rdma.remote_addr);
                match self.wr.opcode {
                    IBV_WR_RDMA_WRITE => call!(qp.wr_rdma_write(rkey, addr)),
                    IBV_WR_RDMA_READ => call!(qp.wr_rdma_read(rkey, addr)),
                    _ => call!(qp.wr_rdma_write_imm(rkey, addr, imm_data)),
                }
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                // SAFETY: the constructors of atomics have set it.
                let remote = unsafe { self.wr.wr.assume_init_ref() };
                // SAFETY: the constructor of a request with this opcode has set this field of the union.
                let atomic = unsafe { remote.atomic };
                let (rkey, addr, compare_add) =
                    (atomic.rkey, atomic.remote_addr, atomic.compare_add);
                match self.wr.opcode {
                    IBV_WR_ATOMIC_FETCH_AND_ADD => {
                        call!(qp.wr_atomic_fetch_add(rkey, addr, compare_add));
                    }
                    _ => call!(qp.wr_atomic_cmp_swp(rkey, addr, compare_add, atomic.swap)),
                }
            }
            IBV_WR_LOCAL_INV => {
                call!(qp.wr_local_inv(imm_data.0));
                return true;
            }
            IBV_WR_BIND_MW => {
                // SAFETY: the constructor of binds has set it.
                let bind = unsafe { self.wr.bind_mw_or_tso.assume_init_ref() };
                // SAFETY: the constructor of a request with this opcode has set this field of the union.
                let bind = unsafe { bind.bind_mw };
                call!(qp.wr_bind_mw(bind.mw, bind.rkey, &raw const bind.bind_info));
                return true;
            }
            _ => return false,
        }
        let (list, count) = (self.wr.sg_list, self.wr.num_sge.unsigned_abs() as usize);
        if !self.is_inline() {
            match count {
                1 => {
                    // SAFETY: `compact` has counted one element in the list, which the request borrows.
                    let ibv_sge { lkey, addr, length } = unsafe { *list };
                    call!(qp.wr_set_sge(lkey, addr, length));
                }
                _ => call!(qp.wr_set_sge_list(count, list)),
            }
            return true;
        }
        if count == 1 {
            // SAFETY: `compact` has counted one element in the list, which the request borrows.
            let sge = unsafe { &*list };
            call!(qp.wr_set_inline_data(sge_addr(sge).cast(), sge.length as usize));
            return true;
        }
        // SAFETY: the caller has a living queue pair and its batch, and the list has this number of elements, whose
        // memory can be read.
        unsafe { put_inline(qp, list, count) }
    }
}

/// Copies the bytes of a list of elements into the open batch.
///
/// They go by a copy in one piece: the function for several, `wr_set_inline_data_list`, sends no bytes in soft-RoCE's
/// library of rdma-core 44.
///
/// # Safety
///
/// - The queue pair is alive, and the calling thread has added a request to its batch.
/// - The list has this number of elements, whose memory can be read.
#[inline(never)] // The other requests need no room for the bytes.
unsafe fn put_inline(qp: *mut ibv_qp_ex, list: *const ibv_sge, count: usize) -> bool {
    let mut bytes = [0_u8; MAX_INLINE_LIST as usize];
    let mut total = 0;
    for at in 0..count {
        // SAFETY: the caller has this number of elements in the list.
        let sge = unsafe { &*list.wrapping_add(at) };
        let len = sge.length as usize;
        let Some(room) = bytes.get_mut(total..total + len) else {
            return false;
        };
        // SAFETY: the caller has memory that can be read, and the room is a local of this length.
        unsafe { ptr::copy_nonoverlapping(sge_addr(sge), room.as_mut_ptr(), len) };
        total += len;
    }
    call!(qp.wr_set_inline_data(bytes.as_mut_ptr().cast(), total));
    true
}

/// How many bytes an inline request of several elements can have in a batch.
pub(crate) const MAX_INLINE_LIST: u32 = 1024;

/// The memory of an element, at its address in this process.
fn sge_addr(sge: &ibv_sge) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(sge.addr).unwrap_or(0))
}

const _: () = {
    assert!(1 << IBV_WR_RDMA_WRITE.0 == IBV_QP_EX_WITH_RDMA_WRITE.0);
    assert!(1 << IBV_WR_RDMA_WRITE_WITH_IMM.0 == IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0);
    assert!(1 << IBV_WR_SEND.0 == IBV_QP_EX_WITH_SEND.0);
    assert!(1 << IBV_WR_SEND_WITH_IMM.0 == IBV_QP_EX_WITH_SEND_WITH_IMM.0);
    assert!(1 << IBV_WR_RDMA_READ.0 == IBV_QP_EX_WITH_RDMA_READ.0);
    assert!(1 << IBV_WR_ATOMIC_CMP_AND_SWP.0 == IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0);
    assert!(1 << IBV_WR_ATOMIC_FETCH_AND_ADD.0 == IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0);
    assert!(1 << IBV_WR_LOCAL_INV.0 == IBV_QP_EX_WITH_LOCAL_INV.0);
    assert!(1 << IBV_WR_BIND_MW.0 == IBV_QP_EX_WITH_BIND_MW.0);
    assert!(1 << IBV_WR_SEND_WITH_INV.0 == IBV_QP_EX_WITH_SEND_WITH_INV.0);
};
