//! librdmacm's functions that the kernel has no part in: queue pairs of identifiers, calls that wait, lists of addresses.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr;

use super::calls::{
    rdma_bind_addr, rdma_create_id, rdma_destroy_id, rdma_init_qp_attr, rdma_resolve_addr,
    rdma_resolve_route,
};
use super::events::EventKind;
use super::id::Id;
use super::lists::PASSIVE;
use super::manager::Space;
use super::taking::{rdma_ack_cm_event, rdma_get_cm_event};
use crate::abi::attributes::{ibv_qp_attr, ibv_qp_init_attr, ibv_srq_init_attr};
use crate::abi::connection::{rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq, ibv_pd};
use crate::completion_queue::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::{Errno, answer, fail, last};
use crate::event::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::queue_pair::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::shared_receive::{ibv_create_srq, ibv_destroy_srq};

const STATE: c_int = 1;
pub(super) const INIT: u32 = 1;
pub(super) const RTR: u32 = 2;
pub(super) const RTS: u32 = 3;
const ERR: u32 = 6;

/// Waits for the event of a call that was made, if the identifier has no channel of the program's.
///
/// # Safety
///
/// The identifier is alive.
pub(super) unsafe fn complete(id: *mut rdma_cm_id, made: Result<(), Errno>) -> c_int {
    // SAFETY: the caller's identifier is alive.
    if made.is_err() || !unsafe { Id::of(id) }.waits {
        return answer(made);
    }
    // SAFETY: the caller's identifier is alive.
    match unsafe { next_event(id) } {
        // SAFETY: the identifier has it until it gets the next.
        Ok(event) => match unsafe { &*event } {
            rdma_cm_event { status: 0, .. } => 0,
            event if event.event == EventKind::REJECTED.0 => fail(libc::ECONNREFUSED, -1),
            event => fail(event.status.abs(), -1),
        },
        Err(errno) => fail(errno, -1),
    }
}

/// Waits for the next event of an identifier without a channel of the program's, which keeps it.
///
/// # Safety
///
/// The identifier is alive.
unsafe fn next_event(id: *mut rdma_cm_id) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the caller's identifier is alive.
    let &rdma_cm_id {
        channel,
        event: before,
        ..
    } = unsafe { &*id };
    if !before.is_null() {
        // SAFETY: the identifier has it from `rdma_get_cm_event`, and not for longer.
        unsafe { rdma_ack_cm_event(before) };
    }
    let mut event = ptr::null_mut();
    // SAFETY: the channel is the identifier's own.
    let got = unsafe { rdma_get_cm_event(channel, &raw mut event) };
    // SAFETY: the caller's identifier is alive.
    unsafe { (*id).event = event };
    if got == 0 { Ok(event) } else { Err(last()) }
}

/// The number of the identifier's queue pair.
///
/// # Safety
///
/// The identifier is alive.
pub(super) unsafe fn qp_num(id: *mut rdma_cm_id) -> Option<u32> {
    // SAFETY: the caller's identifier is alive.
    let qp = unsafe { (*id).qp };
    // SAFETY: the queue pair of an identifier is alive.
    (!qp.is_null()).then(|| unsafe { (*qp).qp_num })
}

/// Changes the state of the identifier's queue pair, if it has one.
///
/// # Safety
///
/// The identifier is alive.
unsafe fn modify(id: *mut rdma_cm_id, state: u32) -> Result<(), Errno> {
    // SAFETY: the caller's identifier is alive.
    let qp = unsafe { (*id).qp };
    if qp.is_null() {
        return Ok(());
    }
    // SAFETY: zeros are valid for attributes.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    let mut mask = STATE;
    if state != ERR {
        // SAFETY: the caller's identifier is alive, and both places are here.
        if unsafe { rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) } != 0 {
            return Err(last());
        }
    }
    // SAFETY: the queue pair of an identifier is alive.
    match unsafe { ibv_modify_qp(qp, &raw mut attr, mask) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Connects the identifier's queue pair, if it has one.
///
/// # Safety
///
/// The identifier is alive.
pub(super) unsafe fn to_rts(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's identifier is alive.
    unsafe { modify(id, RTR) }?;
    // SAFETY: the caller's identifier is alive.
    unsafe { modify(id, RTS) }
}

/// Ends the work of the identifier's queue pair, if it has one.
///
/// # Safety
///
/// The identifier is alive.
pub(super) unsafe fn to_err(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's identifier is alive.
    unsafe { modify(id, ERR) }
}

/// Makes a completion queue with a channel.
///
/// # Safety
///
/// The context is open.
unsafe fn queue(
    context: *mut ibv_context,
    of: *mut rdma_cm_id,
    capacity: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: the caller's context is open.
    let channel = unsafe { ibv_create_comp_channel(context) };
    if channel.is_null() {
        return Err(last());
    }
    let capacity = c_int::try_from(capacity.max(1)).unwrap_or(c_int::MAX);
    // SAFETY: the context is open, and the channel new.
    let cq = unsafe { ibv_create_cq(context, capacity, of.cast(), channel, 0) };
    if cq.is_null() {
        let errno = last();
        // SAFETY: nobody has it.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(errno);
    }
    Ok((channel, cq))
}

/// Ends the completion queues that the identifier has made.
///
/// # Safety
///
/// The identifier is alive, and no queue pair has them.
unsafe fn end_queues(id: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier is alive.
    let own = unsafe { &mut *id };
    let queues = [
        (&mut own.send_cq, &mut own.send_cq_channel),
        (&mut own.recv_cq, &mut own.recv_cq_channel),
    ];
    for (cq, channel) in queues {
        if !channel.is_null() {
            // SAFETY: `queue` made it.
            unsafe { ibv_destroy_cq(*cq) };
            // SAFETY: `queue` made it.
            unsafe { ibv_destroy_comp_channel(*channel) };
        }
        (*cq, *channel) = (ptr::null_mut(), ptr::null_mut());
    }
}

/// # Safety
///
/// The identifier is alive; its domain, and the queues of the attributes, too, unless they are null.
unsafe fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's identifier is alive.
    let own = unsafe { &mut *id };
    let pd = if pd.is_null() { own.pd } else { pd };
    if own.verbs.is_null() || pd.is_null() {
        return Err(libc::EINVAL);
    }
    if init.recv_cq.is_null() {
        // SAFETY: the identifier has a device.
        let made = unsafe { queue(own.verbs, id, init.cap.max_recv_wr) };
        (own.recv_cq_channel, own.recv_cq) = made?;
        init.recv_cq = own.recv_cq;
    }
    if init.send_cq.is_null() {
        // SAFETY: the identifier has a device.
        let made = unsafe { queue(own.verbs, id, init.cap.max_send_wr) };
        (own.send_cq_channel, own.send_cq) = made?;
        init.send_cq = own.send_cq;
    }
    if init.srq.is_null() {
        init.srq = own.srq;
    }
    // SAFETY: the domain and the queues are alive.
    own.qp = unsafe { ibv_create_qp(pd, init) };
    if own.qp.is_null() {
        return Err(last());
    }
    own.pd = pd;
    let states: &[u32] = if init.qp_type == Space::Datagrams.qp_type() {
        &[INIT, RTR, RTS]
    } else {
        &[INIT]
    };
    for state in states {
        // SAFETY: the caller's identifier is alive.
        unsafe { modify(id, *state) }?;
    }
    Ok(())
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's identifier is alive.
    let &rdma_cm_id { qp, verbs, .. } = unsafe { &*id };
    // SAFETY: the caller's domain is alive, or null.
    let of = unsafe { pd.as_ref() }.map(|pd| pd.context);
    if !qp.is_null() || of.is_some_and(|of| of != verbs) {
        return fail(libc::EINVAL, -1);
    }
    // SAFETY: the caller has it.
    let init = unsafe { &mut *init };
    // SAFETY: the caller has them.
    let created = unsafe { create_qp(id, pd, init) };
    if created.is_err() {
        // SAFETY: the caller's identifier is alive.
        unsafe { rdma_destroy_qp(id) };
    }
    answer(created)
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier is alive.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: the identifier has made it.
        unsafe { ibv_destroy_qp(qp) };
    }
    // SAFETY: the caller's identifier is alive.
    unsafe { (*id).qp = ptr::null_mut() };
    // SAFETY: the queue pair is gone.
    unsafe { end_queues(id) };
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's identifier is alive.
    let own = unsafe { &mut *id };
    own.pd = if pd.is_null() { own.pd } else { pd };
    if own.pd.is_null() {
        return fail(libc::EINVAL, -1);
    }
    // SAFETY: the domain is alive, and the caller has the attributes.
    own.srq = unsafe { ibv_create_srq(own.pd, init) };
    if own.srq.is_null() { -1 } else { 0 }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier is alive.
    let srq = unsafe { (*id).srq };
    if !srq.is_null() {
        // SAFETY: the identifier has made it.
        unsafe { ibv_destroy_srq(srq) };
    }
    // SAFETY: the caller's identifier is alive.
    unsafe { (*id).srq = ptr::null_mut() };
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    const WAIT: c_int = 2000;
    // SAFETY: the caller has it.
    let info = unsafe { &*info };
    let space = u32::try_from(info.ai_port_space).unwrap_or(0);
    let mut made = ptr::null_mut();
    // SAFETY: the place is here.
    if unsafe { rdma_create_id(ptr::null_mut(), &raw mut made, ptr::null_mut(), space) } != 0 {
        return -1;
    }
    let is_passive = info.ai_flags & PASSIVE != 0;
    // SAFETY: it was made a moment ago.
    let own = unsafe { Id::of(made) };
    let mut failed = match is_passive {
        // SAFETY: the identifier is alive, and so is the address.
        true => unsafe { rdma_bind_addr(made, info.ai_src_addr) },
        // SAFETY: the identifier is alive, and so are the addresses.
        false => unsafe { rdma_resolve_addr(made, info.ai_src_addr, info.ai_dst_addr, WAIT) },
    };
    if failed == 0 && !is_passive {
        // SAFETY: the identifier is alive.
        failed = unsafe { rdma_resolve_route(made, WAIT) };
    }
    // SAFETY: the caller has it, or null.
    if let (0, Some(init)) = (failed, unsafe { init.as_mut() }) {
        init.qp_type = info.ai_qp_type.cast_unsigned();
        if is_passive {
            own.lock().for_requests = Some((pd.expose_provenance(), *init));
        } else {
            // SAFETY: the identifier is alive, and the caller has the rest.
            failed = unsafe { rdma_create_qp(made, pd, init) };
        }
    }
    if failed != 0 {
        let errno = last();
        // SAFETY: nobody has it.
        unsafe { rdma_destroy_ep(made) };
        return fail(errno, -1);
    }
    // SAFETY: the caller has room for it.
    unsafe { id.write(made) };
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier is alive.
    unsafe { rdma_destroy_qp(id) };
    // SAFETY: the caller's identifier is alive.
    unsafe { rdma_destroy_srq(id) };
    // SAFETY: the caller does not use it again.
    unsafe { rdma_destroy_id(id) };
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(listen) };
    if !own.waits {
        return fail(libc::EINVAL, -1);
    }
    // SAFETY: the identifier is alive.
    let event = match unsafe { next_event(listen) } {
        Ok(event) => event,
        Err(errno) => return fail(errno, -1),
    };
    // SAFETY: the listener has it.
    let &rdma_cm_event {
        event: kind,
        id: asks,
        ..
    } = unsafe { &*event };
    if kind != EventKind::CONNECT_REQUEST.0 {
        return fail(libc::EINVAL, -1);
    }
    let for_requests = own.lock().for_requests;
    if let Some((pd, mut init)) = for_requests {
        let pd = ptr::with_exposed_provenance_mut(pd);
        // SAFETY: the request is new, and the domain alive, as the program has promised.
        if unsafe { rdma_create_qp(asks, pd, &raw mut init) } != 0 {
            let errno = last();
            // SAFETY: nobody has it; its event is the listener's.
            unsafe { rdma_destroy_ep(asks) };
            return fail(errno, -1);
        }
    }
    // SAFETY: it is alive.
    unsafe { (*asks).event = event };
    // SAFETY: it is alive.
    unsafe { (*listen).event = ptr::null_mut() };
    // SAFETY: the caller has room for it.
    unsafe { id.write(asks) };
    0
}

/// No descriptor is a socket of librdmacm's: there are none.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rpoll(polled: *mut libc::pollfd, count: libc::nfds_t, wait: c_int) -> c_int {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { libc::poll(polled, count, wait) }
}

/// A queue pair by the extended structure, whose beginning is the plain one.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut c_void) -> c_int {
    let init = init.cast::<crate::abi::attributes::ibv_qp_init_attr_ex>();
    // SAFETY: the caller has it.
    let own = unsafe { &*init };
    // The domain alone.
    if own.comp_mask & !1 != 0 {
        return fail(libc::EOPNOTSUPP, -1);
    }
    let pd = if own.comp_mask & 1 != 0 {
        own.pd
    } else {
        ptr::null_mut()
    };
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { rdma_create_qp(id, pd, init.cast()) }
}
