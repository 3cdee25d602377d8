//! Queue pairs.
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod attributes;
mod elements;
mod extended;
pub(crate) mod post;

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::Arc;

use soft_nic::{QueuePairOptions, Transport};

use crate::abi::attributes::{ibv_qp_cap, ibv_qp_init_attr};
use crate::abi::extended::ibv_qp_ex;
use crate::abi::object::{ibv_pd, ibv_qp};
use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::errno::{Errno, refused};
use crate::event::Unacknowledged;
use crate::protection_domain::ProtectionDomain;
use crate::shared_receive::SharedReceives;
pub(crate) use attributes::{ibv_modify_qp, qp_attr};
use extended::Batch;
pub(crate) use extended::create_qp_ex;

#[repr(C)]
pub(crate) struct QueuePair {
    queue_pair: ibv_qp_ex,
    pub(crate) asynchronous_events: Arc<Unacknowledged>,
    is_datagram: bool,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    batch: Batch,
}

impl QueuePair {
    /// The queue pair that a program has as C's, and its context.
    ///
    /// # Safety
    ///
    /// It came from `ibv_create_qp` or `ibv_create_qp_ex`, and is alive.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> (&'a Self, &'a Context) {
        // SAFETY: the caller's queue pair is the beginning of a `QueuePair`.
        let own = unsafe { &*qp.cast::<Self>() };
        // SAFETY: the context is open as long as the queue pair is alive.
        (own, unsafe { Context::of(own.queue_pair.qp_base.context) })
    }

    pub(crate) const fn number(&self) -> u32 {
        self.queue_pair.qp_base.qp_num
    }
}

/// The transport service of C's number (`ibv_qp_type`).
const fn transport(qp_type: u32) -> Option<Transport> {
    match qp_type {
        2 => Some(Transport::Rc),
        3 => Some(Transport::Uc),
        4 => Some(Transport::Ud),
        _ => None,
    }
}

const fn cap(options: &QueuePairOptions) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: options.max_send_wr,
        max_recv_wr: options.max_recv_wr,
        max_send_sge: options.max_send_sge,
        max_recv_sge: options.max_recv_sge,
        max_inline_data: options.max_inline_data,
    }
}

/// The card's form of C's attributes.
///
/// # Safety
///
/// The domain is alive, and the queues are, unless they are null.
unsafe fn options(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<QueuePairOptions, Errno> {
    let transport = transport(init.qp_type).ok_or(libc::EOPNOTSUPP)?;
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's domain is alive.
    let domain = unsafe { ProtectionDomain::of(pd) }.0.id();
    // SAFETY: the caller's queue is alive, and not null.
    let send_cq = unsafe { CompletionQueue::of(init.send_cq) }.0.id();
    // SAFETY: the caller's queue is alive, and not null.
    let recv_cq = unsafe { CompletionQueue::of(init.recv_cq) }.0.id();
    let shared_receives = match init.srq.is_null() {
        true => None,
        // SAFETY: the caller's queue is alive, and not null.
        false => Some(unsafe { SharedReceives::of(init.srq) }.0.id()),
    };
    Ok(QueuePairOptions {
        send_cq,
        recv_cq,
        shared_receives,
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_send_sge: init.cap.max_send_sge,
        max_recv_sge: init.cap.max_recv_sge,
        max_inline_data: init.cap.max_inline_data,
        all_signaled: init.sq_sig_all != 0,
        ..QueuePairOptions::new(transport, domain, send_cq)
    })
}

/// Makes a queue pair, and sets the capacities to those that it has; null, with errno, if that is refused.
///
/// # Safety
///
/// The domain is alive, and the queues are, unless they are null.
unsafe fn create(
    verb: &'static str,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> *mut QueuePair {
    // SAFETY: the caller's domain is alive.
    let (domain, context) = unsafe { ProtectionDomain::of(pd) };
    // SAFETY: the caller's domain is alive, and so are its queues.
    let created = unsafe { options(pd, init) }.and_then(|options| {
        context.card.verb(verb, |locked| {
            let number = locked.nic.create_qp(&options).map_err(refused)?;
            let options = locked.nic.qp_options(number).copied().unwrap_or(options);
            Ok((number, options))
        })
    });
    // SAFETY: zeros are valid for numbers, pointers, functions that may be missing, a mutex, and a condition.
    let mut queue_pair: ibv_qp_ex = unsafe { zeroed() };
    let made = context.made(created.map(|(number, options)| {
        init.cap = cap(&options);
        let base = &mut queue_pair.qp_base;
        base.context = domain.c_context();
        base.qp_context = init.qp_context;
        base.pd = pd;
        base.send_cq = init.send_cq;
        base.recv_cq = init.recv_cq;
        base.srq = init.srq;
        base.handle = number;
        base.qp_num = number;
        base.qp_type = init.qp_type;
        QueuePair {
            queue_pair,
            asynchronous_events: Arc::default(),
            is_datagram: options.transport == Transport::Ud,
            batch: Batch::default(),
        }
    }));
    // SAFETY: it is null, or was made a moment ago.
    if let Some(own) = unsafe { made.as_ref() } {
        let sink = context.sink(made, &own.asynchronous_events);
        context.card.call(|locked| {
            locked.events.queue_pairs.insert(own.number(), sink);
        });
    }
    made
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller has it.
    let init = unsafe { &mut *init };
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { create("ibv_create_qp", pd, init) }.cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller has a queue pair that is alive.
    let (own, context) = unsafe { QueuePair::of(qp) };
    let result = context.card.verb("ibv_destroy_qp", |locked| {
        locked.nic.destroy_qp(own.number()).map_err(refused)?;
        Ok(locked.events.queue_pairs.remove(&own.number()))
    });
    // SAFETY: `create` made it, and the caller does not use it again.
    unsafe { context.closed(qp.cast::<QueuePair>(), result) }
}

/// There is no extended form of a queue pair that was not made so.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller has a queue pair that is alive.
    let (own, _) = unsafe { QueuePair::of(qp) };
    match own.queue_pair.wr_start {
        Some(_) => qp.cast(),
        None => ptr::null_mut(),
    }
}

/// No order is promised.
#[unsafe(no_mangle)]
const extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _opcode: u32, _flags: u32) -> c_int {
    0
}
