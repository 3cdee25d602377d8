//! Posting through an extended queue pair (`ibv_qp_ex`): start, one call a request, complete.

use core::ffi::{c_int, c_void};

use crate::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

/// Defines verbs that call a function pointer of the queue pair.
macro_rules! qp_ex_verbs {
    ($(
        $(#[doc = $doc:literal])+
        $(#[cfg($cfg:meta)])?
        fn $verb:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $op:ident;
    )+) => {$(
        $(#[doc = $doc])+
        ///
        /// # Safety
        ///
        /// - `qp` is a live queue pair made by `ibv_create_qp_ex`, and its `send_ops_flags` asked
        ///   for this operation: C leaves a null pointer otherwise.
        /// - Calls come in the order of the manual page, between `ibv_wr_start` and
        ///   `ibv_wr_complete` or `ibv_wr_abort`, by one thread.
        /// - Other pointers are valid for what C reads through them, and the buffers of a request
        ///   stay as [`ibv_post_send`](crate::ibv_post_send) demands.
        ///
        #[doc = man!(ibv_wr_post)]
        $(#[cfg($cfg)])?
        #[inline]
        pub unsafe fn $verb(qp: *mut ibv_qp_ex $(, $arg: $type)*) $(-> $ret)? {
            // SAFETY: the caller promises that `qp` is live.
            let op = unsafe { (*qp).$op };
            // SAFETY: the caller promises that `qp` was created with this operation.
            let op = unsafe { op.unwrap_unchecked() };
            // SAFETY: the caller promises the order of calls, and pointers that C may use.
            unsafe { op(qp $(, $arg)*) }
        }
    )+};
}

qp_ex_verbs! {
    /// Begins a list of work requests.
    fn ibv_wr_start() = wr_start;

    /// Posts the list: all of it, or nothing; returns 0 or an errno.
    fn ibv_wr_complete() -> c_int = wr_complete;

    /// Gives the list up: nothing is posted.
    fn ibv_wr_abort() = wr_abort;

    /// Begins an atomic compare-and-swap of eight remote bytes.
    fn ibv_wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64)
        = wr_atomic_cmp_swp;

    /// Begins an atomic fetch-and-add of eight remote bytes.
    fn ibv_wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) = wr_atomic_fetch_add;

    /// Begins an atomic write of eight remote bytes.
    #[cfg(has_atomic_write)]
    fn ibv_wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void)
        = wr_atomic_write;

    /// Begins a bind of a memory window of type 2.
    fn ibv_wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info)
        = wr_bind_mw;

    /// Begins an invalidation of a local key.
    fn ibv_wr_local_inv(invalidate_rkey: u32) = wr_local_inv;

    /// Begins an RDMA read.
    fn ibv_wr_rdma_read(rkey: u32, remote_addr: u64) = wr_rdma_read;

    /// Begins an RDMA write.
    fn ibv_wr_rdma_write(rkey: u32, remote_addr: u64) = wr_rdma_write;

    /// Begins a flush of remote memory, of this `type_` and `level`.
    #[cfg(has_flush)]
    fn ibv_wr_flush(rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8) = wr_flush;

    /// Begins an RDMA write that also consumes a receive, with immediate data.
    fn ibv_wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32) = wr_rdma_write_imm;

    /// Begins a send.
    fn ibv_wr_send() = wr_send;

    /// Begins a send with immediate data.
    fn ibv_wr_send_imm(imm_data: __be32) = wr_send_imm;

    /// Begins a send that invalidates a key of the peer.
    fn ibv_wr_send_inv(invalidate_rkey: u32) = wr_send_inv;

    /// Begins a send that the device cuts into TCP segments (TSO).
    fn ibv_wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16) = wr_send_tso;

    /// Sets whom a datagram (UD) request goes to.
    fn ibv_wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) = wr_set_ud_addr;

    /// Sets which shared receive queue an extended connection (XRC) request goes to.
    fn ibv_wr_set_xrc_srqn(remote_srqn: u32) = wr_set_xrc_srqn;

    /// Sets the request's data, copied before this returns.
    fn ibv_wr_set_inline_data(addr: *mut c_void, length: usize) = wr_set_inline_data;

    /// Sets the request's data from several buffers, copied before this returns.
    fn ibv_wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf)
        = wr_set_inline_data_list;

    /// Sets the request's one buffer.
    fn ibv_wr_set_sge(lkey: u32, addr: u64, length: u32) = wr_set_sge;

    /// Sets the request's buffers.
    fn ibv_wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge) = wr_set_sge_list;
}
