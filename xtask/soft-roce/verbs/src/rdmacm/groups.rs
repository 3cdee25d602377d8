//! Multicast groups.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::net::Ipv6Addr;

use super::id::Id;
use super::programs::wait;
use crate::abi::attributes::ibv_gid;
use crate::abi::connection::rdma_cm_join_mc_attr_ex;
use crate::address::ibv_detach_mcast;
use crate::errno::answer;
use crate::sockaddr;

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_join_multicast(
    id: &Id,
    addr: *const libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller has an address.
    let group = unsafe { sockaddr::read(addr) }.ok_or(libc::EINVAL);
    let joined = group.and_then(|group| {
        id.refresh()?;
        id.lock().memberships.push(group.ip());
        let context = context.expose_provenance();
        id.call("rdma_join_multicast", |manager, _| {
            manager.join(id.number, group.ip(), context)
        })
    });
    answer(wait(id, joined))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_join_multicast_ex(
    id: &Id,
    attr: &rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { rdma_join_multicast(id, attr.addr, context) }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_leave_multicast(id: &Id, addr: *const libc::sockaddr) -> c_int {
    // SAFETY: the caller has an address.
    let group = unsafe { sockaddr::read(addr) }.ok_or(libc::EINVAL);
    answer(group.and_then(|group| {
        let mut state = id.lock();
        let mut all = state.memberships.iter();
        let place = all.position(|it| *it == group.ip());
        state.memberships.remove(place.ok_or(libc::EADDRNOTAVAIL)?);
        drop(state);
        // SAFETY: the queue pair of an identifier is alive.
        if let Some(qp) = unsafe { id.qp() } {
            // One that was made after the group was joined is not attached.
            let _detached = ibv_detach_mcast(qp, &group_gid(sockaddr::gid(group.ip())), 0);
        }
        Ok(())
    }))
}

pub(super) const fn group_gid(gid: Ipv6Addr) -> ibv_gid {
    ibv_gid { raw: gid.octets() }
}
