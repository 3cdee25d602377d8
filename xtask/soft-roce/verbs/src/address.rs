//! Address handles, and multicast groups.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::array;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::Ordering;

use soft_nic::{AddressVector, Nic, Refused};

use crate::abi::attributes::{ibv_ah_attr, ibv_gid, ibv_global_route};
use crate::abi::context::Open;
use crate::abi::object::ibv_ah;
use crate::abi::request::ibv_wc;
use crate::device::destroy;
use crate::errno::{Errno, answer, code, refused};
use crate::network::Locked;
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
pub(crate) fn ah_attr(path: &AddressVector) -> ibv_ah_attr {
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
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah(pd: &ProtectionDomain, attr: &ibv_ah_attr) -> *mut AddressHandle {
    let context = pd.pd.context;
    context.make("ibv_create_ah", |locked| {
        let path = path(attr)?;
        locked.nic.gid(path.source_index).ok_or(libc::EINVAL)?;
        pd.handles.fetch_add(1, Ordering::Relaxed);
        let handle = ibv_ah {
            context,
            pd: pd.as_ptr(),
            handle: 0,
        };
        Ok(AddressHandle { handle, path })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut AddressHandle) -> c_int {
    let end = |_: &mut Locked<'_>, own: &AddressHandle| {
        // SAFETY: the domain is alive as long as its address handles are.
        let domain = unsafe { &*own.handle.pd.cast::<ProtectionDomain>() };
        domain.handles.fetch_sub(1, Ordering::Relaxed);
        Ok(None)
    };
    // SAFETY: `ibv_create_ah` made it, and the caller does not use it again.
    unsafe { destroy("ibv_destroy_ah", ah, end) }
}

/// The way back to the sender of a datagram.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: Open,
    port: u8,
    wc: &ibv_wc,
    grh: *mut [u8; GRH],
    attr: &mut MaybeUninit<ibv_ah_attr>,
) -> c_int {
    let found = if wc.wc_flags & WC_GRH == 0 {
        Ok(ibv_ah_attr {
            is_global: 0,
            ..ah_attr(&AddressVector::default())
        })
    } else {
        // SAFETY: a completion with this flag has a GRH, which the caller has, at any address.
        let grh = unsafe { grh.read_unaligned() };
        context.card.verb("ibv_init_ah_from_wc", |locked| {
            let back = way_back(&grh, |gid| {
                (0..=u8::MAX).find(|index| locked.nic.gid(*index) == Some(gid))
            });
            back.map(|path| ah_attr(&path))
        })
    };
    answer(found.map(|found| {
        attr.write(ibv_ah_attr {
            dlid: wc.slid,
            sl: wc.sl,
            src_path_bits: wc.dlid_path_bits,
            port_num: port,
            ..found
        });
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: &ProtectionDomain,
    wc: &ibv_wc,
    grh: *mut [u8; GRH],
    port: u8,
) -> *mut AddressHandle {
    let mut attr = MaybeUninit::new(ibv_ah_attr::default());
    // SAFETY: the promises of this function's caller are those of the other's.
    match unsafe { ibv_init_ah_from_wc(pd.pd.context, port, wc, grh, &mut attr) } {
        // SAFETY: it was initialized at first.
        0 => ibv_create_ah(pd, unsafe { attr.assume_init_ref() }),
        _ => ptr::null_mut(),
    }
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
    let v6_address = |at| Ipv6Addr::from(array::from_fn::<u8, 16, _>(|byte| grh[at + byte]));
    let v4_address = |at| Ipv4Addr::from(array::from_fn::<u8, 4, _>(|byte| grh[at + byte]));
    let (source, destination) = if is_v4 {
        let [source, destination] = [32, 36].map(v4_address);
        (source.to_ipv6_mapped(), destination.to_ipv6_mapped())
    } else if v6[0] >> 4 == 6 {
        (v6_address(8), v6_address(24))
    } else {
        return Err(libc::EPROTONOSUPPORT);
    };
    if destination.to_canonical().is_multicast() {
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
fn change_group(
    verb: &'static str,
    qp: &QueuePair,
    gid: &ibv_gid,
    change: impl FnOnce(&mut Nic, u32, Ipv6Addr) -> Result<(), Refused>,
) -> c_int {
    code(qp.context().card.verb(verb, |locked| {
        change(locked.nic, qp.number(), Ipv6Addr::from(gid.raw)).map_err(refused)
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_attach_mcast(qp: &QueuePair, gid: &ibv_gid, _lid: u16) -> c_int {
    change_group("ibv_attach_mcast", qp, gid, Nic::attach_mcast)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_detach_mcast(qp: &QueuePair, gid: &ibv_gid, _lid: u16) -> c_int {
    change_group("ibv_detach_mcast", qp, gid, Nic::detach_mcast)
}
