//! C's `static inline` functions and macros, under the same names: verbs, and with the feature
//! `rdmacm` the functions of `rdma_cma.h` and `rdma_verbs.h`.
//!
//! Each does what `verbs.h` does, with the same checks in the same order: it calls a function
//! pointer in the context (`ops`), in front of the context (`extended`, `fallback`), or in the
//! object itself (`wr`, `cq_ex`). A verb that the library or the provider lacks answers
//! `EOPNOTSUPP`, as return value or in `errno`.

use core::ffi::c_int;

use crate::{_ibv_query_gid_ex, _ibv_query_gid_table, ibv_context, ibv_gid_entry, ibv_qp_type};

/// A link to a manual page, as the last line of an item's docs.
macro_rules! man {
    ($page:ident) => {
        concat!(
            "See [`",
            stringify!($page),
            "(3)`](https://man7.org/linux/man-pages/man3/",
            stringify!($page),
            ".3.html)."
        )
    };
}

mod cq_ex;
mod extended;
mod fallback;
mod ops;
#[cfg(feature = "rdmacm")]
mod rdmacm;
mod wr;

pub use cq_ex::*;
pub use extended::*;
pub use fallback::*;
pub use ops::*;
#[cfg(feature = "rdmacm")]
pub use rdmacm::*;
pub use wr::*;

/// Reads one entry of a port's GID table, with its type and network interface.
///
/// # Safety
///
/// - `context` is an open device context.
/// - `entry` is valid for writes.
///
#[doc = man!(ibv_query_gid_ex)]
#[inline]
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the caller promises an open `context` and a writable `entry`; the size is that of our
    // `entry`.
    unsafe {
        _ibv_query_gid_ex(
            context,
            port_num,
            gid_index,
            entry,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

/// Reads all valid entries of a device's GID tables; returns how many, or a negative errno.
///
/// # Safety
///
/// - `context` is an open device context.
/// - `entries` is valid for writes of `max_entries` entries.
///
#[doc = man!(ibv_query_gid_table)]
#[inline]
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller promises an open `context` and writable `entries`; the size is that of one
    // of our `entries`.
    unsafe {
        _ibv_query_gid_table(
            context,
            entries,
            max_entries,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

/// Reads what completion counters a device has.
///
/// # Safety
///
/// - `context` is an open device context.
/// - `caps` is valid for writes.
///
#[doc = man!(ibv_query_comp_cntr_caps)]
#[cfg(has_comp_cntr)]
#[inline]
pub unsafe fn ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut crate::ibv_comp_cntr_caps,
) -> c_int {
    // SAFETY: the caller promises an open `context` and a writable `caps`; the size is that of our
    // `caps`.
    unsafe {
        crate::_ibv_query_comp_cntr_caps(context, caps, size_of::<crate::ibv_comp_cntr_caps>())
    }
}

/// The remote key after a memory window of type 2 is bound again: its low eight bits go up by one.
///
#[doc = man!(ibv_inc_rkey)]
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    const TAG: u32 = 0x0000_00ff;
    (rkey & !TAG) | (rkey.wrapping_add(1) & TAG)
}

/// Whether `caps`, a mask with a bit for each queue pair type, has `qpt`: 1 or 0.
///
/// A type that no bit can stand for is not supported.
#[inline]
#[must_use]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    match 1_u32.checked_shl(qpt.0) {
        Some(bit) if caps & bit != 0 => 1,
        Some(_) | None => 0,
    }
}

/// The UDP source port that RoCE v2 makes of a flow label.
#[inline]
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    const PORT_MIN: u16 = 0xC000;
    let folded = (fl & 0x0_3FFF) ^ ((fl & 0xF_C000) >> 14);
    // Fourteen bits, by the masks above.
    let [low, high, ..] = folded.to_le_bytes();
    u16::from_le_bytes([low, high]) | PORT_MIN
}
