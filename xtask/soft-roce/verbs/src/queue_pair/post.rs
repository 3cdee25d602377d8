//! Posts.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;

use log::Level;
use soft_nic::{
    Data, DatagramAddress, Nic, ReceiveRequest, Refused, RemoteAddress, SendOpcode, SendRequest,
};

use super::QueuePair;
use super::elements::{element, elements, inline};
use crate::abi::request::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_recv_wr,
    ibv_send_wr,
};
use crate::address::AddressHandle;
use crate::errno::{Errno, refused};
use crate::later;
use crate::memory::window::binding;
use crate::network::{Card, Locked};
use crate::shared_receive::SharedReceives;

/// The operation of a request.
///
/// # Safety
///
/// The request is one that C's `ibv_post_send` takes.
unsafe fn opcode(wr: &ibv_send_wr) -> Result<SendOpcode, Errno> {
    // Parts that an opcode does not need may be uninitialized.
    let remote = || {
        // SAFETY: requests to write and to read have this part.
        let rdma = unsafe { wr.wr.rdma };
        RemoteAddress::new(rdma.remote_addr, rdma.rkey)
    };
    let atomic = || {
        // SAFETY: atomics have this part.
        let atomic = unsafe { wr.wr.atomic };
        let remote = RemoteAddress::new(atomic.remote_addr, atomic.rkey);
        (remote, atomic.compare_add, atomic.swap)
    };
    let key = || u32::from_ne_bytes(wr.imm_data);
    Ok(match wr.opcode {
        0 => SendOpcode::Write(remote()),
        1 => SendOpcode::WriteWithImmediate(remote(), wr.imm_data),
        2 => SendOpcode::Send,
        3 => SendOpcode::SendWithImmediate(wr.imm_data),
        4 => SendOpcode::Read(remote()),
        5 => {
            let (remote, compare, swap) = atomic();
            SendOpcode::CompareSwap {
                remote,
                compare,
                swap,
            }
        }
        6 => {
            let (remote, add, _) = atomic();
            SendOpcode::FetchAdd { remote, add }
        }
        7 => SendOpcode::LocalInvalidate(key()),
        8 => {
            let bind = &wr.bind_mw;
            // SAFETY: a request to bind has a window that is alive.
            let window = unsafe { bind.mw.as_ref() }.ok_or(libc::EINVAL)?;
            SendOpcode::BindWindow(binding(window.rkey, bind.rkey, &bind.bind_info)?)
        }
        9 => SendOpcode::SendWithInvalidate(key()),
        other => {
            later::line(
                Level::Warn,
                format_args!("soft-verbs has no work request with opcode {other}"),
            );
            return Err(libc::EOPNOTSUPP);
        }
    })
}

/// Posts one request to a send queue.
///
/// # Safety
///
/// The request is one that C's `ibv_post_send` takes, for this queue pair.
unsafe fn post_one(
    locked: &mut Locked<'_>,
    own: &QueuePair,
    wr: &ibv_send_wr,
) -> Result<(), Errno> {
    locked.fault("ibv_post_send")?;
    // SAFETY: the caller has the request's elements.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let to = match own.is_datagram {
        true => {
            // SAFETY: a datagram's request has this part; any bytes are valid for its numbers.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: the caller has an address handle that is alive, or none.
            let handle = unsafe { ud.ah.cast::<AddressHandle>().as_ref() };
            Some(DatagramAddress {
                path: handle.ok_or(libc::EINVAL)?.path,
                queue_pair: ud.remote_qpn,
                qkey: ud.remote_qkey,
            })
        }
        false => None,
    };
    // SAFETY: the caller's request is one that C takes.
    let opcode = unsafe { opcode(wr) }?;
    let data = match wr.send_flags & IBV_SEND_INLINE {
        0 => Data::Elements(list.iter().map(element).collect()),
        _ => {
            let most = locked.nic.profile().max_inline_data;
            // SAFETY: the elements of an inline request name bytes that the caller has.
            Data::Inline(unsafe { inline(list, most) }?)
        }
    };
    let request = SendRequest {
        to,
        ..request(wr.wr_id, wr.send_flags, opcode, data)
    };
    let posted = locked.nic.post_send(own.number(), request);
    posted.map_err(refused)
}

/// A request with C's flags.
pub(crate) fn request(wr_id: u64, flags: u32, opcode: SendOpcode, data: Data) -> SendRequest {
    SendRequest {
        is_signaled: flags & IBV_SEND_SIGNALED != 0,
        is_solicited: flags & IBV_SEND_SOLICITED != 0,
        is_fenced: flags & IBV_SEND_FENCE != 0,
        ..SendRequest::new(wr_id, opcode, data)
    }
}

/// Posts a chain of requests, each by `post`.
///
/// # Safety
///
/// The chain is one that C's verbs take, and there is room for the request that fails.
unsafe fn post_all<T>(
    card: &Card,
    mut wr: *mut T,
    bad: *mut *mut T,
    next: impl Fn(&T) -> *mut T,
    post: impl Fn(&mut Locked<'_>, &T) -> Result<(), Errno>,
) -> c_int {
    card.call(|locked| {
        // SAFETY: the caller has a chain of requests.
        while let Some(request) = unsafe { wr.as_ref() } {
            if let Err(errno) = post(locked, request) {
                // SAFETY: the caller has room for the request that failed.
                unsafe { bad.write(wr) };
                return errno;
            }
            wr = next(request);
        }
        0
    })
}

pub(crate) unsafe extern "C" fn post_send(
    qp: &QueuePair,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller has requests that C takes for this queue pair.
    let post = |locked: &mut Locked<'_>, wr: &ibv_send_wr| unsafe { post_one(locked, qp, wr) };
    // SAFETY: the caller has a chain of requests, and room for the one that fails.
    unsafe { post_all(&qp.context().card, wr, bad, |wr| wr.next, post) }
}

/// Posts a chain of receives, each by `post`.
///
/// # Safety
///
/// The chain is one that C's `ibv_post_recv` takes, and there is room for the receive that fails.
unsafe fn post_receives(
    card: &Card,
    verb: &'static str,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&mut Nic, ReceiveRequest) -> Result<(), Refused>,
) -> c_int {
    let post_one = |locked: &mut Locked<'_>, wr: &ibv_recv_wr| {
        locked.fault(verb)?;
        // SAFETY: the caller has the request's elements.
        let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
        let request = ReceiveRequest {
            wr_id: wr.wr_id,
            elements: list.iter().map(element).collect(),
        };
        post(locked.nic, request).map_err(refused)
    };
    // SAFETY: the caller has a chain of receives, and room for the one that fails.
    unsafe { post_all(card, wr, bad, |wr| wr.next, post_one) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: &QueuePair,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let post = |nic: &mut Nic, request: ReceiveRequest| nic.post_receive(qp.number(), request);
    // SAFETY: the caller has a chain of receives, and room for the one that fails.
    unsafe { post_receives(&qp.context().card, "ibv_post_recv", wr, bad, post) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: &SharedReceives,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let post = |nic: &mut Nic, request: ReceiveRequest| nic.post_srq_receive(srq.id(), request);
    let card = &srq.queue.context.card;
    // SAFETY: the caller has a chain of receives, and room for the one that fails.
    unsafe { post_receives(card, "ibv_post_srq_recv", wr, bad, post) }
}
