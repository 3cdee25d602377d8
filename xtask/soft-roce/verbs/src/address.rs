//! Address handles, and multicast groups.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::Ordering;

use soft_nic::{AddressVector, Nic, Refused};

use crate::abi::attributes::{ibv_ah_attr, ibv_gid, ibv_global_route};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_ah, ibv_pd, ibv_qp};
use crate::abi::request::ibv_wc;
use crate::device::Context;
use crate::errno::{Errno, answer, code, refused};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::QueuePair;

#[repr(C)]
pub(crate) struct AddressHandle {
    handle: ibv_ah,
    pub(crate) path: AddressVector,
}

/// The bytes before a datagram's payload.
const GRH: usize = 40;
const WC_GRH: u32 = 1;

/// The card's form of C's path; RoCE has no path without a GID.
pub(crate) fn path(attr: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    if attr.is_global == 0 || attr.port_num != 1 {
        return Err(libc::EINVAL);
    }
    Ok(AddressVector {
        destination: Ipv6Addr::from(attr.grh.dgid.raw),
        source_index: attr.grh.sgid_index,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
    })
}

/// C's form of the card's path.
pub(crate) const fn ah_attr(path: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: path.destination.octets(),
            },
            flow_label: path.flow_label,
            sgid_index: path.source_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller has a domain that is alive.
    let (domain, context) = unsafe { ProtectionDomain::of(pd) };
    // SAFETY: the caller has it.
    let path = path(unsafe { &*attr });
    let created = context.card.verb("ibv_create_ah", |locked| {
        let path = path?;
        let source = locked.nic.gid(path.source_index);
        source.ok_or(libc::EINVAL)?;
        domain.handles.fetch_add(1, Ordering::Relaxed);
        Ok(path)
    });
    let made = created.map(|path| AddressHandle {
        handle: ibv_ah {
            context: domain.c_context(),
            pd,
            handle: 0,
        },
        path,
    });
    context.made(made).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller has an address handle that is alive.
    let pd = unsafe { (*ah).pd };
    // SAFETY: the domain is alive as long as its address handles are.
    let (domain, context) = unsafe { ProtectionDomain::of(pd) };
    let result = context.card.verb("ibv_destroy_ah", |_| {
        domain.handles.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    });
    // SAFETY: `ibv_create_ah` made it, and the caller does not use it again.
    unsafe { context.ended(ah.cast::<AddressHandle>(), result) }
}

/// The way back to the sender of a datagram.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH],
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    // SAFETY: the caller has it.
    let wc = unsafe { *wc };
    let found = if wc.wc_flags & WC_GRH == 0 {
        Ok(ibv_ah_attr {
            is_global: 0,
            ..ah_attr(&AddressVector::to(Ipv6Addr::UNSPECIFIED))
        })
    } else {
        // SAFETY: a completion with this flag has a GRH, which the caller has, at any address.
        let grh = unsafe { grh.read_unaligned() };
        own.card.verb("ibv_init_ah_from_wc", |locked| {
            let back = way_back(&grh, |gid| {
                (0..=u8::MAX).find(|index| locked.nic.gid(*index) == Some(gid))
            });
            back.map(|path| ah_attr(&path))
        })
    };
    answer(found.map(|found| {
        let found = ibv_ah_attr {
            dlid: wc.slid,
            sl: wc.sl,
            src_path_bits: wc.dlid_path_bits,
            port_num: port,
            ..found
        };
        // SAFETY: the caller has room for it.
        unsafe { attr.write(found) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH],
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ah_attr(&AddressVector::to(Ipv6Addr::UNSPECIFIED));
    // SAFETY: the caller has a domain that is alive.
    let (domain, _) = unsafe { ProtectionDomain::of(pd) };
    let context = domain.c_context();
    // SAFETY: the promises of this function's caller are those of the other's.
    if unsafe { ibv_init_ah_from_wc(context, port, wc, grh, &raw mut attr) } != 0 {
        return ptr::null_mut();
    }
    // SAFETY: the caller has a domain that is alive.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}

/// The path to the sender of a datagram with this GRH: IPv6's header, or IPv4's after 20 undefined bytes.
fn way_back(
    grh: &[u8; GRH],
    index: impl FnOnce(Ipv6Addr) -> Option<u8>,
) -> Result<AddressVector, Errno> {
    let (v6, v4) = (grh, &grh[20..]);
    let is_v4 = match v6[0] >> 4 == 6 {
        // A header of IPv4 that is intact counts, for undefined bytes may look like IPv6's.
        true => v4[0] == 0x45 && checksum(v4) == 0xffff,
        false => v4[0] >> 4 == 4,
    };
    let address = |at: usize| {
        let bytes = grh[at..].first_chunk::<16>();
        bytes.map_or(Ipv6Addr::UNSPECIFIED, |bytes| Ipv6Addr::from(*bytes))
    };
    let v4_address = |at: usize| {
        let bytes = grh[at..].first_chunk::<4>();
        let address = bytes.map_or(Ipv4Addr::UNSPECIFIED, |bytes| Ipv4Addr::from(*bytes));
        address.to_ipv6_mapped()
    };
    let (source, destination, is_multicast) = if is_v4 {
        (v4_address(32), v4_address(36), grh[36] >> 4 == 0xe)
    } else if v6[0] >> 4 == 6 {
        (address(8), address(24), grh[24] == 0xff)
    } else {
        return Err(libc::EPROTONOSUPPORT);
    };
    if is_multicast {
        return Err(libc::EINVAL);
    }
    let first = u32::from_be_bytes([v6[0], v6[1], v6[2], v6[3]]);
    let (traffic_class, flow_label, hop_limit) = match is_v4 {
        true => (v4[1], 0, v4[8]),
        false => (v6[0] << 4 | v6[1] >> 4, first & 0xf_ffff, v6[7]),
    };
    Ok(AddressVector {
        destination: source,
        source_index: index(destination).ok_or(libc::EINVAL)?,
        traffic_class,
        flow_label,
        hop_limit,
    })
}

/// The sum of a header of IPv4, 0xffff if it is intact (RFC 1071).
fn checksum(header: &[u8]) -> u32 {
    let words = header.chunks_exact(2).take(10);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    (sum & 0xffff) + (sum >> 16)
}

/// Attaches a queue pair to a group, or detaches it.
///
/// # Safety
///
/// The queue pair is alive, and the caller has a GID.
unsafe fn change_group(
    verb: &'static str,
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    change: impl FnOnce(&mut Nic, u32, Ipv6Addr) -> Result<(), Refused>,
) -> c_int {
    // SAFETY: the caller's queue pair is alive.
    let (own, context) = unsafe { QueuePair::of(qp) };
    // SAFETY: the caller has it.
    let group = Ipv6Addr::from(unsafe { (*gid).raw });
    let result = context.card.verb(verb, |locked| {
        change(locked.nic, own.number(), group).map_err(refused)
    });
    code(result)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { change_group("ibv_attach_mcast", qp, gid, Nic::attach_mcast) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { change_group("ibv_detach_mcast", qp, gid, Nic::detach_mcast) }
}
