//! Extended completion queues: their completions are read one field after the other.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::ptr;

use soft_nic::Completion;

use super::poll::{flags, immediate, opcode};
use super::{CompletionQueue, create};
use crate::abi::attributes::ibv_cq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::extended::{ibv_cq_ex, ibv_poll_cq_attr};
use crate::device::{Context, nanoseconds};
use crate::errno::fail;

/// `IBV_WC_STANDARD_FLAGS`: fields that can be asked for. There are no VLAN or flow tags.
const STANDARD_FIELDS: u64 = (1 << 7) - 1;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`, and `_WALLCLOCK`, which a profile may have, too.
const TIMESTAMP: u64 = 1 << 7;
const WALLCLOCK: u64 = 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
const SINGLE_THREADED: u32 = 1;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller has it.
    let init = unsafe { &*init };
    // SAFETY: the caller's context is open.
    let card = &unsafe { Context::of(context) }.card;
    let fields = match card.call(|locked| locked.nic.profile().completion_timestamps) {
        true => STANDARD_FIELDS | TIMESTAMP | WALLCLOCK,
        false => STANDARD_FIELDS,
    };
    let flags = match init.comp_mask & MASK_FLAGS {
        0 => 0,
        _ => init.flags,
    };
    if init.comp_mask & !MASK_FLAGS != 0
        || flags & !SINGLE_THREADED != 0
        || init.wc_flags & !fields != 0
    {
        return fail(libc::EOPNOTSUPP, ptr::null_mut());
    }
    // SAFETY: the promises of this function's caller are those of the other's.
    let made = unsafe { create("ibv_create_cq_ex", context, init) };
    // SAFETY: it is null, or was made a moment ago, and nobody else has it.
    if let Some(own) = unsafe { made.as_mut() } {
        let queue = &mut own.queue;
        queue.start_poll = Some(start_poll);
        queue.next_poll = Some(next_poll);
        queue.end_poll = Some(end_poll);
        queue.read_opcode = Some(read_opcode);
        queue.read_vendor_err = Some(read_zero);
        queue.read_byte_len = Some(read_byte_len);
        queue.read_imm_data = Some(read_imm_data);
        queue.read_qp_num = Some(read_qp_num);
        queue.read_src_qp = Some(read_src_qp);
        queue.read_wc_flags = Some(read_wc_flags);
        queue.read_slid = Some(read_zero);
        queue.read_sl = Some(read_zero_byte);
        queue.read_dlid_path_bits = Some(read_zero_byte);
        if init.wc_flags & TIMESTAMP != 0 {
            queue.read_completion_ts = Some(read_completion_ts);
        }
        if init.wc_flags & WALLCLOCK != 0 {
            queue.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        }
    }
    made.cast()
}

/// Takes the next completion; `ENOENT` if there is none.
///
/// # Safety
///
/// The queue is alive, and no other thread polls it.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's queue is alive.
    let (own, context) = unsafe { CompletionQueue::of(cq.cast()) };
    let id = own.id();
    let polled = context
        .card
        .verb("ibv_start_poll", |locked| Ok(locked.poll_cq(id)));
    match polled {
        Ok(Some(done)) => {
            // SAFETY: the queue is alive, and only the thread that polls uses this field.
            unsafe { (*cq).wr_id = done.wr_id };
            // SAFETY: the queue is alive, and only the thread that polls uses this field.
            unsafe { (*cq).status = done.status as u32 };
            // SAFETY: the queue is the beginning of a `CompletionQueue`, and only the thread that polls
            // uses this field.
            unsafe { (*cq.cast::<CompletionQueue>()).current = Some(done) };
            0
        }
        Ok(None) => {
            context.card.idle();
            libc::ENOENT
        }
        Err(errno) => errno,
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller has it.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller has a queue that is alive, and alone polls it.
    unsafe { advance(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller has a queue that is alive, and alone polls it.
    unsafe { advance(cq) }
}

const unsafe extern "C" fn end_poll(_: *mut ibv_cq_ex) {}

/// Reads something of the completion that the poll is at.
///
/// # Safety
///
/// The queue is alive, and no other thread polls it.
unsafe fn read<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Completion) -> T) -> T {
    // SAFETY: the queue is the beginning of a `CompletionQueue`, and only the thread that polls uses this field.
    let current = unsafe { &(*cq.cast::<CompletionQueue>()).current };
    current.as_ref().map(field).unwrap_or_default()
}

/// Verbs that read a field.
macro_rules! reads {
    ($($verb:ident => $field:expr;)*) => {
        $(unsafe extern "C" fn $verb(cq: *mut ibv_cq_ex) -> u32 {
            // SAFETY: the caller polls this queue.
            unsafe { read(cq, $field) }
        })*
    };
}

reads! {
    read_opcode => opcode;
    read_byte_len => |done| done.byte_len;
    read_imm_data => |done| u32::from_ne_bytes(immediate(done));
    read_qp_num => |done| done.queue_pair;
    read_src_qp => |done| done.source_queue_pair;
    read_wc_flags => flags;
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller polls the queue.
    unsafe { read(cq, |done| nanoseconds(done.at)) }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller has a queue that is alive.
    let (_, context) = unsafe { CompletionQueue::of(cq.cast()) };
    // SAFETY: the caller polls the queue.
    unsafe { read(cq, |done| nanoseconds(context.card.wall(done.at))) }
}

const unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u32 {
    0
}

const unsafe extern "C" fn read_zero_byte(_: *mut ibv_cq_ex) -> u8 {
    0
}
