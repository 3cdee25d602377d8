//! Queries of the port: state, GID table, partitions.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

use super::query::fill;
use crate::abi::attributes::{ibv_gid, ibv_gid_entry, ibv_port_attr};
use crate::abi::context::Open;
use crate::errno::{Errno, answer, code, fail, put};

const PORT: u32 = 1;
/// Entries of a GID table.
const GIDS: u16 = 16;
const GID_TYPE_ROCE_V2: u32 = 2;
const DEFAULT_PARTITION: u16 = 0xffff;

const PORT_DOWN: u32 = 1;
const PORT_ACTIVE: u32 = 4;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
/// `IBV_PORT_CM_SUP`, `IBV_PORT_IP_BASED_GIDS`.
const PORT_CAPABILITIES: u32 = 1 << 16 | 1 << 26;
const LINK_LAYER_ETHERNET: u8 = 2;

pub(super) unsafe extern "C" fn query_port(
    context: Open,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    let found = context.card.verb("ibv_query_port", |locked| {
        if u32::from(port) != PORT {
            return Err(libc::EINVAL);
        }
        let (profile, is_up) = (locked.nic.profile(), locked.nic.is_port_up());
        let max_mtu = mtu(profile.max_mtu);
        Ok(ibv_port_attr {
            state: if is_up { PORT_ACTIVE } else { PORT_DOWN },
            max_mtu,
            active_mtu: max_mtu,
            gid_tbl_len: c_int::from(GIDS),
            port_cap_flags: PORT_CAPABILITIES,
            max_msg_sz: profile.max_message,
            pkey_tbl_len: 1,
            // One lane of 2.5 Gbit/s, as rxe's.
            active_width: 1,
            active_speed: 1,
            phys_state: if is_up { PHYS_LINK_UP } else { PHYS_DISABLED },
            link_layer: LINK_LAYER_ETHERNET,
            ..ibv_port_attr::default()
        })
    });
    code(found.map(|found| {
        // SAFETY: the caller has room for `size` bytes.
        unsafe { fill(attr, &found, size) };
    }))
}

/// C's number of an MTU (`ibv_mtu`).
pub(crate) const fn mtu(bytes: u32) -> u32 {
    let bytes = if bytes < 256 { 256 } else { bytes };
    bytes.ilog2() - 7
}

/// The exported function fills the fields that C had first; the inline one calls the context's.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: Open, port: u8, attr: *mut ibv_port_attr) -> c_int {
    let old = offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the caller has room for the fields before the newest.
    unsafe { query_port(context, port, attr, old) }
}

/// The GIDs of a context's device that are set, from `first` on, at most `count`.
fn gids(
    verb: &'static str,
    context: Open,
    port: u32,
    first: u32,
    count: u32,
) -> Result<Vec<ibv_gid_entry>, Errno> {
    context.card.verb(verb, |locked| {
        let end = first.saturating_add(count);
        if port != PORT || end > u32::from(GIDS) {
            return Err(libc::EINVAL);
        }
        let entry = |gid_index| {
            let gid = locked.nic.gid(u8::try_from(gid_index).ok()?)?;
            Some(ibv_gid_entry {
                gid: ibv_gid { raw: gid.octets() },
                gid_index,
                port_num: port,
                gid_type: GID_TYPE_ROCE_V2,
                ndev_ifindex: 0,
            })
        };
        Ok((first..end).filter_map(entry).collect())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(
    context: Open,
    port: u8,
    index: c_int,
    to: &mut MaybeUninit<ibv_gid>,
) -> c_int {
    let index = index.cast_unsigned();
    let found = gids("ibv_query_gid", context, port.into(), index, 1);
    // An empty entry is all zeros, as in sysfs.
    let gid =
        |found: Vec<ibv_gid_entry>| found.first().map_or(ibv_gid { raw: [0; 16] }, |it| it.gid);
    answer(put(to, found.map(gid)))
}

/// Private to rdma-core's libraries and programs: the type as sysfs has it, where an entry that is empty is of RoCE v1.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid_type(
    context: Open,
    port: u8,
    index: u32,
    to: &mut MaybeUninit<u32>,
) -> c_int {
    const ROCE_V1: u32 = 0;
    const ROCE_V2: u32 = 1;
    let found = gids("ibv_query_gid_type", context, port.into(), index, 1);
    let found = found.map(|found| if found.is_empty() { ROCE_V1 } else { ROCE_V2 });
    answer(put(to, found))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: Open,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || size < size_of::<ibv_gid_entry>() {
        return libc::EINVAL;
    }
    match gids("ibv_query_gid_ex", context, port, index, 1).as_deref() {
        Ok([entry]) => {
            // SAFETY: the caller has room for `size` bytes.
            unsafe { fill(to, entry, size) };
            0
        }
        Ok(_) => libc::ENODATA,
        Err(errno) => *errno,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: Open,
    to: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    const EINVAL: isize = -22;
    if flags != 0 || size < size_of::<ibv_gid_entry>() {
        return EINVAL;
    }
    match gids("ibv_query_gid_table", context, PORT, 0, GIDS.into()) {
        Ok(found) if found.len() <= room => {
            for (place, entry) in found.iter().enumerate() {
                let to = to.wrapping_byte_add(place * size);
                // SAFETY: the caller has room for `room` entries of `size` bytes.
                unsafe { fill(to, entry, size) };
            }
            found.len().cast_signed()
        }
        Ok(_) => EINVAL,
        Err(errno) => -isize::try_from(errno).unwrap_or(-EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_pkey(_: Open, port: u8, index: c_int, to: &mut MaybeUninit<u16>) -> c_int {
    if u32::from(port) != PORT || index != 0 {
        return fail(libc::EINVAL, -1);
    }
    to.write(DEFAULT_PARTITION.to_be());
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_: Open, port: u8, partition: u16) -> c_int {
    match u32::from(port) == PORT && partition == DEFAULT_PARTITION.to_be() {
        true => 0,
        false => fail(libc::ENOENT, -1),
    }
}
