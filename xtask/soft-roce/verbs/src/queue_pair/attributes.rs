//! Changes and queries of queue pairs.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use soft_nic::{Access, AttributeMask, QueuePairAttributes, QueuePairState};

use super::{QueuePair, cap};
use crate::abi::attributes::{ibv_qp_attr, ibv_qp_init_attr};
use crate::address::{ah_attr, path};
use crate::device::mtu;
use crate::errno::{Errno, code, refused};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_modify_qp(qp: &QueuePair, attr: &ibv_qp_attr, mask: c_int) -> c_int {
    let result = qp.context().card.verb("ibv_modify_qp", |locked| {
        let mask = AttributeMask::from_bits(mask.cast_unsigned()).ok_or(libc::EINVAL)?;
        let attributes = attributes(attr, mask)?;
        let modified = locked.nic.modify_qp(qp.number(), &attributes, mask);
        modified.map_err(refused)?;
        Ok(mask)
    });
    code(result.map(|mask| {
        if mask.contains(AttributeMask::STATE) {
            let state = &qp.queue_pair.qp_base.state;
            state.store(attr.qp_state, Ordering::Relaxed);
        }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp(
    qp: &QueuePair,
    attr: &mut MaybeUninit<ibv_qp_attr>,
    _mask: c_int,
    init: &mut MaybeUninit<ibv_qp_init_attr>,
) -> c_int {
    let found = qp.context().card.verb("ibv_query_qp", |locked| {
        let attributes = locked.nic.query_qp(qp.number()).ok_or(libc::EINVAL)?;
        let options = *locked.nic.qp_options(qp.number()).ok_or(libc::EINVAL)?;
        Ok((attributes, options))
    });
    code(found.map(|(attributes, options)| {
        let base = &qp.queue_pair.qp_base;
        init.write(ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: cap(&options),
            qp_type: base.qp_type,
            sq_sig_all: c_int::from(options.all_signaled),
        });
        let answer = attr.write(ibv_qp_attr {
            cap: cap(&options),
            ..qp_attr(&attributes)
        });
        base.state.store(answer.qp_state, Ordering::Relaxed);
    }))
}

/// In the order of C's numbers.
const STATES: [QueuePairState; 7] = {
    use QueuePairState as S;
    [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err]
};

/// The card's form of C's attributes. Those that the mask leaves out may be anything in C.
fn attributes(attr: &ibv_qp_attr, mask: AttributeMask) -> Result<QueuePairAttributes, Errno> {
    let named = |flag, number: u32| match mask.contains(flag) {
        true => STATES.get(number as usize).copied().ok_or(libc::EINVAL),
        false => Ok(QueuePairState::Reset),
    };
    let access = match mask.contains(AttributeMask::ACCESS_FLAGS) {
        true => Access::from_bits(attr.qp_access_flags).ok_or(libc::EINVAL)?,
        false => Access::empty(),
    };
    let path = match path(&attr.ah_attr) {
        Err(errno) if mask.contains(AttributeMask::AV) => return Err(errno),
        path => path.unwrap_or_else(|_| QueuePairAttributes::default().path),
    };
    Ok(QueuePairAttributes {
        state: named(AttributeMask::STATE, attr.qp_state)?,
        current_state: named(AttributeMask::CUR_STATE, attr.cur_qp_state)?,
        access,
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        qkey: attr.qkey,
        path,
        path_mtu: 128_u32.checked_shl(attr.path_mtu).unwrap_or(0),
        dest_qp_num: attr.dest_qp_num,
        rq_psn: attr.rq_psn & PSN,
        sq_psn: attr.sq_psn & PSN,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        max_rd_atomic: attr.max_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        is_draining: false,
    })
}

/// The bits of a PSN.
const PSN: u32 = 0xff_ffff;

/// C's form of all attributes except the capacities.
pub(crate) fn qp_attr(from: &QueuePairAttributes) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: from.state as u32,
        cur_qp_state: from.current_state as u32,
        path_mtu: mtu(from.path_mtu),
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.access.bits(),
        ah_attr: ah_attr(&from.path),
        alt_ah_attr: ah_attr(&from.path),
        pkey_index: from.pkey_index,
        sq_draining: u8::from(from.is_draining),
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        ..ibv_qp_attr::default()
    }
}
