//! Lists of addresses and devices, ports, and names of events.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_char, c_int};
use std::mem::{MaybeUninit, forget, zeroed};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use super::id::{Id, Opened};
use super::manager::Space;
use crate::abi::connection::rdma_addrinfo;
use crate::abi::context::ibv_context;
use crate::device::{boxed_list, list};
use crate::errno::{Errno, fail};
use crate::network::Host;
use crate::sockaddr::{self, Name};

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_get_src_port(id: &Id) -> u16 {
    port(&id.cm.route.get().source)
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_get_dst_port(id: &Id) -> u16 {
    port(&id.cm.route.get().destination)
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
    hints: Option<&rdma_addrinfo>,
    found: &mut MaybeUninit<*mut Info>,
) -> c_int {
    let hints = hints.copied().unwrap_or_default();
    let (flags, space, kind) = (hints.ai_flags, hints.ai_port_space, hints.ai_qp_type);
    let is_passive = flags & PASSIVE != 0;
    let is_for_datagrams = match space {
        0 => kind == Space::Datagrams.qp_type().cast_signed(),
        _ => space == Space::Datagrams as c_int,
    };
    let default = match is_for_datagrams {
        true => Space::Datagrams,
        false => Space::Connections,
    };
    let or = |given: c_int, default| if given == 0 { default } else { given };
    let mut info = rdma_addrinfo {
        ai_flags: flags,
        ai_port_space: or(space, default as c_int),
        ai_qp_type: or(kind, default.qp_type().cast_signed()),
        ..rdma_addrinfo::default()
    };
    let mut named = None;
    if !node.is_null() || !service.is_null() {
        // SAFETY: zeros are valid for hints.
        let mut asked: libc::addrinfo = unsafe { zeroed() };
        let flag = |own, theirs| if flags & own != 0 { theirs } else { 0 };
        asked.ai_flags = flag(PASSIVE, libc::AI_PASSIVE) | flag(NUMERIC, libc::AI_NUMERICHOST);
        asked.ai_family = flag(FAMILY, hints.ai_family);
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
    // SAFETY: the caller's addresses have the length of their family, or are null.
    let hinted = unsafe { sockaddr::read(hints.ai_src_addr) };
    // SAFETY: the caller's addresses have the length of their family, or are null.
    let hinted_to = unsafe { sockaddr::read(hints.ai_dst_addr) };
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
    found.write(Box::into_raw(made));
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_freeaddrinfo(info: *mut Info) {
    if !info.is_null() {
        // SAFETY: `rdma_getaddrinfo` boxed it, and the caller does not use it again.
        drop(unsafe { Box::from_raw(info) });
    }
}

/// All devices, which stay open.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_get_devices(count: Option<&mut c_int>) -> *mut *const ibv_context {
    let host = Host::current();
    let opened = host.cards().iter().map(Opened::shared);
    let opened: Result<Vec<Arc<Opened>>, Errno> = opened.collect();
    let opened = match opened {
        Ok(opened) => opened,
        Err(errno) => return fail(errno, ptr::null_mut()),
    };
    let contexts = opened.iter().map(|opened| opened.context.0.cast_const());
    let list = list(contexts, count);
    opened.into_iter().for_each(forget);
    list
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_free_devices(list: *mut *const ibv_context) {
    // SAFETY: `rdma_get_devices` made it, and the caller does not use it again.
    drop(unsafe { boxed_list(list) });
}
