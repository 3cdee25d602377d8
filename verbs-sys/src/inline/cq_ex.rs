//! Polling an extended completion queue (`ibv_cq_ex`): start, read field by field, next, end.

use core::ffi::{c_int, c_uint};

use crate::{__be32, ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};

/// Defines verbs that call a function pointer of the completion queue.
macro_rules! cq_ex_verbs {
    ($(
        $(#[doc = $doc:literal])+
        fn $verb:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $op:ident;
    )+) => {$(
        $(#[doc = $doc])+
        ///
        /// # Safety
        ///
        /// - `cq` is a live queue made by `ibv_create_cq_ex`, and its `wc_flags` asked for what
        ///   this reads: C leaves a null pointer otherwise.
        /// - Calls come in the order of the manual page: `ibv_wc_read_*` after an `ibv_start_poll`
        ///   or `ibv_next_poll` that returned 0, and `ibv_end_poll` after the last of them.
        /// - Other pointers are valid for what C reads and writes through them.
        ///
        #[doc = man!(ibv_create_cq_ex)]
        #[inline]
        pub unsafe fn $verb(cq: *mut ibv_cq_ex $(, $arg: $type)*) $(-> $ret)? {
            // SAFETY: the caller promises that `cq` is live.
            let op = unsafe { (*cq).$op };
            // SAFETY: the caller promises that `cq` was created with this operation.
            let op = unsafe { op.unwrap_unchecked() };
            // SAFETY: the caller promises the order of calls, and pointers that C may use.
            unsafe { op(cq $(, $arg)*) }
        }
    )+};
}

cq_ex_verbs! {
    /// Goes to the first completion: 0, `ENOENT` if there is none, or an errno.
    fn ibv_start_poll(attr: *mut ibv_poll_cq_attr) -> c_int = start_poll;

    /// Goes to the next completion: 0, `ENOENT` if there is none, or an errno.
    ///
    /// On rxe, this skips completions before rdma-core 55.
    fn ibv_next_poll() -> c_int = next_poll;

    /// Ends a poll that `ibv_start_poll` began with 0.
    fn ibv_end_poll() = end_poll;

    /// The kind of request that completed.
    fn ibv_wc_read_opcode() -> ibv_wc_opcode = read_opcode;

    /// The vendor's own error code.
    fn ibv_wc_read_vendor_err() -> u32 = read_vendor_err;

    /// How many bytes were moved.
    fn ibv_wc_read_byte_len() -> u32 = read_byte_len;

    /// The sender's immediate data.
    fn ibv_wc_read_imm_data() -> __be32 = read_imm_data;

    /// The number of the queue pair that completed.
    fn ibv_wc_read_qp_num() -> u32 = read_qp_num;

    /// The number of the sender's queue pair.
    fn ibv_wc_read_src_qp() -> u32 = read_src_qp;

    /// The completion's `ibv_wc_flags`.
    fn ibv_wc_read_wc_flags() -> c_uint = read_wc_flags;

    /// The sender's LID.
    fn ibv_wc_read_slid() -> u32 = read_slid;

    /// The service level.
    fn ibv_wc_read_sl() -> u8 = read_sl;

    /// The path bits of the destination's LID.
    fn ibv_wc_read_dlid_path_bits() -> u8 = read_dlid_path_bits;

    /// When the request completed, in ticks of the device's clock.
    fn ibv_wc_read_completion_ts() -> u64 = read_completion_ts;

    /// When the request completed, in nanoseconds of real time.
    fn ibv_wc_read_completion_wallclock_ns() -> u64 = read_completion_wallclock_ns;

    /// The VLAN tag that the device took off.
    fn ibv_wc_read_cvlan() -> u16 = read_cvlan;

    /// The tag of the flow steering rule that matched.
    fn ibv_wc_read_flow_tag() -> u32 = read_flow_tag;

    /// The tag and the sender's data of a tag-matched message.
    fn ibv_wc_read_tm_info(tm_info: *mut ibv_wc_tm_info) = read_tm_info;
}

/// The key that the sender's request invalidated.
///
/// # Safety
///
/// As for [`ibv_wc_read_imm_data`]: C stores the key in the place of the immediate data.
///
#[doc = man!(ibv_create_cq_ex)]
#[inline]
pub unsafe fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller promises what `ibv_wc_read_imm_data` asks for. The key is in host byte
    // order already.
    unsafe { ibv_wc_read_imm_data(cq) }.0
}

/// The plain queue that an extended one is.
#[inline]
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}
