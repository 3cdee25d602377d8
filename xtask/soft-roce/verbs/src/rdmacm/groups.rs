//! Multicast groups.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::net::Ipv6Addr;

use super::id::Id;
use super::programs;
use crate::abi::attributes::ibv_gid;
use crate::abi::connection::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::address::ibv_detach_mcast;
use crate::errno::answer;
use crate::sockaddr;

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has an address.
    let group = unsafe { sockaddr::read(addr) }.ok_or(libc::EINVAL);
    let joined = group.and_then(|group| {
        own.refresh()?;
        own.lock().memberships.push((group.ip(), false));
        let context = context.expose_provenance();
        own.call("rdma_join_multicast", |manager, _| {
            manager.join(own.number, group.ip(), context)
        })
    });
    // SAFETY: the identifier is alive.
    unsafe { programs::complete(id, joined) }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller has it.
    let addr = unsafe { (*attr).addr };
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { rdma_join_multicast(id, addr, context) }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has an address.
    let group = unsafe { sockaddr::read(addr) }.ok_or(libc::EINVAL);
    answer(group.and_then(|group| {
        let mut state = own.lock();
        let place = state
            .memberships
            .iter()
            .position(|(of, _)| *of == group.ip());
        let (_, is_attached) = state.memberships.remove(place.ok_or(libc::EADDRNOTAVAIL)?);
        drop(state);
        let gid = group_gid(sockaddr::gid(group.ip()));
        // SAFETY: the identifier is alive.
        let qp = unsafe { (*id).qp };
        if is_attached && !qp.is_null() {
            // SAFETY: the queue pair of an identifier is alive.
            unsafe { ibv_detach_mcast(qp, &raw const gid, 0) };
        }
        Ok(())
    }))
}

pub(super) const fn group_gid(gid: Ipv6Addr) -> ibv_gid {
    ibv_gid { raw: gid.octets() }
}
