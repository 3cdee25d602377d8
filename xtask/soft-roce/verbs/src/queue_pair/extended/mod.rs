//! Extended queue pairs: requests are made by calls, one for each part, and posted together (`ibv_wr_*`).
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod request;

use std::ffi::c_int;
use std::ptr;

use soft_nic::SendRequest;

use super::{QueuePair, create};
use crate::abi::attributes::{ibv_qp_init_attr, ibv_qp_init_attr_ex};
use crate::abi::context::{Open, Verb};
use crate::errno::{Errno, code, fail, refused};
use crate::lock::lock;

impl QueuePair {
    /// Changes the requests, unless one has failed already.
    fn batch(&self, change: impl FnOnce(&mut Vec<SendRequest>) -> Result<(), Errno>) {
        let mut batch = lock(&self.batch);
        if let Ok(requests) = &mut *batch
            && let Err(errno) = change(requests)
        {
            *batch = Err(errno);
        }
    }

    /// Changes the request that was begun last.
    fn last(&self, change: impl FnOnce(&mut SendRequest) -> Result<(), Errno>) {
        self.batch(|requests| change(requests.last_mut().ok_or(libc::EINVAL)?));
    }
}

/// `IBV_QP_EX_WITH_RDMA_WRITE` to `IBV_QP_EX_WITH_SEND_WITH_INV`: all but segmentation by the device and
/// atomic writes.
const OPERATIONS: u64 = (1 << 10) - 1;

pub(crate) unsafe extern "C" fn create_qp_ex(
    _: Open,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut QueuePair {
    const MASK_PD: u32 = 1;
    const MASK_CREATE_FLAGS: u32 = 1 << 2;
    const MASK_SEND_OPERATIONS: u32 = 1 << 6;
    // SAFETY: the caller has it.
    let given = unsafe { *init };
    let is_extended = given.comp_mask & MASK_SEND_OPERATIONS != 0;
    let has_flags = given.comp_mask & MASK_CREATE_FLAGS != 0 && given.create_flags != 0;
    if given.comp_mask & !(MASK_PD | MASK_CREATE_FLAGS | MASK_SEND_OPERATIONS) != 0
        || has_flags
        || is_extended && given.send_ops_flags & !OPERATIONS != 0
    {
        return fail(libc::EOPNOTSUPP, ptr::null_mut());
    }
    if given.comp_mask & MASK_PD == 0 {
        return fail(libc::EINVAL, ptr::null_mut());
    }
    // SAFETY: the flag says that the caller has a domain.
    let pd = unsafe { &*given.pd.cast() };
    // SAFETY: the caller has it, and the extended structure begins as the other one.
    let basic = unsafe { &mut *init.cast::<ibv_qp_init_attr>() };
    let made = create("ibv_create_qp_ex", pd, basic);
    // SAFETY: it is null, or was made a moment ago, and nobody else has it.
    if let Some(own) = unsafe { made.as_mut() }
        && is_extended
    {
        let qp = &mut own.queue_pair;
        macro_rules! verbs {
            ($($verb:ident)*) => { $(qp.$verb = request::$verb as Verb;)* };
        }
        verbs! {
            wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm
            wr_send wr_send_imm wr_send_inv wr_set_ud_addr wr_set_inline_data wr_set_inline_data_list wr_set_sge
            wr_set_sge_list
        }
        qp.wr_start = wr_start as Verb;
        qp.wr_complete = wr_complete as Verb;
        qp.wr_abort = wr_abort as Verb;
    }
    made
}

/// Other threads that begin wait until this one ends, as with drivers that lock.
unsafe extern "C" fn wr_start(qp: *mut QueuePair) {
    // SAFETY: the caller has a queue pair that is alive.
    let mutex = unsafe { &raw mut (*qp).queue_pair.qp_base.mutex };
    // SAFETY: the mutex is all zeros at first, as PTHREAD_MUTEX_INITIALIZER.
    unsafe { libc::pthread_mutex_lock(mutex) };
    // SAFETY: the caller has a queue pair that is alive.
    *lock(&unsafe { &*qp }.batch) = Ok(Vec::new());
}

/// Ends what `wr_start` began.
///
/// # Safety
///
/// The queue pair is alive, and this thread has called `wr_start`.
unsafe fn end(qp: *mut QueuePair) -> Result<Vec<SendRequest>, Errno> {
    // SAFETY: the caller has a queue pair that is alive.
    let requests = std::mem::replace(&mut *lock(&unsafe { &*qp }.batch), Ok(Vec::new()));
    // SAFETY: the caller has a queue pair that is alive.
    let mutex = unsafe { &raw mut (*qp).queue_pair.qp_base.mutex };
    // SAFETY: this thread has locked it in `wr_start`.
    unsafe { libc::pthread_mutex_unlock(mutex) };
    requests
}

/// Posts all requests, or none.
unsafe extern "C" fn wr_complete(qp: *mut QueuePair) -> c_int {
    // SAFETY: the caller has a queue pair that is alive.
    let own = unsafe { &*qp };
    let (number, context) = (own.number(), own.queue_pair.qp_base.context);
    // SAFETY: the caller has called `ibv_wr_start` on this thread.
    let requests = unsafe { end(qp) };
    code(context.card.verb("ibv_wr_complete", |locked| {
        let requests = requests?;
        for (ahead, request) in requests.iter().enumerate() {
            let checked = locked.nic.check_send(number, request, ahead);
            checked.map_err(refused)?;
        }
        for request in requests {
            let posted = locked.nic.post_send(number, request);
            posted.map_err(refused)?;
        }
        Ok(())
    }))
}

unsafe extern "C" fn wr_abort(qp: *mut QueuePair) {
    // SAFETY: the caller has a queue pair that is alive, and has called `ibv_wr_start` on this thread.
    drop(unsafe { end(qp) });
}
