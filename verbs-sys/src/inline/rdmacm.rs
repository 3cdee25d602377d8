//! The `static inline` functions of `rdma_cma.h` and `rdma_verbs.h`.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each function is one expression of C"
)]

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::sockaddr;

use super::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_req_notify_cq};
use crate::errno::set_errno;
use crate::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_SEND, RDMA_UDP_QKEY, ibv_access_flags, ibv_ack_cq_events, ibv_ah,
    ibv_comp_channel, ibv_cq, ibv_dereg_mr, ibv_get_cq_event, ibv_mr, ibv_recv_wr, ibv_reg_mr,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_opcode, rdma_cm_id,
};

/// Returns 0 as it is; sets `errno` to any other number, and returns -1.
#[inline]
#[expect(clippy::must_use_candidate, reason = "sets `errno`")]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    if ret == 0 {
        return 0;
    }
    set_errno(ret);
    -1
}

/// The local address of an identifier.
///
/// # Safety
///
/// - `id` is a live identifier.
/// - The address is not used after it has been destroyed.
///
#[doc = man!(rdma_get_local_addr)]
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller promises that `id` is live; the union begins with the address.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// The address of an identifier's peer.
///
/// # Safety
///
/// As for [`rdma_get_local_addr`].
///
#[doc = man!(rdma_get_peer_addr)]
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller promises that `id` is live; the union begins with the address.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}

/// Registers memory in the identifier's protection domain.
///
/// # Safety
///
/// As for [`ibv_reg_mr`], with the protection domain of a live `id`.
#[inline]
unsafe fn reg(
    id: *mut rdma_cm_id,
    addr: *mut c_void,
    length: usize,
    access: ibv_access_flags,
) -> *mut ibv_mr {
    // SAFETY: the caller promises a live `id`, and memory that `ibv_reg_mr` may register.
    unsafe { ibv_reg_mr((*id).pd, addr, length, access.0.cast_signed()) }
}

/// Registers memory for messages.
///
/// # Safety
///
/// As for [`ibv_reg_mr`], with the protection domain of a live `id`.
///
#[doc = man!(rdma_reg_msgs)]
#[inline]
pub unsafe fn rdma_reg_msgs(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    // SAFETY: the caller promises what `reg` asks for.
    unsafe { reg(id, addr, length, IBV_ACCESS_LOCAL_WRITE) }
}

/// Registers memory that the peer may read.
///
/// # Safety
///
/// As for [`rdma_reg_msgs`].
///
#[doc = man!(rdma_reg_read)]
#[inline]
pub unsafe fn rdma_reg_read(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    // SAFETY: the caller promises what `reg` asks for.
    unsafe { reg(id, addr, length, access) }
}

/// Registers memory that the peer may write to.
///
/// # Safety
///
/// As for [`rdma_reg_msgs`].
///
#[doc = man!(rdma_reg_write)]
#[inline]
pub unsafe fn rdma_reg_write(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    // SAFETY: the caller promises what `reg` asks for.
    unsafe { reg(id, addr, length, access) }
}

/// Deregisters memory. Returns -1 and sets `errno` if that fails.
///
/// # Safety
///
/// - `mr` is a live region, and is not used after this.
///
#[doc = man!(rdma_dereg_mr)]
#[inline]
pub unsafe fn rdma_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller promises that `mr` is live, and not used after this.
    rdma_seterrno(unsafe { ibv_dereg_mr(mr) })
}

/// Posts a receive into a list of elements, to the shared receive queue if the identifier has one.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair or a shared receive queue.
/// - `sgl` has `nsge` elements.
/// - Their memory stays registered, allocated and untouched until the receive has completed.
///
#[doc = man!(rdma_post_recvv)]
#[inline]
pub unsafe fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    let mut wr = ibv_recv_wr {
        wr_id: context.expose_provenance() as u64,
        next: ptr::null_mut(),
        sg_list: sgl,
        num_sge: nsge,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: the caller promises a live `id` and memory for the receive; `wr` and `bad` are
    // locals.
    let ret = unsafe {
        if (*id).srq.is_null() {
            ibv_post_recv((*id).qp, &raw mut wr, &raw mut bad)
        } else {
            ibv_post_srq_recv((*id).srq, &raw mut wr, &raw mut bad)
        }
    };
    rdma_seterrno(ret)
}

/// A request for the send queue.
const fn request(
    opcode: ibv_wr_opcode,
    wr_id: u64,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> ibv_send_wr {
    // SAFETY: an `ibv_send_wr` consists of numbers and pointers, which may all be zero.
    let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
    wr.wr_id = wr_id;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = opcode;
    wr.send_flags = flags.cast_unsigned();
    wr
}

/// # Safety
///
/// As for [`ibv_post_send`], of the queue pair of a live `id`, with this one request.
#[inline]
unsafe fn post(id: *mut rdma_cm_id, mut wr: ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller promises a live `id` and a valid request; `wr` and `bad` are locals.
    rdma_seterrno(unsafe { ibv_post_send((*id).qp, &raw mut wr, &raw mut bad) })
}

/// Posts a send of a list of elements.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair.
/// - `sgl` has `nsge` elements.
/// - Their memory stays registered and allocated, and is not written to, until the request has
///   completed, or a later one that is signalled.
///
#[doc = man!(rdma_post_sendv)]
#[inline]
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    let wr_id = context.expose_provenance() as u64;
    // SAFETY: the caller promises a live `id`, and memory that stays until the request completes.
    unsafe { post(id, request(IBV_WR_SEND, wr_id, sgl, nsge, flags)) }
}

/// A request with the peer's memory.
const fn one_sided(mut wr: ibv_send_wr, remote_addr: u64, rkey: u32) -> ibv_send_wr {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    wr
}

/// Posts a read of the peer's memory into a list of elements.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair.
/// - `sgl` has `nsge` elements.
/// - Their memory stays registered, allocated and untouched until the request has completed, or a later
///   one that is signalled.
///
#[doc = man!(rdma_post_readv)]
#[inline]
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr_id = context.expose_provenance() as u64;
    let wr = request(IBV_WR_RDMA_READ, wr_id, sgl, nsge, flags);
    // SAFETY: the caller promises a live `id`, and memory that stays until the request completes.
    unsafe { post(id, one_sided(wr, remote_addr, rkey)) }
}

/// Posts a write of a list of elements to the peer's memory.
///
/// # Safety
///
/// As for [`rdma_post_sendv`].
///
#[doc = man!(rdma_post_writev)]
#[inline]
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr_id = context.expose_provenance() as u64;
    let wr = request(IBV_WR_RDMA_WRITE, wr_id, sgl, nsge, flags);
    // SAFETY: the caller promises a live `id`, and memory that stays until the request completes.
    unsafe { post(id, one_sided(wr, remote_addr, rkey)) }
}

/// An element of a region. As in C, the length is cut to 32 bits.
///
/// # Safety
///
/// - `mr` is a live region, or null: then the key is 0.
#[expect(clippy::cast_possible_truncation, reason = "as in C")]
#[inline]
unsafe fn element(addr: *mut c_void, length: usize, mr: *mut ibv_mr) -> ibv_sge {
    let lkey = if mr.is_null() {
        0
    } else {
        // SAFETY: the caller promises that `mr`, which is not null here, is a live region.
        unsafe { (*mr).lkey }
    };
    ibv_sge {
        addr: addr.expose_provenance() as u64,
        length: length as u32,
        lkey,
    }
}

/// Posts a receive into one buffer.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair or a shared receive queue.
/// - `mr` is a live region, which the buffer is in. C asserts that.
/// - The buffer stays registered, allocated and untouched until the receive has completed.
///
#[doc = man!(rdma_post_recv)]
#[inline]
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: the caller promises a live `id` and `mr`; `sge` is a local, which the post copies.
    unsafe {
        let mut sge = element(addr, length, mr);
        rdma_post_recvv(id, context, &raw mut sge, 1)
    }
}

/// Posts a send of one buffer.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair.
/// - `mr` is a live region, which the buffer is in; or null, if the buffer is sent inline.
/// - Unless it is sent inline, the buffer stays registered and allocated, and is not written to, until
///   the request has completed, or a later one that is signalled.
///
#[doc = man!(rdma_post_send)]
#[inline]
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller promises a live `id` and `mr`; `sge` is a local, which the post copies.
    unsafe {
        let mut sge = element(addr, length, mr);
        rdma_post_sendv(id, context, &raw mut sge, 1, flags)
    }
}

/// Posts a read of the peer's memory into one buffer.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair.
/// - `mr` is a live region, which the buffer is in.
/// - The buffer stays registered, allocated and untouched until the request has completed, or a later one
///   that is signalled.
///
#[doc = man!(rdma_post_read)]
#[inline]
#[expect(clippy::too_many_arguments, reason = "C's")]
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller promises a live `id` and `mr`; `sge` is a local, which the post copies.
    unsafe {
        let mut sge = element(addr, length, mr);
        rdma_post_readv(id, context, &raw mut sge, 1, flags, remote_addr, rkey)
    }
}

/// Posts a write of one buffer to the peer's memory.
///
/// # Safety
///
/// As for [`rdma_post_send`].
///
#[doc = man!(rdma_post_write)]
#[inline]
#[expect(clippy::too_many_arguments, reason = "C's")]
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller promises a live `id` and `mr`; `sge` is a local, which the post copies.
    unsafe {
        let mut sge = element(addr, length, mr);
        rdma_post_writev(id, context, &raw mut sge, 1, flags, remote_addr, rkey)
    }
}

/// Posts a datagram of one buffer, with librdmacm's key.
///
/// # Safety
///
/// As for [`rdma_post_send`]; and `ah` is a live address handle of the queue pair's protection domain,
/// which lives until the datagram has left.
///
#[doc = man!(rdma_post_ud_send)]
#[inline]
#[expect(clippy::too_many_arguments, reason = "C's")]
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    let wr_id = context.expose_provenance() as u64;
    // SAFETY: the caller promises a live `id`, `mr` and `ah`; `sge` is a local, which the post
    // copies.
    unsafe {
        let mut sge = element(addr, length, mr);
        let mut wr = request(IBV_WR_SEND, wr_id, &raw mut sge, 1, flags);
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = remote_qpn;
        wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
        post(id, wr)
    }
}

/// Polls a queue, and sleeps until a completion is there: a count of 1, or -1 with `errno` set.
///
/// # Safety
///
/// - `cq` is a live queue on `channel`, whose events are of this queue only, with the identifier as
///   their context. C asserts that.
/// - `wc` is valid for writes.
#[inline]
unsafe fn get_comp(cq: *mut ibv_cq, channel: *mut ibv_comp_channel, wc: *mut ibv_wc) -> c_int {
    let ret = loop {
        // SAFETY: the caller promises a live `cq` and a writable `wc`.
        let ret = unsafe { ibv_poll_cq(cq, 1, wc) };
        if ret != 0 {
            break ret;
        }
        // SAFETY: the caller promises that `cq` is live.
        let ret = unsafe { ibv_req_notify_cq(cq, 0) };
        if ret != 0 {
            return rdma_seterrno(ret);
        }
        // SAFETY: the caller promises a live `cq` and a writable `wc`.
        let ret = unsafe { ibv_poll_cq(cq, 1, wc) };
        if ret != 0 {
            break ret;
        }
        let (mut of, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller promises that `channel` is that of a live `cq`; `of` and `context` are
        // locals.
        let ret = unsafe { ibv_get_cq_event(channel, &raw mut of, &raw mut context) };
        if ret != 0 {
            return ret;
        }
        // SAFETY: the event is of this queue.
        unsafe { ibv_ack_cq_events(cq, 1) };
    };
    if ret < 0 { rdma_seterrno(ret) } else { ret }
}

/// Waits for a completion of the send queue: 1, or -1 with `errno` set. It may wait forever.
///
/// # Safety
///
/// - `id` is a live identifier with a queue pair that librdmacm has made, so that its queues have
///   completion channels of their own.
/// - `wc` is valid for writes.
///
#[doc = man!(rdma_get_send_comp)]
#[inline]
pub unsafe fn rdma_get_send_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller promises a live `id` whose queues have channels, and a writable `wc`.
    unsafe { get_comp((*id).send_cq, (*id).send_cq_channel, wc) }
}

/// Waits for a completion of the receive queue: 1, or -1 with `errno` set. It may wait forever.
///
/// # Safety
///
/// As for [`rdma_get_send_comp`].
///
#[doc = man!(rdma_get_recv_comp)]
#[inline]
pub unsafe fn rdma_get_recv_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller promises a live `id` whose queues have channels, and a writable `wc`.
    unsafe { get_comp((*id).recv_cq, (*id).recv_cq_channel, wc) }
}
