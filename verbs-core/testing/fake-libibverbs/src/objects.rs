//! The verbs that make, change and end objects.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;
use std::thread;
use std::time::Instant;

use verbs_core::verbs_sys::{
    IBV_QP_CAP, IBV_QP_STATE, IBV_QPS_RESET, IBV_QPT_UD, ibv_advise_mr_advice, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wr_opcode,
    verbs_context,
};

use super::data::{poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq};
use super::queries::{answer, fail, query_port};
use super::thread_domains::{alloc_parent_domain, alloc_td, dealloc_td};
use super::threads::{A_MOMENT, adopt};
use super::{Advice, Library, before, with};

pub(super) fn made<T>(
    verb: &'static str,
    parents: &[usize],
    make: impl FnOnce(&mut Library) -> Result<T, c_int>,
) -> *mut T {
    let made = with(|library| {
        library.called(verb)?;
        let object = Box::into_raw(Box::new(make(library)?));
        library.born(verb, object, parents);
        Ok(object)
    });
    made.unwrap_or_else(|errno| fail(errno, ptr::null_mut()))
}

/// Ends an object, and frees it if that was right.
unsafe fn ended<T>(verb: &'static str, object: *mut T) -> Result<(), c_int> {
    with(|library| library.ends(verb, object))?;
    // SAFETY: the object was alive, and `made` made it.
    drop(unsafe { Box::from_raw(object) });
    Ok(())
}

pub(super) unsafe fn end<T>(verb: &'static str, object: *mut T) -> c_int {
    // SAFETY: the caller promises that `made` made the object.
    unsafe { ended(verb, object) }.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    before("ibv_open_device", None);
    let vctx = made("ibv_open_device", &[], |library| {
        let mut vctx = verbs_context {
            sz: size_of::<verbs_context>(),
            query_port: Some(query_port),
            advise_mr: Some(advise_mr),
            alloc_td: Some(alloc_td),
            dealloc_td: Some(dealloc_td),
            alloc_parent_domain: Some(alloc_parent_domain),
            ..Default::default()
        };
        let context = &mut vctx.context;
        context.device = device;
        context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        context.num_comp_vectors = 3;
        context.async_fd = library.eventfd();
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
        context.ops.post_srq_recv = Some(post_srq_recv);
        context.ops.poll_cq = Some(poll_cq);
        context.ops.req_notify_cq = Some(req_notify_cq);
        Ok(vctx)
    });
    if vctx.is_null() {
        return ptr::null_mut();
    }
    vctx.wrapping_byte_add(offset_of!(verbs_context, context))
        .cast()
}

/// Objects name the context they belong to; what is alive is the `verbs_context` around it.
pub(super) fn outer(context: *mut ibv_context) -> *mut verbs_context {
    context
        .wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller has it from `ibv_open_device`.
    let fd = unsafe { (*context).async_fd };
    // SAFETY: the caller has the context from `ibv_open_device`.
    match unsafe { ended("ibv_close_device", outer(context)) } {
        Ok(()) => {
            with(|library| library.close(fd));
            0
        }
        Err(errno) => fail(errno, -1),
    }
}

/// As with a driver that does not support it.
#[unsafe(no_mangle)]
const extern "C" fn ibv_resize_cq(_cq: *mut ibv_cq, _cqe: c_int) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    made("ibv_alloc_pd", &[outer(context).addr()], |_| {
        Ok(ibv_pd { context, handle: 0 })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller has it from `ibv_alloc_pd`.
    unsafe { end("ibv_dealloc_pd", pd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _iova: u64,
    _access: c_uint,
) -> *mut ibv_mr {
    before("ibv_reg_mr", None);
    let mr = made("ibv_reg_mr", &[pd.addr()], |library| {
        let (lkey, rkey) = (library.number(), library.number());
        Ok(ibv_mr {
            // SAFETY: the caller has it from `ibv_alloc_pd`.
            context: unsafe { (*pd).context },
            addr,
            length,
            lkey,
            rkey,
            ..Default::default()
        })
    });
    if !mr.is_null() {
        with(|library| library.registered(mr));
    }
    mr
}

unsafe extern "C" fn advise_mr(
    _: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    answer(|library| {
        library.called("ibv_advise_mr")?;
        let count = usize::try_from(count).unwrap();
        // SAFETY: the caller has that many elements.
        let element = |index| unsafe { *list.add(index) };
        let elements = (0..count).map(element);
        library.advised.push(Advice {
            advice: (advice.0, flags),
            list: elements
                .map(|sge| (sge.addr, sge.length, sge.lkey))
                .collect(),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _: *mut ibv_qp,
    _opcode: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    with(|library| library.data_in_order.map_or(0, |answer| answer(flags)))
}

/// The device's memory is nowhere in this program: its bytes are left alone.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    made("ibv_reg_dmabuf_mr", &[pd.addr()], |library| {
        let (lkey, rkey) = (library.number(), library.number());
        Ok(ibv_mr {
            // SAFETY: the caller has a living PD.
            context: unsafe { (*pd).context },
            // As the real one does it.
            addr: ptr::without_provenance_mut(usize::try_from(offset).unwrap()),
            length,
            lkey,
            rkey,
            ..Default::default()
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller has it from `ibv_reg_mr`.
    let code = unsafe { end("ibv_dereg_mr", mr) };
    if code == 0 {
        with(|library| library.deregistered(mr));
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let parents = [outer(context).addr()];
    made("ibv_create_comp_channel", &parents, |library| {
        Ok(ibv_comp_channel {
            context,
            fd: library.eventfd(),
            refcnt: 0,
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller has it from `ibv_create_comp_channel`.
    let fd = unsafe { (*channel).fd };
    // SAFETY: the caller has the channel from `ibv_create_comp_channel`.
    let code = unsafe { end("ibv_destroy_comp_channel", channel) };
    if code == 0 {
        with(|library| library.close(fd));
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _comp_vector: c_int,
) -> *mut ibv_cq {
    let parents = [outer(context).addr(), channel.addr()];
    let parents = if channel.is_null() {
        &parents[..1]
    } else {
        &parents[..]
    };
    let cq = made("ibv_create_cq", parents, |library| {
        Ok(ibv_cq {
            context,
            channel,
            cq_context,
            handle: library.number(),
            // As hns does: the index of the last entry.
            cqe: (cqe.cast_unsigned().next_power_of_two() - 1).cast_signed(),
            ..Default::default()
        })
    });
    with(|library| library.counts.push((cq, 0, 0)));
    cq
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    if let Err(errno) = with(|library| library.ends("ibv_destroy_cq", cq)) {
        return errno;
    }
    with(|library| library.cq_events.retain(|(_, of)| *of != cq));
    // The real one waits forever.
    let (start, settles) = (Instant::now(), |library: &mut Library| library.settles(cq));
    while !with(settles) && start.elapsed() < A_MOMENT {
        thread::yield_now();
    }
    with(|library| {
        for (_, taken, acked) in library.counts.extract_if(.., |(of, ..)| *of == cq) {
            if taken != acked {
                let wrong = format!("ibv_destroy_cq with {taken} events taken, {acked} acked");
                library.wrong.push(wrong);
            }
        }
    });
    // SAFETY: the caller has it from `ibv_create_cq`, and it has ended.
    drop(unsafe { Box::from_raw(cq) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's struct.
    let init = unsafe { &mut *init };
    let mut parents = vec![pd.addr(), init.send_cq.addr(), init.recv_cq.addr()];
    if !init.srq.is_null() {
        parents.push(init.srq.addr());
    }
    // SAFETY: the caller has it from `ibv_alloc_pd`.
    let context = unsafe { (*pd).context };
    let qp = made("ibv_create_qp", &parents, |library| {
        if init.cap.max_inline_data > 512 {
            return Err(libc::EINVAL);
        }
        init.cap.max_send_wr += 1;
        init.cap.max_recv_wr += 2;
        let given = library.qp_nums.pop_front();
        Ok(ibv_qp {
            context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            qp_num: given.unwrap_or_else(|| library.number()),
            state: IBV_QPS_RESET,
            qp_type: init.qp_type,
            ..Default::default()
        })
    });
    if !qp.is_null() {
        let is_datagram = init.qp_type == IBV_QPT_UD;
        with(|library| library.granted(qp, init.cap, is_datagram));
    }
    qp
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    adopt(qp);
    // SAFETY: the caller's struct.
    let attr = unsafe { *attr };
    let mask = mask.cast_unsigned();
    before(
        "ibv_modify_qp",
        (mask & IBV_QP_STATE.0 != 0).then_some(attr.qp_state),
    );
    answer(|library| {
        library.modified.push((attr, mask));
        library.called("ibv_modify_qp")?;
        if mask & IBV_QP_STATE.0 == 0 {
            return Ok(());
        }
        if let Some((state, errno)) = library.closed_state
            && attr.qp_state.0 == state
        {
            return Err(errno);
        }
        library.shares(qp, &attr, mask)?;
        library.changed(qp, &attr, mask);
        // SAFETY: the caller has it from `ibv_create_qp`.
        unsafe { (*qp).state = attr.qp_state };
        if attr.qp_state == IBV_QPS_RESET {
            library.forgotten(qp);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    answer(|library| {
        library.called("ibv_query_qp")?;
        let everything = IBV_QP_STATE.0 | IBV_QP_CAP.0;
        if mask.cast_unsigned() & everything != everything {
            library
                .wrong
                .push(format!("ibv_query_qp asks for {mask:#x} only"));
        }
        // SAFETY: the caller has room for both, and the queue pair from `ibv_create_qp`.
        unsafe {
            *attr = ibv_qp_attr::default();
            (*attr).qp_state = library.qp_state.unwrap_or((*qp).state);
            (*attr).cap = ibv_qp_cap::default();
            *init = ibv_qp_init_attr::default();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    adopt(qp);
    before("ibv_destroy_qp", None);
    // SAFETY: the caller has it from `ibv_create_qp`.
    let number = unsafe { (*qp).qp_num };
    if with(|library| library.attached.iter().any(|(of, ..)| *of == number)) {
        return libc::EBUSY;
    }
    // SAFETY: the caller has it from `ibv_create_qp`.
    let code = unsafe { end("ibv_destroy_qp", qp) };
    if code == 0 {
        with(|library| {
            library.forgotten(qp);
            library.revoked(qp);
            if library.cleans_queues {
                library.done.retain(|done| done.qp_num != number);
            }
        });
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller's struct.
    let init = unsafe { &mut *init };
    // SAFETY: the caller has it from `ibv_alloc_pd`.
    let context = unsafe { (*pd).context };
    let srq = made("ibv_create_srq", &[pd.addr()], |library| {
        init.attr.max_wr += 2;
        Ok(ibv_srq {
            context,
            pd,
            handle: library.number(),
            ..Default::default()
        })
    });
    if !srq.is_null() {
        with(|library| library.granted_shared(srq, init.attr));
    }
    srq
}

/// It grants more than it was asked for, as rxe does.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    answer(|library| {
        library.called("ibv_query_srq")?;
        let (max_wr, max_sge) = library.shared_cap(srq);
        let granted = ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit: 0,
        };
        // SAFETY: the caller has room for it.
        unsafe { *attr = granted };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller has it from `ibv_create_srq`.
    let code = unsafe { end("ibv_destroy_srq", srq) };
    if code == 0 {
        with(|library| {
            library.forgotten(srq);
            library.revoked(srq);
        });
    }
    code
}
