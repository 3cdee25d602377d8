//! The functions of librdmacm.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::thread;

use libc::sockaddr;
use verbs_sys::{
    IBV_MTU_1024, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_MULTICAST_JOIN,
    RDMA_CM_EVENT_ROUTE_RESOLVED, ibv_qp_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_get_local_addr, rdma_get_peer_addr, rdma_port_space,
};

use super::{Arrival, Channel, Event, Id, Manager, with};

/// Runs a function that returns 0, or -1 with `errno` set.
fn answer(call: impl FnOnce(&mut Manager) -> Result<(), c_int>) -> c_int {
    with(call).map_or_else(|errno| fail(errno, -1), |()| 0)
}

fn fail<T>(errno: c_int, value: T) -> T {
    // SAFETY: this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
    value
}

/// Makes a descriptor readable.
pub(super) fn signal(fd: c_int) {
    let one = 1_u64;
    // SAFETY: an eventfd takes 8 bytes.
    let written = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    assert_eq!(written, 8);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let made = with(|manager| {
        manager.called("rdma_create_event_channel")?;
        // Nonblocking from the start under Miri, which cannot change it.
        let flags = if cfg!(miri) { libc::EFD_NONBLOCK } else { 0 };
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
        assert!(fd >= 0, "no more descriptors");
        let channel = Box::into_raw(Box::new(Channel {
            channel: rdma_event_channel { fd },
            events: VecDeque::new(),
        }));
        manager.channels.push(channel);
        Ok(channel.cast())
    });
    made.unwrap_or_else(|errno| fail(errno, ptr::null_mut()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    with(|manager| {
        let channel = channel.cast::<Channel>();
        manager.channels.retain(|alive| *alive != channel);
        // SAFETY: the caller has it from above.
        unsafe {
            libc::close((*channel).channel.fd);
            drop(Box::from_raw(channel));
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    _context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    answer(|manager| {
        manager.called("rdma_create_id")?;
        // SAFETY: the caller has room for it.
        unsafe { *id = manager.new_id(channel.cast(), ps).cast() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    answer(|manager| {
        manager.called("rdma_destroy_id")?;
        manager.destroyers.push(thread::current().id());
        manager.end_id(id.cast());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    answer(|manager| {
        manager.called("rdma_migrate_id")?;
        // SAFETY: the caller has both from above.
        unsafe {
            if (*id.cast::<Id>()).unacked > 0 {
                manager
                    .wrong
                    .push("moved an identifier with an event that is not acknowledged".into());
            }
            (*id).channel = channel;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    answer(|manager| {
        manager.refused("rdma_get_cm_event")?;
        // SAFETY: the caller has the channel from above, and room for the event.
        unsafe {
            let channel = channel.cast::<Channel>();
            let fd = (*channel).channel.fd;
            if !cfg!(miri) && libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0 {
                return Err(libc::EDEADLK);
            }
            let taken = (*channel).events.pop_front().ok_or(libc::EAGAIN)?;
            if (*channel).events.is_empty() {
                let mut count = 0_u64;
                libc::read(fd, (&raw mut count).cast(), 8);
            }
            (*(*taken).event.id.cast::<Id>()).unacked += 1;
            if !manager.context.is_null() {
                // From the event on, the identifier has a context.
                (*(*taken).event.id).verbs = manager.context;
                (*(*taken).event.id).port_num = 1;
            }
            *event = taken.cast();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    with(|_| {
        // SAFETY: the caller has it from above, and its identifier is alive.
        unsafe {
            let event = Box::from_raw(event.cast::<Event>());
            (*event.event.id.cast::<Id>()).unacked -= 1;
        }
    });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    _id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    answer(|manager| {
        manager.called("rdma_init_qp_attr")?;
        // SAFETY: the caller has both.
        unsafe {
            let attr = &mut *attr;
            attr.port_num = 1;
            attr.path_mtu = IBV_MTU_1024;
            (attr.max_dest_rd_atomic, attr.max_rd_atomic) = manager.depths;
            attr.qp_access_flags = !0;
            let set = match attr.qp_state {
                IBV_QPS_INIT => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                IBV_QPS_RTR => {
                    IBV_QP_AV
                        | IBV_QP_PATH_MTU
                        | IBV_QP_DEST_QPN
                        | IBV_QP_RQ_PSN
                        | IBV_QP_MAX_DEST_RD_ATOMIC
                        | IBV_QP_MIN_RNR_TIMER
                }
                _ => {
                    IBV_QP_TIMEOUT
                        | IBV_QP_RETRY_CNT
                        | IBV_QP_RNR_RETRY
                        | IBV_QP_SQ_PSN
                        | IBV_QP_MAX_QP_RD_ATOMIC
                }
            };
            *mask = (IBV_QP_STATE | set).0.cast_signed();
        }
        Ok(())
    })
}

/// Functions that take an identifier and what they pass on, and need do nothing.
macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_id: *mut rdma_cm_id, $($arg: $type),*) -> c_int {
            $(let _ = $arg;)*
            answer(|manager| manager.called(stringify!($name)))
        }
    )*};
}

passed_on! {
    rdma_bind_addr(addr: *mut sockaddr);
    rdma_listen(backlog: c_int);
    rdma_establish();
    rdma_disconnect();
    rdma_set_option(level: c_int, name: c_int, value: *mut c_void, len: usize);
    rdma_leave_multicast(addr: *mut sockaddr);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    _from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    answer(|manager| {
        manager.called("rdma_resolve_addr")?;
        if manager.resolves {
            // SAFETY: the identifier is alive, and has room for the addresses; that of the peer is IPv4, and the
            // caller's.
            unsafe {
                let to = *to.cast::<libc::sockaddr_in>();
                *rdma_get_peer_addr(id).cast() = to;
                *rdma_get_local_addr(id).cast() = to;
            }
            manager.arrive(id.cast(), Arrival::of(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    answer(|manager| {
        manager.called("rdma_resolve_route")?;
        if manager.resolves {
            manager.arrive(id.cast(), Arrival::of(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    answer(|manager| {
        manager.called("rdma_join_multicast")?;
        if manager.joins {
            manager.arrive(id.cast(), Arrival::of(RDMA_CM_EVENT_MULTICAST_JOIN, 0));
        }
        Ok(())
    })
}

/// Functions that connect: their parameters are recorded.
macro_rules! connects {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
            answer(|manager| {
                // SAFETY: the caller's struct.
                let mut param = unsafe { *param };
                param.private_data = ptr::null();
                manager.params.push(param);
                manager.called(stringify!($name))
            })
        }
    )*};
}

connects! { rdma_connect rdma_accept }

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(_id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let data = data.cast::<u8>();
    let len = usize::from(len);
    // SAFETY: the caller's bytes, this many.
    let data = (0..len).map(|at| unsafe { data.add(at).read() }).collect();
    answer(|manager| {
        manager.rejections.push(data);
        manager.called("rdma_reject")
    })
}
