//! Lists of addresses and devices, ports, and names of events.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_char, c_int};
use std::mem::{forget, zeroed};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use libc::sockaddr_storage;

use super::id::{Opened, from_c, length, to_c};
use super::manager::Space;
use crate::abi::connection::{rdma_addrinfo, rdma_cm_id};
use crate::abi::context::ibv_context;
use crate::device::boxed_list;
use crate::errno::{Errno, fail};
use crate::network::Host;

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
fn port(address: &sockaddr_storage) -> u16 {
    // SAFETY: it is an address, or zeros.
    let address = unsafe { from_c(ptr::from_ref(address).cast()) };
    address.map_or(0, |address| address.port().to_be())
}

/// Addresses of a list; there is one entry.
#[repr(C)]
struct Info {
    info: rdma_addrinfo,
    addresses: [sockaddr_storage; 2],
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
    const TCP: c_int = Space::Connections as c_int;
    const UDP: c_int = Space::Datagrams as c_int;
    // SAFETY: the caller has them, or null.
    let hints = unsafe { hints.as_ref() };
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let is_passive = flags & PASSIVE != 0;
    // SAFETY: zeros are valid for numbers and pointers.
    let mut info: rdma_addrinfo = unsafe { zeroed() };
    info.ai_flags = flags;
    info.ai_port_space = hints.map_or(0, |hints| hints.ai_port_space);
    info.ai_qp_type = hints.map_or(0, |hints| hints.ai_qp_type);
    if info.ai_port_space == 0 {
        info.ai_port_space = if info.ai_qp_type == Space::Datagrams.qp_type().cast_signed() {
            UDP
        } else {
            TCP
        };
    }
    if info.ai_qp_type == 0 {
        let space = u32::try_from(info.ai_port_space).ok();
        let space = space
            .and_then(Space::from_number)
            .unwrap_or(Space::Connections);
        info.ai_qp_type = space.qp_type().cast_signed();
    }
    let mut named = None;
    if !node.is_null() || !service.is_null() {
        // SAFETY: zeros are valid for hints.
        let mut asked: libc::addrinfo = unsafe { zeroed() };
        asked.ai_flags = if is_passive { libc::AI_PASSIVE } else { 0 };
        asked.ai_flags |= if flags & NUMERIC != 0 {
            libc::AI_NUMERICHOST
        } else {
            0
        };
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
        named = unsafe { from_c(address) };
        // SAFETY: it is not used again.
        unsafe { libc::freeaddrinfo(list) };
    }
    // SAFETY: the caller's addresses have the length of their family.
    let hinted = hints.and_then(|hints| unsafe { from_c(hints.ai_src_addr) });
    // SAFETY: the caller's addresses have the length of their family.
    let hinted_to = hints.and_then(|hints| unsafe { from_c(hints.ai_dst_addr) });
    let (source, destination) = match is_passive {
        true => (named.or(hinted), hinted_to),
        false => (hinted, named.or(hinted_to)),
    };
    let Some(any) = source.or(destination) else {
        return fail(libc::EINVAL, -1);
    };
    info.ai_family = if any.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let zero = SocketAddr::from(([0, 0, 0, 0], 0));
    let addresses = [source, destination].map(|it| to_c(it.unwrap_or(zero)));
    let made = Box::into_raw(Box::new(Info { info, addresses }));
    // SAFETY: it was made a moment ago.
    let own = unsafe { &mut *made };
    let places = own.addresses.each_mut().map(ptr::from_mut);
    if let Some(source) = source {
        own.info.ai_src_len = u32::try_from(length(source)).unwrap_or(0);
        own.info.ai_src_addr = places[0].cast();
    }
    if let Some(destination) = destination {
        own.info.ai_dst_len = u32::try_from(length(destination)).unwrap_or(0);
        own.info.ai_dst_addr = places[1].cast();
    }
    // SAFETY: the caller has room for it.
    unsafe { found.write(made.cast()) };
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

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
const extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let text = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    text.as_ptr()
}
