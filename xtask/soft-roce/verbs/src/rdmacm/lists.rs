//! Lists of addresses and devices, ports, and names of events.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_char, c_int};
use std::mem::{forget, zeroed};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use super::id::Opened;
use super::manager::Space;
use crate::abi::connection::{rdma_addrinfo, rdma_cm_id};
use crate::abi::context::ibv_context;
use crate::device::boxed_list;
use crate::errno::{Errno, fail};
use crate::network::Host;
use crate::sockaddr::{self, Name};

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller has an identifier that is alive.
    port(unsafe { &(*id).route.source })
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller has an identifier that is alive.
    port(unsafe { &(*id).route.destination })
}

/// The port of an address, in the order of the network; 0 if there is no address yet.
fn port(address: &Name) -> u16 {
    address.read().map_or(0, |address| address.port().to_be())
}

/// Addresses of a list; there is one entry.
#[repr(C)]
struct Info {
    info: rdma_addrinfo,
    addresses: [Name; 2],
}

pub(super) const PASSIVE: c_int = 1;
const NUMERIC: c_int = 2;
const FAMILY: c_int = 8;

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    found: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller has them, or null.
    let hints = unsafe { hints.as_ref() };
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let is_passive = flags & PASSIVE != 0;
    // SAFETY: zeros are valid for numbers and pointers.
    let mut info: rdma_addrinfo = unsafe { zeroed() };
    info.ai_flags = flags;
    let (space, kind) = hints.map_or((0, 0), |hints| (hints.ai_port_space, hints.ai_qp_type));
    let of_datagrams = (
        Space::Datagrams as c_int,
        Space::Datagrams.qp_type().cast_signed(),
    );
    let default = match space == of_datagrams.0 || space == 0 && kind == of_datagrams.1 {
        true => Space::Datagrams,
        false => Space::Connections,
    };
    let or = |given: c_int, default| if given == 0 { default } else { given };
    info.ai_port_space = or(space, default as c_int);
    info.ai_qp_type = or(kind, default.qp_type().cast_signed());
    let mut named = None;
    if !node.is_null() || !service.is_null() {
        // SAFETY: zeros are valid for hints.
        let mut asked: libc::addrinfo = unsafe { zeroed() };
        let flag = |own, theirs| if flags & own != 0 { theirs } else { 0 };
        asked.ai_flags = flag(PASSIVE, libc::AI_PASSIVE) | flag(NUMERIC, libc::AI_NUMERICHOST);
        asked.ai_family = match hints {
            Some(hints) if flags & FAMILY != 0 => hints.ai_family,
            _ => libc::AF_UNSPEC,
        };
        asked.ai_socktype = libc::SOCK_STREAM;
        let mut list = ptr::null_mut();
        // SAFETY: the caller has the names, and the places are here.
        let error = unsafe { libc::getaddrinfo(node, service, &raw const asked, &raw mut list) };
        if error != 0 {
            return error;
        }
        // SAFETY: the list has an entry.
        let address = unsafe { (*list).ai_addr };
        // SAFETY: it has the length of its family.
        named = unsafe { sockaddr::read(address) };
        // SAFETY: it is not used again.
        unsafe { libc::freeaddrinfo(list) };
    }
    // SAFETY: the caller's addresses have the length of their family.
    let hinted = hints.and_then(|hints| unsafe { sockaddr::read(hints.ai_src_addr) });
    // SAFETY: the caller's addresses have the length of their family.
    let hinted_to = hints.and_then(|hints| unsafe { sockaddr::read(hints.ai_dst_addr) });
    let (source, destination) = match is_passive {
        true => (named.or(hinted), hinted_to),
        false => (hinted, named.or(hinted_to)),
    };
    let Some(any) = source.or(destination) else {
        return fail(libc::EINVAL, -1);
    };
    info.ai_family = match any {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let mut made = Box::new(Info {
        info,
        addresses: [Name::none(); 2],
    });
    let Info { info, addresses } = &mut *made;
    let [from, to] = addresses;
    for (address, place, length, pointer) in [
        (source, from, &mut info.ai_src_len, &mut info.ai_src_addr),
        (destination, to, &mut info.ai_dst_len, &mut info.ai_dst_addr),
    ] {
        if let Some(address) = address {
            (*place, *length) = Name::of(address);
            *pointer = ptr::from_mut(place).cast();
        }
    }
    // SAFETY: the caller has room for it.
    unsafe { found.write(Box::into_raw(made).cast()) };
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    if !info.is_null() {
        // SAFETY: `rdma_getaddrinfo` boxed it, and the caller does not use it again.
        drop(unsafe { Box::from_raw(info.cast::<Info>()) });
    }
}

/// All devices, which stay open.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let host = Host::current();
    let opened = host.cards().iter().map(Opened::shared);
    let opened: Result<Vec<Arc<Opened>>, Errno> = opened.collect();
    let opened = match opened {
        Ok(opened) => opened,
        Err(errno) => return fail(errno, ptr::null_mut()),
    };
    let contexts = opened.iter().map(|opened| opened.context);
    let list: Box<[*mut ibv_context]> = contexts.chain([ptr::null_mut()]).collect();
    opened.into_iter().for_each(forget);
    if !count.is_null() {
        // SAFETY: the caller has room for it.
        unsafe { count.write(c_int::try_from(list.len() - 1).unwrap_or(c_int::MAX)) };
    }
    Box::into_raw(list).cast()
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: `rdma_get_devices` made it, and the caller does not use it again.
    drop(unsafe { boxed_list(list) });
}
