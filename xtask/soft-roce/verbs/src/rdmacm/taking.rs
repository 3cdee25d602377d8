//! Taking events: C's form of them, and librdmacm's part in connecting.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::calls::rdma_destroy_id;
use super::events::{Arrived, EventKind};
use super::id::{Channel, Id};
use super::manager::{Manager, Sink, Space};
use super::programs;
use crate::abi::attributes::ibv_gid;
use crate::abi::connection::{rdma_cm_event, rdma_conn_param, rdma_ud_param};
use crate::address::{ah_attr, ibv_attach_mcast};
use crate::errno::{Errno, answer, fail, put};
use crate::event::Unacknowledged;

/// C's event, and what it points to.
#[repr(C)]
struct Event {
    event: rdma_cm_event,
    data: Vec<u8>,
    unacknowledged: Arc<Unacknowledged>,
}

#[cfg_attr(feature = "rdmacm", unsafe(no_mangle))]
extern "C" fn rdma_get_cm_event(
    channel: &Channel,
    event: &mut MaybeUninit<*mut rdma_cm_event>,
) -> c_int {
    answer(put(event, next(channel)))
}

/// Takes the next event of a channel, and waits for it.
pub(super) fn next(channel: &Channel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        channel.card().verb("rdma_get_cm_event", |_| Ok(()))?;
        let (unacknowledged, arrived) = channel.events.get(channel.card())?;
        let (number, is_request) = (arrived.number, arrived.listener.is_some());
        let made = made(channel, &unacknowledged, arrived);
        if made.is_ok() {
            return made;
        }
        unacknowledged.acknowledge(1);
        if is_request {
            // It is rejected.
            channel.card().manage(|manager, _| manager.destroy(number));
            return made;
        }
        // Its identifier has ended since.
    }
}

/// C's form of an event of the channel, whose identifier knows what has happened.
fn made(
    channel: &Channel,
    unacknowledged: &Arc<Unacknowledged>,
    arrived: Arrived,
) -> Result<*mut rdma_cm_event, Errno> {
    let find = |number| {
        let found = channel
            .card()
            .manage(|manager, _| manager.endpoint(number).map(|it| it.id));
        found.map(ptr::with_exposed_provenance_mut::<Id>)
    };
    let mut listen_id = ptr::null_mut();
    let id = match arrived.listener {
        None => find(arrived.number)?,
        Some(listener) => {
            channel.card().manage(|manager, _| manager.taken(listener));
            listen_id = find(listener)?;
            // SAFETY: a listener ends only when its events are acknowledged.
            let listens = unsafe { &*listen_id };
            let channel = (!listens.waits).then_some(channel);
            let take = |it: &mut Manager, sink: Sink| {
                it.migrate(arrived.number, &sink.queue);
                Ok(arrived.number)
            };
            Id::create(listens.host.clone(), channel, listens.cm.context, take)?
        }
    };
    // SAFETY: an identifier ends only when its events are acknowledged. It is null if its request has not been taken, or
    // is being taken by another thread.
    let own = unsafe { id.as_ref() }.ok_or(libc::ENOENT)?;
    if let Err(errno) = own.refresh() {
        if arrived.listener.is_some() {
            // SAFETY: no program has it.
            unsafe { rdma_destroy_id(id) };
        }
        return Err(errno);
    }
    let (mut kind, mut status) = (arrived.kind, arrived.status);
    // SAFETY: a program that takes events of an identifier does not destroy its queue pair meanwhile.
    match (arrived.kind, unsafe { own.qp() }) {
        (EventKind::CONNECT_RESPONSE, Some(_)) => {
            kind = EventKind::ESTABLISHED;
            let connected = programs::to_rts(own)
                .and_then(|()| own.card().manage(|it, _| it.establish(own.number)));
            if let Err(errno) = connected {
                (kind, status) = (EventKind::CONNECT_ERROR, -errno);
                let _told = own.card().manage(|it, _| it.reject(own.number, &[]));
            }
        }
        (EventKind::MULTICAST_JOIN, Some(qp)) => {
            if let Some((path, ..)) = &arrived.datagrams {
                let raw = path.destination.octets();
                status = -ibv_attach_mcast(qp, &ibv_gid { raw }, 0);
            }
        }
        _ => {}
    }
    let data = arrived.data;
    let private_data = match data.is_empty() {
        true => ptr::with_exposed_provenance(arrived.context),
        false => data.as_ptr().cast::<c_void>(),
    };
    let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    let mut event = rdma_cm_event {
        id: id.cast(),
        listen_id: listen_id.cast(),
        event: kind.0,
        status,
        ..rdma_cm_event::default()
    };
    match own.space {
        Space::Connections => {
            event.param.conn = rdma_conn_param {
                private_data,
                private_data_len,
                ..arrived.param
            };
        }
        Space::Datagrams => {
            let (path, qp_num, qkey) = arrived.datagrams.unwrap_or_default();
            event.param.ud = rdma_ud_param {
                private_data,
                private_data_len,
                ah_attr: ah_attr(&path),
                qp_num,
                qkey,
            };
        }
    }
    let made = Box::new(Event {
        event,
        data,
        unacknowledged: Arc::clone(unacknowledged),
    });
    Ok(Box::into_raw(made).cast())
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
