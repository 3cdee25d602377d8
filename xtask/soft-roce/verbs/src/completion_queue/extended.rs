//! Extended completion queues: their completions are read one field after the other.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::ptr;

use soft_nic::Completion;

use super::poll::{flags, immediate};
use super::{CompletionQueue, create};
use crate::abi::attributes::ibv_cq_init_attr_ex;
use crate::abi::context::{Open, Verb};
use crate::abi::extended::ibv_poll_cq_attr;
use crate::device::nanoseconds;
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

pub(crate) extern "C" fn create_cq_ex(
    context: Open,
    init: &ibv_cq_init_attr_ex,
) -> *mut CompletionQueue {
    let card = &context.card;
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
    let made = create("ibv_create_cq_ex", context, init);
    // SAFETY: it is null, or was made a moment ago, and nobody else has it.
    if let Some(own) = unsafe { made.as_mut() } {
        let queue = &mut own.queue;
        macro_rules! verbs {
            ($($verb:ident)*) => { $(queue.$verb = $verb as Verb;)* };
        }
        verbs! {
            start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp
            read_wc_flags read_slid read_sl read_dlid_path_bits
        }
        if init.wc_flags & TIMESTAMP != 0 {
            queue.read_completion_ts = read_completion_ts as Verb;
        }
        if init.wc_flags & WALLCLOCK != 0 {
            queue.read_completion_wallclock_ns = read_completion_wallclock_ns as Verb;
        }
    }
    made
}

/// Takes the next completion; `ENOENT` if there is none.
extern "C" fn next_poll(cq: &CompletionQueue) -> c_int {
    let (id, card) = (cq.id(), &cq.context().card);
    match card.verb("ibv_start_poll", |locked| Ok(locked.poll_cq(id))) {
        Ok(Some(done)) => {
            cq.queue.wr_id.set(done.wr_id);
            cq.queue.status.set(done.status as u32);
            cq.current.set(Some(done));
            0
        }
        Ok(None) => {
            card.idle();
            libc::ENOENT
        }
        Err(errno) => errno,
    }
}

extern "C" fn start_poll(cq: &CompletionQueue, attr: &ibv_poll_cq_attr) -> c_int {
    match attr.comp_mask {
        0 => next_poll(cq),
        _ => libc::EINVAL,
    }
}

const extern "C" fn end_poll(_: &CompletionQueue) {}

impl CompletionQueue {
    /// Reads something of the completion that the poll is at.
    fn read<T: Default>(&self, field: impl FnOnce(&Completion) -> T) -> T {
        self.current.get().as_ref().map(field).unwrap_or_default()
    }
}

/// Verbs that read a field.
macro_rules! reads {
    ($($verb:ident: $type:ty = $field:expr;)*) => {
        $(extern "C" fn $verb(cq: &CompletionQueue) -> $type {
            cq.read($field)
        })*
    };
}

reads! {
    read_opcode: u32 = |done| done.opcode as u32;
    read_vendor_err: u32 = |_| 0;
    read_byte_len: u32 = |done| done.byte_len;
    read_imm_data: u32 = |done| u32::from_ne_bytes(immediate(done));
    read_qp_num: u32 = |done| done.queue_pair;
    read_src_qp: u32 = |done| done.source_queue_pair;
    read_wc_flags: u32 = flags;
    read_slid: u32 = |_| 0;
    read_sl: u8 = |_| 0;
    read_dlid_path_bits: u8 = |_| 0;
    read_completion_ts: u64 = |done| nanoseconds(done.at);
}

extern "C" fn read_completion_wallclock_ns(cq: &CompletionQueue) -> u64 {
    cq.read(|done| nanoseconds(cq.context().card.wall(done.at)))
}
