//! librdmacm's functions that the kernel has no part in: queue pairs of identifiers, calls that wait, lists of addresses.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use soft_nic::{AttributeMask, QueuePairState};

use super::calls::{
    init_qp_attr, rdma_bind_addr, rdma_create_id, rdma_destroy_id, rdma_resolve_addr,
    rdma_resolve_route,
};
use super::events::EventKind;
use super::id::Id;
use super::lists::PASSIVE;
use super::manager::Space;
use super::taking::{next, rdma_ack_cm_event};
use crate::abi::attributes::{
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
};
use crate::abi::connection::{rdma_addrinfo, rdma_cm_event};
use crate::abi::context::Open;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::completion_queue::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::{Errno, answer, checked, fail, last, put};
use crate::event::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::shared_receive::{ibv_create_srq, ibv_destroy_srq};

/// Waits for the event of a call that was made, if the identifier has no channel of the program's.
pub(super) fn wait(id: &Id, made: Result<(), Errno>) -> Result<(), Errno> {
    made?;
    if !id.waits {
        return Ok(());
    }
    // SAFETY: the identifier has it until it gets the next.
    match unsafe { &*next_event(id)? } {
        rdma_cm_event { status: 0, .. } => Ok(()),
        event if event.event == EventKind::REJECTED.0 => Err(libc::ECONNREFUSED),
        event => Err(event.status.abs()),
    }
}

/// Waits for the next event of an identifier without a channel of the program's, which keeps it.
fn next_event(id: &Id) -> Result<*mut rdma_cm_event, Errno> {
    acknowledge(id);
    let event = next(id.channel())?;
    id.cm.event.set(event);
    Ok(event)
}

/// Acknowledges the event that the identifier keeps, if any.
pub(super) fn acknowledge(id: &Id) {
    let event = id.cm.event.replace(ptr::null_mut());
    if !event.is_null() {
        // SAFETY: the identifier had it from `next`, and not for longer.
        unsafe { rdma_ack_cm_event(event) };
    }
}

/// Changes the state of the identifier's queue pair, if it has one.
pub(super) fn modify(id: &Id, state: QueuePairState) -> Result<(), Errno> {
    // SAFETY: the queue pair of an identifier is alive, or null.
    let Some(qp) = (unsafe { id.qp() }) else {
        return Ok(());
    };
    let mut attr = ibv_qp_attr {
        qp_state: state as u32,
        ..ibv_qp_attr::default()
    };
    let mask = match state {
        QueuePairState::Err => AttributeMask::STATE.bits().cast_signed(),
        _ => init_qp_attr(id, &mut attr)?,
    };
    match ibv_modify_qp(qp, &attr, mask) {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Connects the identifier's queue pair, if it has one.
pub(super) fn to_rts(id: &Id) -> Result<(), Errno> {
    modify(id, QueuePairState::Rtr)?;
    modify(id, QueuePairState::Rts)
}

/// Makes a completion queue with a channel, for these places in the identifier.
fn queue(
    id: &Id,
    capacity: u32,
    of_channel: &Cell<*mut ibv_comp_channel>,
    of_queue: &Cell<*mut ibv_cq>,
) -> Result<*mut ibv_cq, Errno> {
    let context = Open(id.cm.verbs.get());
    let channel = ibv_create_comp_channel(context);
    if channel.is_null() {
        return Err(last());
    }
    of_channel.set(channel.cast());
    let capacity = c_int::try_from(capacity.max(1)).unwrap_or(c_int::MAX);
    let own = ptr::from_ref(id).cast_mut().cast();
    let cq = ibv_create_cq(context, capacity, own, channel.cast(), 0);
    of_queue.set(cq.cast());
    if cq.is_null() {
        return Err(last());
    }
    Ok(cq.cast())
}

fn create_qp(
    id: &Id,
    pd: Option<&ProtectionDomain>,
    init: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let cm = &id.cm;
    let pd = pd.map_or_else(|| cm.pd.get(), ProtectionDomain::as_ptr);
    // SAFETY: the domain of an identifier is alive.
    let domain = unsafe { pd.cast::<ProtectionDomain>().as_ref() };
    let domain = domain.filter(|of| of.pd.context == Open(cm.verbs.get()));
    let domain = domain.ok_or(libc::EINVAL)?;
    if !cm.qp.get().is_null() {
        return Err(libc::EINVAL);
    }
    let made = (|| {
        if init.recv_cq.is_null() {
            init.recv_cq = queue(id, init.cap.max_recv_wr, &cm.recv_cq_channel, &cm.recv_cq)?;
        }
        if init.send_cq.is_null() {
            init.send_cq = queue(id, init.cap.max_send_wr, &cm.send_cq_channel, &cm.send_cq)?;
        }
        if init.srq.is_null() {
            init.srq = cm.srq.get();
        }
        cm.qp.set(ibv_create_qp(domain, init).cast());
        if cm.qp.get().is_null() {
            return Err(last());
        }
        cm.pd.set(pd);
        modify(id, QueuePairState::Init)?;
        match init.qp_type == Space::Datagrams.qp_type() {
            true => to_rts(id),
            false => Ok(()),
        }
    })();
    if made.is_err() {
        // SAFETY: nobody has the queue pair.
        unsafe { rdma_destroy_qp(id) };
    }
    made
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_create_qp(
    id: &Id,
    pd: Option<&ProtectionDomain>,
    init: &mut ibv_qp_init_attr,
) -> c_int {
    answer(create_qp(id, pd, init))
}

/// Destroys the completion queues that the identifier has made, too.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_destroy_qp(id: &Id) {
    let cm = &id.cm;
    let qp = cm.qp.replace(ptr::null_mut());
    if !qp.is_null() {
        // SAFETY: the identifier has made it, and the caller does not use it again.
        unsafe { ibv_destroy_qp(qp.cast()) };
    }
    let queues = [
        (&cm.send_cq, &cm.send_cq_channel),
        (&cm.recv_cq, &cm.recv_cq_channel),
    ];
    for (cq, channel) in queues {
        let (cq, channel) = (
            cq.replace(ptr::null_mut()),
            channel.replace(ptr::null_mut()),
        );
        if !channel.is_null() {
            if !cq.is_null() {
                // SAFETY: `queue` made it, and the queue pair is gone.
                unsafe { ibv_destroy_cq(cq.cast()) };
            }
            // SAFETY: `queue` made it, and its only queue is gone.
            unsafe { ibv_destroy_comp_channel(channel.cast()) };
        }
    }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_create_srq(
    id: &Id,
    pd: Option<&ProtectionDomain>,
    init: &mut ibv_srq_init_attr,
) -> c_int {
    if let Some(pd) = pd {
        id.cm.pd.set(pd.as_ptr());
    }
    // SAFETY: the domain of an identifier is alive.
    let Some(pd) = (unsafe { id.cm.pd.get().cast::<ProtectionDomain>().as_ref() }) else {
        return fail(libc::EINVAL, -1);
    };
    id.cm.srq.set(ibv_create_srq(pd, init).cast());
    if id.cm.srq.get().is_null() { -1 } else { 0 }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_destroy_srq(id: &Id) {
    let srq = id.cm.srq.replace(ptr::null_mut());
    if !srq.is_null() {
        // SAFETY: the identifier has made it, and the caller does not use it again.
        unsafe { ibv_destroy_srq(srq.cast()) };
    }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_create_ep(
    id: &mut MaybeUninit<*mut Id>,
    info: &rdma_addrinfo,
    pd: Option<&ProtectionDomain>,
    init: Option<&mut ibv_qp_init_attr>,
) -> c_int {
    let space = u32::try_from(info.ai_port_space).unwrap_or(0);
    let mut made = MaybeUninit::uninit();
    if rdma_create_id(None, &mut made, ptr::null_mut(), space) != 0 {
        return -1;
    }
    // SAFETY: it was made a moment ago.
    let made = unsafe { made.assume_init() };
    // SAFETY: it was made a moment ago.
    let own = unsafe { &*made };
    let is_passive = info.ai_flags & PASSIVE != 0;
    let placed = if is_passive {
        // SAFETY: the caller has the address.
        checked(unsafe { rdma_bind_addr(own, info.ai_src_addr) })
    } else {
        // SAFETY: the caller has the addresses.
        checked(unsafe { rdma_resolve_addr(own, info.ai_src_addr, info.ai_dst_addr, 0) })
            .and_then(|()| checked(rdma_resolve_route(own, 0)))
    };
    let ready = placed.and_then(|()| {
        let Some(init) = init else { return Ok(()) };
        init.qp_type = info.ai_qp_type.cast_unsigned();
        if is_passive {
            let pd = pd.map_or(0, |pd| pd.as_ptr().expose_provenance());
            own.lock().for_requests = Some((pd, *init));
            return Ok(());
        }
        create_qp(own, pd, init)
    });
    if ready.is_err() {
        // SAFETY: nobody has it.
        unsafe { rdma_destroy_ep(made) };
    }
    answer(put(id, ready.map(|()| made)))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_destroy_ep(id: *mut Id) {
    // SAFETY: the caller's identifier is alive.
    let own = unsafe { &*id };
    // SAFETY: the caller does not use its queue pair again.
    unsafe { rdma_destroy_qp(own) };
    // SAFETY: the caller does not use its queue again.
    unsafe { rdma_destroy_srq(own) };
    // SAFETY: the caller does not use it again.
    unsafe { rdma_destroy_id(id) };
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_get_request(listen: &Id, id: &mut MaybeUninit<*mut Id>) -> c_int {
    answer(put(id, get_request(listen)))
}

fn get_request(listen: &Id) -> Result<*mut Id, Errno> {
    if !listen.waits {
        return Err(libc::EINVAL);
    }
    let event = next_event(listen)?;
    // SAFETY: the listener has it.
    let &rdma_cm_event {
        event: kind, id, ..
    } = unsafe { &*event };
    if kind != EventKind::CONNECT_REQUEST.0 {
        return Err(libc::EINVAL);
    }
    let asks = id.cast::<Id>();
    // SAFETY: the identifier of a request is new.
    let own = unsafe { &*asks };
    let for_requests = listen.lock().for_requests;
    if let Some((pd, mut init)) = for_requests {
        // SAFETY: the domain is alive, or none, as the program has promised.
        let pd = unsafe { ptr::with_exposed_provenance::<ProtectionDomain>(pd).as_ref() };
        if let Err(errno) = create_qp(own, pd, &mut init) {
            // SAFETY: nobody has it; its event is the listener's.
            unsafe { rdma_destroy_ep(asks) };
            return Err(errno);
        }
    }
    own.cm.event.set(event);
    listen.cm.event.set(ptr::null_mut());
    Ok(asks)
}

/// No descriptor is a socket of librdmacm's: there are none.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rpoll(polled: *mut libc::pollfd, count: libc::nfds_t, wait: c_int) -> c_int {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { libc::poll(polled, count, wait) }
}

/// A queue pair by the extended structure, whose beginning is the plain one.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_create_qp_ex(id: &Id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the caller has it.
    let ibv_qp_init_attr_ex { comp_mask, pd, .. } = unsafe { *init };
    let pd = match comp_mask {
        0 => None,
        // SAFETY: the caller has a domain that is alive, or none.
        1 => unsafe { pd.cast::<ProtectionDomain>().as_ref() },
        // More than the domain.
        _ => return fail(libc::EOPNOTSUPP, -1),
    };
    // SAFETY: the caller has it.
    rdma_create_qp(id, pd, unsafe { &mut *init.cast() })
}
