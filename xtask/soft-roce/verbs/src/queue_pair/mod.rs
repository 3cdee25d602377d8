//! Queue pairs.
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod attributes;
mod elements;
mod extended;
pub(crate) mod post;

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex};

use soft_nic::{QueuePairOptions, SendRequest, Transport};

use crate::abi::attributes::{ibv_qp_cap, ibv_qp_init_attr};
use crate::abi::extended::ibv_qp_ex;
use crate::abi::object::{ibv_cq, ibv_qp};
use crate::completion_queue::CompletionQueue;
use crate::device::{Context, destroy};
use crate::errno::{Errno, refused};
use crate::event::Unacknowledged;
use crate::network::Locked;
use crate::protection_domain::ProtectionDomain;
use crate::shared_receive::SharedReceives;
pub(crate) use attributes::{ibv_modify_qp, qp_attr};
pub(crate) use extended::create_qp_ex;

#[repr(C)]
pub(crate) struct QueuePair {
    queue_pair: ibv_qp_ex,
    pub(crate) asynchronous_events: Arc<Unacknowledged>,
    is_datagram: bool,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`, or the first error.
    batch: Mutex<Result<Vec<SendRequest>, Errno>>,
}

impl QueuePair {
    pub(crate) fn context(&self) -> &Context {
        &self.queue_pair.qp_base.context
    }

    pub(crate) const fn number(&self) -> u32 {
        self.queue_pair.qp_base.qp_num
    }
}

/// The transport service of C's number (`ibv_qp_type`).
pub(crate) const fn transport(qp_type: u32) -> Option<Transport> {
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

/// The card's form of C's attributes, whose queues are alive, unless they are null.
fn options(pd: &ProtectionDomain, init: &ibv_qp_init_attr) -> Result<QueuePairOptions, Errno> {
    let transport = transport(init.qp_type).ok_or(libc::EOPNOTSUPP)?;
    let queue = |cq: *mut ibv_cq| {
        // SAFETY: the caller's queue is alive, or null.
        let queue = unsafe { cq.cast::<CompletionQueue>().as_ref() };
        queue.map(CompletionQueue::id).ok_or(libc::EINVAL)
    };
    let send_cq = queue(init.send_cq)?;
    // SAFETY: the caller's queue is alive, or null.
    let shared_receives = unsafe { init.srq.cast::<SharedReceives>().as_ref() };
    Ok(QueuePairOptions {
        recv_cq: queue(init.recv_cq)?,
        shared_receives: shared_receives.map(SharedReceives::id),
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_send_sge: init.cap.max_send_sge,
        max_recv_sge: init.cap.max_recv_sge,
        max_inline_data: init.cap.max_inline_data,
        all_signaled: init.sq_sig_all != 0,
        ..QueuePairOptions::new(transport, pd.id(), send_cq)
    })
}

/// Makes a queue pair, and sets the capacities to those that it has; null, with errno, if that is refused.
fn create(
    verb: &'static str,
    pd: &ProtectionDomain,
    init: &mut ibv_qp_init_attr,
) -> *mut QueuePair {
    let context = pd.pd.context;
    context.place(verb, |locked| {
        let created = locked.nic.create_qp(&options(pd, init)?);
        let number = created.map_err(refused)?;
        let options = *locked.nic.qp_options(number).ok_or(libc::EINVAL)?;
        init.cap = cap(&options);
        let qp_base = ibv_qp {
            context,
            qp_context: init.qp_context,
            pd: pd.as_ptr(),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: number,
            qp_num: number,
            qp_type: init.qp_type,
            ..ibv_qp::default()
        };
        let events = Arc::<Unacknowledged>::default();
        let own = Box::into_raw(Box::new(QueuePair {
            queue_pair: ibv_qp_ex {
                qp_base,
                ..ibv_qp_ex::default()
            },
            asynchronous_events: Arc::clone(&events),
            is_datagram: options.transport == Transport::Ud,
            batch: Mutex::new(Ok(Vec::new())),
        }));
        let sink = context.sink(own, events);
        locked.events.queue_pairs.insert(number, sink);
        Ok(own)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_qp(
    pd: &ProtectionDomain,
    init: &mut ibv_qp_init_attr,
) -> *mut QueuePair {
    create("ibv_create_qp", pd, init)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut QueuePair) -> c_int {
    let end = |locked: &mut Locked<'_>, own: &QueuePair| {
        locked.nic.destroy_qp(own.number()).map_err(refused)?;
        Ok(locked.events.queue_pairs.remove(&own.number()))
    };
    // SAFETY: `create` made it, and the caller does not use it again.
    unsafe { destroy("ibv_destroy_qp", qp, end) }
}

/// There is no extended form of a queue pair that was not made so.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut QueuePair) -> *mut QueuePair {
    // SAFETY: the caller has a queue pair that is alive.
    match unsafe { (*qp).queue_pair.wr_start.is_null() } {
        true => ptr::null_mut(),
        false => qp,
    }
}

/// No order is promised.
#[unsafe(no_mangle)]
const extern "C" fn ibv_query_qp_data_in_order(_: &QueuePair, _opcode: u32, _flags: u32) -> c_int {
    0
}
