//! Verbs through function pointers in the object itself.

use std::ffi::{c_int, c_uint, c_void};

use verbs_sys::{
    __be32, ibv_ah, ibv_cq_ex, ibv_data_buf, ibv_dm, ibv_mw, ibv_mw_bind_info, ibv_poll_cq_attr,
    ibv_qp_ex, ibv_recv_wr, ibv_sge, ibv_wc_opcode, ibv_wc_tm_info, ibv_wq,
};

use crate::fake::{Device, Value, calls, fake_op, samples};

/// Tests verbs that call the function pointer `$op` of `$object`, whatever it is.
macro_rules! object {
    ($(
        $(#[$cfg:meta])?
        $verb:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $object:ident.$op:ident
    )*) => {$(
        $(#[$cfg])?
        #[test]
        fn $verb() {
            object!(@test $verb ($($arg: $type),*) ($($ret)?) $object $op);
        }
    )*};
    (@test $verb:ident ($($arg:ident: $type:ty),*) () $object:ident $op:ident) => {
        object!(@test $verb ($($arg: $type),*) (()) $object $op);
    };
    (@test $verb:ident ($($arg:ident: $type:ty),*) ($ret:ty) $object:ident $op:ident) => {
        let device = Device::new();
        let context = device.context();
        samples!(context, $($arg: $type),*);
        let fake = fake_op!(|$($arg: $type),*| -> $ret {
            <$ret as Value>::sample(std::ptr::null_mut(), 27)
        });
        // SAFETY: the samples are live objects.
        let answer = unsafe {
            (*$object).$op = Some(fake);
            verbs_sys::$verb($($arg),*)
        };
        assert_eq!(calls(), [vec![$(Value::bits($arg)),*]]);
        let expected = <$ret as Value>::sample(std::ptr::null_mut(), 27);
        assert_eq!(Value::bits(answer), Value::bits(expected));
    };
}

object! {
    ibv_wr_atomic_cmp_swp(
        qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64
    ) = qp.wr_atomic_cmp_swp
    ibv_wr_atomic_fetch_add(
        qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64
    ) = qp.wr_atomic_fetch_add
    ibv_wr_bind_mw(
        qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info
    ) = qp.wr_bind_mw
    ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = qp.wr_local_inv
    ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = qp.wr_rdma_read
    ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = qp.wr_rdma_write
    #[cfg(has_flush)]
    ibv_wr_flush(
        qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, kind: u8, level: u8
    ) = qp.wr_flush
    ibv_wr_rdma_write_imm(
        qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32
    ) = qp.wr_rdma_write_imm
    ibv_wr_send(qp: *mut ibv_qp_ex) = qp.wr_send
    ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) = qp.wr_send_imm
    ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = qp.wr_send_inv
    ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) = qp.wr_send_tso
    ibv_wr_set_ud_addr(
        qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32
    ) = qp.wr_set_ud_addr
    ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) = qp.wr_set_xrc_srqn
    ibv_wr_set_inline_data(
        qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize
    ) = qp.wr_set_inline_data
    ibv_wr_set_inline_data_list(
        qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf
    ) = qp.wr_set_inline_data_list
    ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) = qp.wr_set_sge
    ibv_wr_set_sge_list(
        qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge
    ) = qp.wr_set_sge_list
    ibv_wr_start(qp: *mut ibv_qp_ex) = qp.wr_start
    ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int = qp.wr_complete
    ibv_wr_abort(qp: *mut ibv_qp_ex) = qp.wr_abort
    #[cfg(has_atomic_write)]
    ibv_wr_atomic_write(
        qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void
    ) = qp.wr_atomic_write
    ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int = cq.start_poll
    ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int = cq.next_poll
    ibv_end_poll(cq: *mut ibv_cq_ex) = cq.end_poll
    ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode = cq.read_opcode
    ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 = cq.read_vendor_err
    ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 = cq.read_byte_len
    ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 = cq.read_imm_data
    ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 = cq.read_qp_num
    ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 = cq.read_src_qp
    ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint = cq.read_wc_flags
    ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 = cq.read_slid
    ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 = cq.read_sl
    ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 = cq.read_dlid_path_bits
    ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64 = cq.read_completion_ts
    ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 = cq.read_completion_wallclock_ns
    ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16 = cq.read_cvlan
    ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32 = cq.read_flow_tag
    ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) = cq.read_tm_info
    ibv_post_wq_recv(
        wq: *mut ibv_wq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr
    ) -> c_int = wq.post_recv
    ibv_memcpy_to_dm(
        dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize
    ) -> c_int = dm.memcpy_to_dm
    ibv_memcpy_from_dm(
        host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize
    ) -> c_int = dm.memcpy_from_dm
}

#[test]
fn ibv_wc_read_invalidated_rkey() {
    // The key is in host byte order, whatever the type of the shared field is.
    let context = Device::new().context();
    samples!(context, cq: *mut ibv_cq_ex);
    let fake = fake_op!(|cq: *mut ibv_cq_ex| -> __be32 { __be32(0x0102_0304) });
    // SAFETY: the sample is a live object.
    let rkey = unsafe {
        (*cq).read_imm_data = Some(fake);
        verbs_sys::ibv_wc_read_invalidated_rkey(cq)
    };
    assert_eq!(rkey, 0x0102_0304);
    assert_eq!(calls(), [vec![cq.bits()]]);
}
