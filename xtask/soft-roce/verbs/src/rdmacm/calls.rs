//! librdmacm's functions, as far as they are those of the kernel.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use soft_nic::{AttributeMask, QueuePairState};

use super::id::{Channel, Id, bytes};
use super::manager::{Manager, Space, is_any};
use super::programs::wait;
use super::{programs, registry};
use crate::abi::attributes::{ibv_gid, ibv_qp_attr};
use crate::abi::connection::{rdma_cm_join_mc_attr_ex, rdma_conn_param};
use crate::address::ibv_detach_mcast;
use crate::errno::{Errno, answer, fail, put};
use crate::network::Host;
use crate::queue_pair::{QueuePair, qp_attr, transport};
use crate::sockaddr;

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_create_event_channel() -> *mut Channel {
    Channel::create(Host::current()).unwrap_or_else(|errno| fail(errno, ptr::null_mut()))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut Channel) {
    // SAFETY: `Channel::create` boxed it, and the caller does not use it again.
    drop(unsafe { Box::from_raw(channel) });
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) extern "C" fn rdma_create_id(
    channel: Option<&Channel>,
    id: &mut MaybeUninit<*mut Id>,
    context: *mut c_void,
    space: u32,
) -> c_int {
    answer(put(id, create(channel, context, space)))
}

fn create(channel: Option<&Channel>, context: *mut c_void, space: u32) -> Result<*mut Id, Errno> {
    let host = channel.map_or_else(Host::current, |channel| channel.host.clone());
    let space = Space::from_number(space).ok_or(libc::EPROTONOSUPPORT)?;
    let card = host.cards().first().ok_or(libc::ENODEV)?;
    card.verb("rdma_create_id", |_| Ok(()))?;
    let number = host.number();
    let make = |it: &mut Manager, sink| Ok(it.create(number, space, sink));
    Id::create(host, channel, context, make)
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_destroy_id(id: *mut Id) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { &*id };
    own.card().begin("rdma_destroy_id");
    own.card().manage(|manager, _| manager.destroy(own.number));
    let channel = own.waits.then(|| own.cm.channel.get());
    if own.waits {
        programs::acknowledge(own);
    }
    own.unacknowledged.wait();
    // SAFETY: `Id::create` boxed it, and the caller does not use it again.
    drop(unsafe { Box::from_raw(id) });
    if let Some(channel) = channel {
        // SAFETY: it was the identifier's own.
        unsafe { rdma_destroy_event_channel(channel.cast()) };
    }
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_migrate_id(id: &Id, channel: Option<&Channel>) -> c_int {
    let Some(channel) = channel.filter(|_| !id.waits) else {
        return fail(libc::EOPNOTSUPP, -1);
    };
    let migrated = id.call("rdma_migrate_id", |manager, _| {
        manager.migrate(id.number, &channel.events);
        Ok(())
    });
    answer(migrated.map(|()| {
        id.unacknowledged.wait();
        let channel = ptr::from_ref(channel).cast_mut();
        id.cm.channel.set(channel.cast());
    }))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_bind_addr(id: &Id, addr: *const libc::sockaddr) -> c_int {
    // SAFETY: the caller has an address.
    let address = unsafe { sockaddr::read(addr) }.ok_or(libc::EINVAL);
    let bound = address.and_then(|address| {
        id.call("rdma_bind_addr", |manager, _| {
            manager.bind(id.number, address)
        })
    });
    answer(bound.and_then(|()| id.refresh()))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: &Id,
    from: *const libc::sockaddr,
    to: *const libc::sockaddr,
    _timeout: c_int,
) -> c_int {
    // SAFETY: the caller has an address, or none.
    let from = unsafe { sockaddr::read(from) };
    // SAFETY: the caller has an address.
    let Some(to) = (unsafe { sockaddr::read(to) }) else {
        return fail(libc::EINVAL, -1);
    };
    let has_neighbours = id.card().has_neighbours();
    let looks = is_any(to.ip()) && has_neighbours;
    let found = looks.then(|| registry::find(id.space, to.port()));
    let resolved = id.call("rdma_resolve_addr", |manager, _| {
        if let Some(from) = from
            && manager.endpoint(id.number)?.local.is_none()
        {
            manager.bind(id.number, from)?;
        }
        manager.resolve(id.number, to, found.flatten(), has_neighbours)
    });
    answer(wait(id, resolved))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) extern "C" fn rdma_resolve_route(id: &Id, _timeout: c_int) -> c_int {
    let resolved = id.call("rdma_resolve_route", |manager, _| {
        manager.resolve_route(id.number)
    });
    answer(wait(id, resolved))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_listen(id: &Id, backlog: c_int) -> c_int {
    let backlog = u32::try_from(backlog).unwrap_or(0);
    let listens = id.call("rdma_listen", |manager, _| {
        manager.listen(id.number, backlog)
    });
    answer(listens.and_then(|mut at| {
        if id.card().has_neighbours() {
            let gid = id.card().call(|locked| locked.nic.gid(0));
            if let (true, Some(gid)) = (is_any(at.ip()), gid) {
                at.set_ip(gid.to_canonical());
            }
            id.lock().announced = registry::announce(id.space, at);
        }
        id.refresh()
    }))
}

/// C's parameters, with the data of the message; a queue pair of the identifier's has the number. No parameters, and
/// depths of 255, are the most that the device has.
///
/// # Safety
///
/// The data of the parameters are there.
unsafe fn param(id: &Id, param: Option<&rdma_conn_param>) -> (rdma_conn_param, Vec<u8>) {
    // RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH.
    const MOST: u8 = 255;
    let max = id.card().call(|locked| locked.nic.profile().max_qp_rd_atom);
    let most = |depth: u8| if depth == MOST { max } else { depth };
    let param = param.copied().unwrap_or_else(|| rdma_conn_param {
        responder_resources: MOST,
        initiator_depth: MOST,
        retry_count: 7,
        rnr_retry_count: 7,
        ..rdma_conn_param::default()
    });
    // SAFETY: the caller has the data.
    let data = unsafe { bytes(param.private_data, param.private_data_len) };
    // SAFETY: a program that connects an identifier does not destroy its queue pair meanwhile.
    let qp_num = unsafe { id.qp() }.map(QueuePair::number);
    let filled = rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: most(param.responder_resources),
        initiator_depth: most(param.initiator_depth),
        flow_control: param.flow_control.min(1),
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq: param.srq.min(1),
        qp_num: qp_num.unwrap_or(param.qp_num),
    };
    (filled, data)
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_connect(id: &Id, with: Option<&rdma_conn_param>) -> c_int {
    // SAFETY: the caller has the data of the parameters.
    let (param, data) = unsafe { param(id, with) };
    let asked = id.call("rdma_connect", |manager, now| {
        manager.connect(id.number, now, param, &data)
    });
    answer(wait(id, asked))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_accept(id: &Id, with: Option<&rdma_conn_param>) -> c_int {
    // SAFETY: the caller has the data of the parameters.
    let (mut param, data) = unsafe { param(id, with) };
    let accepted = id.call("rdma_accept", |manager, _| {
        let own = &mut manager.endpoint(id.number)?.own;
        own.responder_resources = own.responder_resources.min(param.responder_resources);
        own.initiator_depth = own.initiator_depth.min(param.initiator_depth);
        if with.is_none() {
            param.responder_resources = own.responder_resources;
            param.initiator_depth = own.initiator_depth;
        }
        Ok(())
    });
    let is_connection = id.space == Space::Connections;
    let accepted = accepted.and_then(|()| {
        if is_connection {
            programs::to_rts(id)?;
        }
        id.card()
            .manage(|manager, now| manager.accept(id.number, now, param, &data))
    });
    if is_connection {
        return answer(wait(id, accepted));
    }
    if accepted.is_ok() && id.waits {
        // A datagram service waits for nobody; its event would hold up the end of the listener.
        programs::acknowledge(id);
    }
    answer(accepted)
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_establish(id: &Id) -> c_int {
    answer(id.call("rdma_establish", |manager, _| manager.establish(id.number)))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_reject(id: &Id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller has the data.
    let data = unsafe { bytes(data, len) };
    answer(id.call("rdma_reject", |manager, _| manager.reject(id.number, &data)))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_disconnect(id: &Id) -> c_int {
    let _errored = programs::modify(id, QueuePairState::Err);
    let asked = id.call("rdma_disconnect", |manager, now| {
        manager.disconnect(id.number, now)
    });
    answer(wait(id, asked))
}

/// Nothing has to be told: a queue pair in RTR receives.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
const extern "C" fn rdma_notify(_id: &Id, _event: u32) -> c_int {
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_set_option(
    id: &Id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    let number = match len {
        // SAFETY: the caller's value has this length.
        1 => i32::from(unsafe { value.cast::<u8>().read() }),
        // SAFETY: the caller's value has this length.
        4 => unsafe { value.cast::<i32>().read_unaligned() },
        _ => return fail(libc::EINVAL, -1),
    };
    let byte = u8::try_from(number & 0xff).unwrap_or(0);
    answer(id.call("rdma_set_option", |manager, _| {
        let endpoint = manager.endpoint(id.number)?;
        let is_bound = endpoint.local.is_some();
        let options = &mut endpoint.options;
        match (level, option) {
            (0, 0) => options.traffic_class = byte,
            (0, 1) if !is_bound => options.is_address_shared = number != 0,
            (0, 2) if !is_bound => options.is_v6_only = number != 0,
            (0, 3) if byte < 32 => options.ack_timeout = byte,
            (0, 1..=3) => return Err(libc::EINVAL),
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_init_qp_attr(
    id: &Id,
    attr: &mut ibv_qp_attr,
    mask: &mut MaybeUninit<c_int>,
) -> c_int {
    answer(put(mask, init_qp_attr(id, attr)))
}

/// Fills the attributes for the change to a state, and returns their mask.
pub(super) fn init_qp_attr(id: &Id, attr: &mut ibv_qp_attr) -> Result<c_int, Errno> {
    use QueuePairState::{Init, Rtr, Rts};
    let of = id.call("rdma_init_qp_attr", |it, _| it.attributes(id.number))?;
    let transport = transport(id.cm.qp_type).ok_or(libc::EINVAL)?;
    let mut connects = [Init, Rtr, Rts].into_iter();
    let state = connects.find(|state| *state as u32 == attr.qp_state);
    let state = state.ok_or(libc::EINVAL)?;
    *attr = ibv_qp_attr {
        qp_state: attr.qp_state,
        ..qp_attr(&of)
    };
    let needed = AttributeMask::needed(transport, state);
    Ok(needed.bits().cast_signed())
}

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
            let raw = sockaddr::gid(group.ip()).octets();
            let _detached = ibv_detach_mcast(qp, &ibv_gid { raw }, 0);
        }
        Ok(())
    }))
}
