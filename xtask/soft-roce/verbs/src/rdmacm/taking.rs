//! Taking events: C's form of them, and librdmacm's part in connecting.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use soft_nic::AddressVector;

use super::calls::rdma_destroy_id;
use super::events::{Arrived, EventKind};
use super::groups::group_gid;
use super::id::{Channel, Id};
use super::manager::{Manager, Sink, Space};
use super::programs;
use crate::abi::connection::{
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_param, rdma_ud_param,
};
use crate::address::{ah_attr, ibv_attach_mcast};
use crate::errno::{Errno, fail};
use crate::event::Unacknowledged;
use crate::sockaddr;

const CONNECT_ERROR: u32 = 6;

/// C's event, and what it points to.
#[repr(C)]
struct Event {
    event: rdma_cm_event,
    data: Vec<u8>,
    unacknowledged: Arc<Unacknowledged>,
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller has a channel that is alive.
    let own = unsafe { Channel::of(channel) };
    loop {
        let checked = own.card().verb("rdma_get_cm_event", |_| Ok(()));
        let arrived = match checked.and_then(|()| own.events.get(own.card())) {
            Ok(arrived) => arrived,
            Err(errno) => return fail(errno, -1),
        };
        let unacknowledged = Arc::clone(&arrived.unacknowledged);
        let (number, is_request) = (arrived.number, arrived.is_request());
        // SAFETY: the channel is alive, and the event is one of it.
        match unsafe { made(channel, arrived) } {
            Ok(made) => {
                // SAFETY: the caller has room for it.
                unsafe { event.write(made) };
                return 0;
            }
            Err(errno) => {
                unacknowledged.acknowledge(1);
                if is_request {
                    // It is rejected.
                    own.card().manage(|manager, _| manager.destroy(number));
                    return fail(errno, -1);
                }
                // Its identifier has ended since.
            }
        }
    }
}

/// C's form of an event, whose identifier knows what has happened.
///
/// # Safety
///
/// The channel is alive, and the event is one of it.
unsafe fn made(
    channel: *mut rdma_event_channel,
    arrived: Arrived,
) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the caller's channel is alive.
    let card = unsafe { Channel::of(channel) }.card();
    let mut listen_id = ptr::null_mut::<rdma_cm_id>();
    let id = match arrived.listener {
        None => card.manage(|manager, _| manager.endpoint(arrived.number).map(|it| it.id))?,
        Some(listener) => {
            let address = card.manage(|manager, _| {
                manager.taken(listener);
                manager.endpoint(listener).map(|it| it.id)
            })?;
            listen_id = ptr::with_exposed_provenance_mut(address);
            // SAFETY: a listener ends only when its events are acknowledged.
            let context = unsafe { (*listen_id).context };
            // SAFETY: a listener ends only when its events are acknowledged.
            let listens = unsafe { Id::of(listen_id) };
            let channel = if listens.waits {
                ptr::null_mut()
            } else {
                channel
            };
            let take = |it: &mut Manager, sink: Sink| {
                it.migrate(arrived.number, &sink.queue);
                Ok(arrived.number)
            };
            // SAFETY: the caller's channel is alive, or it is null.
            unsafe { Id::create(listens.host.clone(), channel, context, take) }?.expose_provenance()
        }
    };
    if id == 0 {
        // Its request has not been taken, or is being taken by another thread.
        return Err(libc::ENOENT);
    }
    let id = ptr::with_exposed_provenance_mut::<rdma_cm_id>(id);
    // SAFETY: an identifier ends only when its events are acknowledged.
    let own = unsafe { Id::of(id) };
    let space = own.space();
    if let Err(errno) = own.refresh() {
        if arrived.is_request() {
            // SAFETY: no program has it.
            unsafe { rdma_destroy_id(id) };
        }
        return Err(errno);
    }
    let (mut kind, mut status) = (arrived.kind.0, arrived.status);
    // SAFETY: the identifier is alive.
    let qp = unsafe { (*id).qp };
    match arrived.kind {
        EventKind::CONNECT_RESPONSE if !qp.is_null() => {
            // SAFETY: the identifier is alive.
            let connected = unsafe { programs::to_rts(id) };
            let connected = connected.and_then(|()| {
                own.card()
                    .manage(|manager, _| manager.establish(own.number))
            });
            kind = EventKind::ESTABLISHED.0;
            if let Err(errno) = connected {
                (kind, status) = (CONNECT_ERROR, -errno);
                let _told = own
                    .card()
                    .manage(|manager, _| manager.reject(own.number, &[]));
            }
        }
        EventKind::MULTICAST_JOIN if !qp.is_null() => {
            if let Some((path, ..)) = &arrived.datagrams {
                let gid = group_gid(path.destination);
                // SAFETY: the queue pair of an identifier is alive.
                status = -unsafe { ibv_attach_mcast(qp, &raw const gid, 0) };
                let mut state = own.lock();
                let is_it = |ip| sockaddr::gid(ip) == path.destination;
                let membership = state.memberships.iter_mut().find(|(ip, _)| is_it(*ip));
                membership
                    .into_iter()
                    .for_each(|(_, is_attached)| *is_attached = status == 0);
            }
        }
        _ => {}
    }
    let Arrived {
        data,
        param,
        datagrams,
        context,
        unacknowledged,
        ..
    } = arrived;
    let private_data = match data.is_empty() {
        true => ptr::with_exposed_provenance(context),
        false => data.as_ptr().cast::<c_void>(),
    };
    let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    // SAFETY: zeros are valid for both parts.
    let mut filled: rdma_param = unsafe { zeroed() };
    match (space, datagrams) {
        (Space::Connections, _) => {
            filled.conn = rdma_conn_param {
                private_data,
                private_data_len,
                responder_resources: param.serves,
                initiator_depth: param.asks,
                flow_control: u8::from(param.has_flow_control),
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry,
                srq: u8::from(param.has_srq),
                qp_num: param.qp_num,
            };
        }
        (Space::Datagrams, path) => {
            let unknown = (AddressVector::to(Ipv6Addr::UNSPECIFIED), 0, 0);
            let (path, qp_num, qkey) = path.unwrap_or(unknown);
            filled.ud = rdma_ud_param {
                private_data,
                private_data_len,
                ah_attr: ah_attr(&path),
                qp_num,
                qkey,
            };
        }
    }
    let event = rdma_cm_event {
        id,
        listen_id,
        event: kind,
        status,
        param: filled,
    };
    Ok(Box::into_raw(Box::new(Event {
        event,
        data,
        unacknowledged,
    }))
    .cast())
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return fail(libc::EINVAL, -1);
    }
    // SAFETY: `made` boxed it, and the caller does not use it again.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    drop(event.data);
    event.unacknowledged.acknowledge(1);
    0
}
