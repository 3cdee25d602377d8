//! Taking events: C's form of them, and librdmacm's part in connecting.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use soft_nic::AddressVector;

use super::events::{Arrived, EventKind};
use super::groups::group_gid;
use super::id::{Channel, Id};
use super::manager::Space;
use super::{manager, programs};
use crate::abi::connection::{
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_param, rdma_ud_param,
};
use crate::address::{ah_attr, ibv_attach_mcast};
use crate::errno::{Errno, fail};
use crate::event::Unacknowledged;

const CONNECT_ERROR: u32 = 6;

/// C's event, and what it points to.
#[repr(C)]
struct Event {
    event: rdma_cm_event,
    data: Vec<u8>,
    unacknowledged: Arc<Unacknowledged>,
}

#[unsafe(no_mangle)]
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
        // SAFETY: the channel is alive, and the event is one of it.
        match unsafe { made(channel, arrived) } {
            Ok(made) => {
                // SAFETY: the caller has room for it.
                unsafe { event.write(made) };
                return 0;
            }
            // Its identifier has ended since.
            Err(_) => unacknowledged.acknowledge(1),
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
    let (mut id, space) =
        card.manage(|manager, _| manager.endpoint(arrived.number).map(|it| (it.id, it.space)))?;
    let mut listen_id = ptr::null_mut::<rdma_cm_id>();
    if let Some(listener) = arrived.listener {
        let address = card.manage(|manager, _| {
            manager.taken(listener);
            manager.endpoint(listener).map(|it| it.id)
        })?;
        listen_id = ptr::with_exposed_provenance_mut(address);
        // SAFETY: a listener ends only when its events are acknowledged.
        let context = unsafe { (*listen_id).context };
        let own = card.manage(|manager, _| {
            let endpoint = manager.endpoint(arrived.number);
            endpoint.map(|it| Arc::clone(&it.sink.unacknowledged))
        })?;
        // SAFETY: a listener ends only when its events are acknowledged.
        let waits = unsafe { Id::of(listen_id) }.waits;
        let channel = if waits { Channel::create()? } else { channel };
        // SAFETY: it is alive, or was made a moment ago.
        let events = &unsafe { Channel::of(channel) }.events;
        card.manage(|manager, _| manager.migrate(arrived.number, events));
        let made = Id::made(channel, context, space, arrived.number, own, waits);
        id = made.expose_provenance();
        // SAFETY: it was made a moment ago.
        unsafe { Id::of(made) }.with(|endpoint| endpoint.id = id)?;
    }
    let id = ptr::with_exposed_provenance_mut::<rdma_cm_id>(id);
    // SAFETY: an identifier ends only when its events are acknowledged.
    let own = unsafe { Id::of(id) };
    let (mut kind, mut status) = (arrived.kind as u32, arrived.status);
    own.refresh()?;
    // SAFETY: the identifier is alive.
    let qp = unsafe { (*id).qp };
    match arrived.kind {
        EventKind::ConnectResponse if !qp.is_null() => {
            // SAFETY: the identifier is alive.
            let connected = unsafe { programs::to_rts(id) };
            let connected = connected.and_then(|()| {
                own.card()
                    .manage(|manager, _| manager.establish(own.number))
            });
            kind = EventKind::Established as u32;
            if let Err(errno) = connected {
                (kind, status) = (CONNECT_ERROR, -errno);
                let _told = own
                    .card()
                    .manage(|manager, _| manager.reject(own.number, &[]));
            }
        }
        EventKind::MulticastJoin if !qp.is_null() => {
            if let Some((path, ..)) = &arrived.datagrams {
                let gid = group_gid(path.destination);
                // SAFETY: the queue pair of an identifier is alive.
                status = -unsafe { ibv_attach_mcast(qp, &raw const gid, 0) };
                let mut state = own.lock();
                let is_it = |ip| manager::gid(ip) == path.destination;
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

#[unsafe(no_mangle)]
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
