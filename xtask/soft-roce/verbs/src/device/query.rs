//! Queries of a device: limits, capabilities, the time.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use soft_nic::Profile;

use crate::abi::attributes::{ibv_device_attr, ibv_device_attr_ex};
use crate::abi::context::{Open, ibv_query_device_ex_input, ibv_values_ex};
use crate::errno::{Errno, code, put};

/// `IBV_DEVICE_CURR_QP_STATE_MOD`, `_SYS_IMAGE_GUID`, `_RC_RNR_NAK_GEN`, `_SRQ_RESIZE`, `_MEM_WINDOW`,
/// `_MEM_MGT_EXTENSIONS` and `_MEM_WINDOW_TYPE_2B`.
const CAPABILITIES: u32 = 1 << 7 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 21 | 1 << 24;

/// `IBV_ATOMIC_HCA`: atomic among the operations of one device.
const ATOMIC_HCA: u32 = 1;

/// No vendor's: the kernel's soft-RoCE has it.
const RXE_VENDOR: u32 = 0xff_ffff;

fn int(number: impl TryInto<c_int>) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

fn attributes(profile: &Profile, guid: u64) -> ibv_device_attr {
    ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        vendor_id: RXE_VENDOR,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        max_qp: int(profile.max_queue_pairs),
        max_qp_wr: int(profile.max_qp_wr),
        device_cap_flags: CAPABILITIES,
        max_sge: int(profile.max_sge),
        max_sge_rd: int(profile.max_sge),
        max_cq: int(profile.max_completion_queues),
        max_cqe: int(profile.max_cqe),
        max_mr: int(profile.max_keys),
        max_mw: int(profile.max_keys),
        max_pd: int(profile.max_domains),
        max_qp_rd_atom: int(profile.max_qp_rd_atom),
        max_res_rd_atom: int(profile.max_res_rd_atom),
        max_qp_init_rd_atom: int(profile.max_qp_rd_atom),
        atomic_cap: ATOMIC_HCA,
        max_mcast_grp: int(profile.max_multicast_groups),
        max_mcast_qp_attach: int(profile.max_multicast_attached),
        max_total_mcast_qp_attach: int(profile
            .max_multicast_groups
            .saturating_mul(profile.max_multicast_attached)),
        max_ah: c_int::MAX,
        max_srq: int(profile.max_shared_receive_queues),
        max_srq_wr: int(profile.max_srq_wr),
        max_srq_sge: int(profile.max_srq_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    }
}

fn query(verb: &'static str, context: Open) -> Result<(Profile, ibv_device_attr), Errno> {
    context.card.verb(verb, |locked| {
        let profile = locked.nic.profile().clone();
        let attributes = attributes(&profile, context.card.device.guid);
        Ok((profile, attributes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: Open, attr: &mut MaybeUninit<ibv_device_attr>) -> c_int {
    let found = query("ibv_query_device", context);
    code(put(attr, found.map(|(_, answer)| answer)))
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: Open,
    input: Option<&ibv_query_device_ex_input>,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let is_unknown = input.is_some_and(|input| input.comp_mask != 0);
    if is_unknown || size < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    let found = query("ibv_query_device_ex", context);
    code(found.map(|(profile, orig_attr)| {
        let mut answer = ibv_device_attr_ex {
            orig_attr,
            device_cap_flags_ex: u64::from(orig_attr.device_cap_flags),
            phys_port_cnt_ex: 1,
            ..ibv_device_attr_ex::default()
        };
        if profile.completion_timestamps {
            // Bits, and the frequency of the clock in kHz.
            (answer.completion_timestamp_mask, answer.hca_core_clock) = (u64::MAX, 1_000_000);
        }
        if profile.on_demand_paging {
            // IBV_ODP_SUPPORT, and IBV_ODP_SUPPORT_SEND to _ATOMIC; sends and receives for datagrams.
            answer.odp_general_caps = 1;
            answer.rc_odp_caps = 0x1f;
            answer.uc_odp_caps = 0x7;
            answer.ud_odp_caps = 0x3;
        }
        // SAFETY: the caller has room for `size` bytes.
        unsafe { fill(attr, &answer, size) };
    }))
}

pub(super) extern "C" fn query_rt_values(context: Open, values: &mut ibv_values_ex) -> c_int {
    const RAW_CLOCK: u32 = 1;
    let card = &context.card;
    let found = card.verb("ibv_query_rt_values_ex", |locked| {
        Ok(locked.nic.profile().completion_timestamps)
    });
    code(found.map(|has_clock| {
        // A device without a clock fills nothing, and the mask says so.
        values.comp_mask &= if has_clock { RAW_CLOCK } else { 0 };
        // As mlx5's: ticks, without seconds.
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = nanoseconds(card.now()).cast_signed();
    }))
}

/// The ticks of the clock at an instant, of which there are 10⁹ in a second.
pub(crate) fn nanoseconds(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

/// Copies a structure to one that is of another version: as much as both have, then zeros.
///
/// # Safety
///
/// There is room for `size` bytes.
pub(super) unsafe fn fill<T>(to: *mut T, answer: &T, size: usize) {
    let (to, from) = (to.cast::<u8>(), ptr::from_ref(answer).cast::<u8>());
    let both = size.min(size_of::<T>());
    // SAFETY: the answer has `both` bytes, and the caller has room for them.
    unsafe { ptr::copy_nonoverlapping(from, to, both) };
    let rest = to.wrapping_add(both);
    // SAFETY: the caller has room for the rest.
    unsafe { rest.write_bytes(0, size - both) };
}
