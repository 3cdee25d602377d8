//! librdmacm's functions, as far as they are those of the kernel.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use soft_nic::AttributeMask;

use super::events::Param;
use super::id::{Channel, Id, bytes};
use super::manager::{Manager, Space, is_any};
use super::programs::{INIT, RTR, RTS};
use super::taking::rdma_ack_cm_event;
use super::{programs, registry};
use crate::abi::attributes::ibv_qp_attr;
use crate::abi::connection::{rdma_cm_id, rdma_conn_param, rdma_event_channel};
use crate::errno::{answer, fail};
use crate::network::Host;
use crate::queue_pair::qp_attr;
use crate::sockaddr;

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    Channel::create(Host::current()).unwrap_or_else(|errno| fail(errno, ptr::null_mut()))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: `Channel::create` boxed it, and the caller does not use it again.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    let host = match channel.is_null() {
        true => Host::current(),
        // SAFETY: the caller's channel is alive.
        false => unsafe { Channel::of(channel) }.host.clone(),
    };
    let space = Space::from_number(space).ok_or(libc::EPROTONOSUPPORT);
    let created = space.and_then(|space| {
        let card = host.cards().first().ok_or(libc::ENODEV)?;
        card.verb("rdma_create_id", |_| Ok(()))?;
        let number = host.number();
        let make = |it: &mut Manager, sink| Ok(it.create(number, space, sink));
        // SAFETY: the caller's channel is alive, or null.
        unsafe { Id::create(host, channel, context, make) }
    });
    answer(created.map(|created| {
        // SAFETY: the caller has room for it.
        unsafe { id.write(created) };
    }))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    own.card().begin("rdma_destroy_id");
    own.card().manage(|manager, _| manager.destroy(own.number));
    let waits = own.waits;
    // SAFETY: the identifier is alive.
    let &rdma_cm_id { channel, event, .. } = unsafe { &*id };
    if waits && !event.is_null() {
        // SAFETY: the identifier has it from `rdma_get_cm_event`.
        unsafe { rdma_ack_cm_event(event) };
    }
    own.unacknowledged.wait();
    // SAFETY: `Id::create` boxed it, and the caller does not use it again.
    drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    if waits {
        // SAFETY: it was the identifier's own.
        unsafe { rdma_destroy_event_channel(channel) };
    }
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    if own.waits || channel.is_null() {
        return fail(libc::EOPNOTSUPP, -1);
    }
    // SAFETY: the caller has a channel that is alive.
    let events = &unsafe { Channel::of(channel) }.events;
    let migrated = own.call("rdma_migrate_id", |manager, _| {
        manager.migrate(own.number, events);
        Ok(())
    });
    answer(migrated.map(|()| {
        own.unacknowledged.wait();
        // SAFETY: the caller's identifier, of which nobody takes events now.
        unsafe { (*id).channel = channel };
    }))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has an address.
    let address = unsafe { sockaddr::read(addr) }.ok_or(libc::EINVAL);
    answer(address.and_then(|address| {
        own.call("rdma_bind_addr", |manager, _| {
            manager.bind(own.number, address)
        })?;
        own.refresh()
    }))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout: c_int,
) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has an address, or none.
    let from = unsafe { sockaddr::read(from) };
    // SAFETY: the caller has an address.
    let to = unsafe { sockaddr::read(to) }.ok_or(libc::EINVAL);
    let resolved = to.and_then(|to| {
        let has_neighbours = own.card().has_neighbours();
        let looks = is_any(to.ip()) && has_neighbours;
        let found = looks.then(|| registry::find(own.space(), to.port()));
        own.call("rdma_resolve_addr", |manager, _| {
            if let Some(from) = from
                && !manager.is_bound(own.number)
            {
                manager.bind(own.number, from)?;
            }
            manager.resolve(own.number, to, found.flatten(), has_neighbours)
        })
    });
    // SAFETY: the identifier is alive.
    unsafe { programs::complete(id, resolved) }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    let resolved = own.call("rdma_resolve_route", |manager, _| {
        manager.resolve_route(own.number)
    });
    // SAFETY: the identifier is alive.
    unsafe { programs::complete(id, resolved) }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    let backlog = u32::try_from(backlog).unwrap_or(0);
    let listens = own.call("rdma_listen", |manager, _| {
        manager.listen(own.number, backlog)
    });
    answer(listens.and_then(|mut at| {
        if own.card().has_neighbours() {
            let gid = own.card().call(|locked| locked.nic.gid(0));
            if let (true, Some(gid)) = (is_any(at.ip()), gid) {
                at.set_ip(gid.to_canonical());
            }
            own.lock().announced = registry::announce(own.space(), at);
        }
        own.refresh()
    }))
}

/// C's parameters, with the data of the message; a queue pair of the identifier's has the number. No parameters, and
/// depths of 255, are the most that the device has.
///
/// # Safety
///
/// The identifier is alive, and the parameters and their data are there, unless the pointer is null.
unsafe fn param(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> (Param, Vec<u8>) {
    // RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH.
    const MOST: u8 = 255;
    // SAFETY: the caller's identifier is alive.
    let own = unsafe { Id::of(id) };
    let max = own
        .card()
        .call(|locked| locked.nic.profile().max_qp_rd_atom);
    let most = |depth: u8| if depth == MOST { max } else { depth };
    let mut data = Vec::new();
    let mut filled = Param {
        serves: max,
        asks: max,
        retry_count: 7,
        rnr_retry: 7,
        ..Param::NONE
    };
    // SAFETY: the caller has them, or null.
    if let Some(param) = unsafe { param.as_ref() } {
        // SAFETY: the caller has the data.
        data = unsafe { bytes(param.private_data, param.private_data_len) };
        filled = Param {
            qp_num: param.qp_num,
            serves: most(param.responder_resources),
            asks: most(param.initiator_depth),
            retry_count: param.retry_count.min(7),
            rnr_retry: param.rnr_retry_count.min(7),
            has_srq: param.srq != 0,
            has_flow_control: param.flow_control != 0,
        };
    }
    // SAFETY: the identifier is alive.
    if let Some(qp_num) = unsafe { programs::qp_num(id) } {
        filled.qp_num = qp_num;
    }
    (filled, data)
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, with: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has the parameters.
    let (param, data) = unsafe { param(id, with) };
    let asked = own.call("rdma_connect", |manager, now| {
        manager.connect(own.number, now, param, &data)
    });
    // SAFETY: the identifier is alive.
    unsafe { programs::complete(id, asked) }
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, with: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has the parameters.
    let (mut param, data) = unsafe { param(id, with) };
    let accepted = own.call("rdma_accept", |manager, _| {
        let own = &mut manager.endpoint(own.number)?.own;
        (own.serves, own.asks) = (own.serves.min(param.serves), own.asks.min(param.asks));
        if with.is_null() {
            (param.serves, param.asks) = (own.serves, own.asks);
        }
        Ok(())
    });
    let is_connection = own.space() == Space::Connections;
    let accepted = accepted.and_then(|()| {
        if is_connection {
            // SAFETY: the identifier is alive.
            unsafe { programs::to_rts(id) }?;
        }
        own.card()
            .manage(|manager, now| manager.accept(own.number, now, param, &data))
    });
    if is_connection || accepted.is_err() {
        // SAFETY: the identifier is alive.
        return unsafe { programs::complete(id, accepted) };
    }
    // A datagram service waits for nobody; its event would hold up the end of the listener.
    // SAFETY: the identifier is alive.
    let event = std::mem::replace(unsafe { &mut (*id).event }, ptr::null_mut());
    if own.waits && !event.is_null() {
        // SAFETY: the identifier had it from `rdma_get_cm_event`.
        unsafe { rdma_ack_cm_event(event) };
    }
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    answer(own.call("rdma_establish", |manager, _| manager.establish(own.number)))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has the data.
    let data = unsafe { bytes(data, len) };
    answer(own.call("rdma_reject", |manager, _| {
        manager.reject(own.number, &data)
    }))
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the identifier is alive.
    let _errored = unsafe { programs::to_err(id) };
    let asked = own.call("rdma_disconnect", |manager, now| {
        manager.disconnect(own.number, now)
    });
    // SAFETY: the identifier is alive.
    unsafe { programs::complete(id, asked) }
}

/// Nothing has to be told: a queue pair in RTR receives.
#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
const extern "C" fn rdma_notify(_id: *mut rdma_cm_id, _event: u32) -> c_int {
    0
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    let number = match len {
        // SAFETY: the caller's value has this length.
        1 => i32::from(unsafe { value.cast::<u8>().read() }),
        // SAFETY: the caller's value has this length.
        4 => unsafe { value.cast::<i32>().read_unaligned() },
        _ => return fail(libc::EINVAL, -1),
    };
    let byte = u8::try_from(number & 0xff).unwrap_or(0);
    answer(own.call("rdma_set_option", |manager, _| {
        let endpoint = manager.endpoint(own.number)?;
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
pub(super) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    use AttributeMask as M;
    // SAFETY: the caller has an identifier that is alive.
    let own = unsafe { Id::of(id) };
    // SAFETY: the caller has it.
    let attr = unsafe { &mut *attr };
    let of = match own.call("rdma_init_qp_attr", |it, _| it.attributes(own.number)) {
        Ok(of) => of,
        Err(errno) => return fail(errno, -1),
    };
    let peer = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY;
    let set = match (own.space(), attr.qp_state) {
        (Space::Datagrams, INIT) => M::PKEY_INDEX | M::PORT | M::QKEY,
        (Space::Datagrams, RTR) => M::empty(),
        (Space::Datagrams, RTS) => M::SQ_PSN,
        (Space::Connections, INIT) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        (Space::Connections, RTR) => peer | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        (Space::Connections, RTS) => retries | M::MAX_QP_RD_ATOMIC | M::SQ_PSN,
        _ => return fail(libc::EINVAL, -1),
    };
    *attr = ibv_qp_attr {
        qp_state: attr.qp_state,
        ..qp_attr(&of)
    };
    // SAFETY: the caller has room for it.
    unsafe { mask.write((M::STATE | set).bits().cast_signed()) };
    0
}
