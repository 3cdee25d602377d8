//! An identifier of the connection manager, with an event channel of its own.
#![expect(unsafe_code, reason = "owns an `rdma_cm_id`")]

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use verbs_sys::{
    IBV_TRANSPORT_IWARP, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, RDMA_PS_UDP, ibv_qp_attr, ibv_qp_state, rdma_ack_cm_event, rdma_bind_addr,
    rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_event_channel, rdma_get_cm_event,
    rdma_get_local_addr, rdma_get_peer_addr, rdma_init_qp_attr, rdma_listen, rdma_migrate_id,
    rdma_port_space, rdma_reject, rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};

use super::address;
use super::event::Event;
use super::private_data::{MAX_IWARP, Message};
use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;
use crate::codes::{QpAttrMask, QpState};
use crate::device::Context;
use crate::error::cm_failure::CmFailure;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Process, fd, log, ret};
use crate::queue_pair::QpAttr;

/// An event channel: the descriptor of one identifier.
struct EventChannel {
    channel: NonNull<rdma_event_channel>,
    process: Process,
}

/// An identifier, which is destroyed before its channel, in the process that made them.
pub(super) struct Id {
    id: NonNull<rdma_cm_id>,
    channel: EventChannel,
}

// SAFETY: librdmacm binds nothing to a thread.
unsafe impl Send for EventChannel {}
// SAFETY: by reference only the number of its descriptor is read, which does not change.
unsafe impl Sync for EventChannel {}
// SAFETY: librdmacm binds nothing to a thread.
unsafe impl Send for Id {}
// SAFETY: by reference only fields are read, which change only in functions that have it exclusively.
unsafe impl Sync for Id {}

impl EventChannel {
    fn new() -> Result<Self> {
        // SAFETY: the call has no arguments.
        let call = || unsafe { rdma_create_event_channel() };
        let channel = Self {
            channel: ret::non_null("rdma_create_event_channel", call)?,
            process: Process::current(),
        };
        // Waiting is done by poll(2), with a bound; reading must never block.
        fd::set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and the field is not changed.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the channel keeps it open, and is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: the channel is alive, and its identifier has been destroyed or moved to
            // another.
            unsafe { rdma_destroy_event_channel(self.channel.as_ptr()) };
        }
    }
}

impl Id {
    /// A new identifier: for connections (`RDMA_PS_TCP`), or for datagrams (`RDMA_PS_UDP`).
    pub(super) fn new(port_space: rdma_port_space) -> Result<Self> {
        let channel = EventChannel::new()?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is alive, and kept beside the identifier; `id` is a local.
        let ret = unsafe {
            rdma_create_id(
                channel.channel.as_ptr(),
                &raw mut id,
                ptr::null_mut(),
                port_space,
            )
        };
        ret::minus_one("rdma_create_id", ret)?;
        let id = ret::non_null("rdma_create_id", || id)?;
        Ok(Self { id, channel })
    }

    /// Takes over the identifier of a connect request, and gives it a channel of its own.
    ///
    /// # Safety
    ///
    /// - `id` is of a request whose event has been acknowledged, and nothing else destroys it.
    unsafe fn of_request(id: NonNull<rdma_cm_id>) -> Result<Self> {
        let moved = EventChannel::new().and_then(|channel| {
            // SAFETY: both are alive, and no event of the identifier has been taken but not acknowledged:
            // its channel is the listener's, of which this thread alone takes events.
            let ret = unsafe { rdma_migrate_id(id.as_ptr(), channel.channel.as_ptr()) };
            ret::minus_one("rdma_migrate_id", ret)?;
            Ok(channel)
        });
        match moved {
            Ok(channel) => Ok(Self { id, channel }),
            Err(error) => {
                // The peer is rejected.
                // SAFETY: the caller hands it over, and it is not used after this.
                let _destroyed = unsafe { rdma_destroy_id(id.as_ptr()) };
                Err(error)
            }
        }
    }

    pub(super) const fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// Takes the next event of an identifier that is no listener; `None` if there is none.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            match self.take_event()? {
                // A hint: the path to the peer still works.
                Some((event, _)) if event.kind == CmEventType::ADDR_CHANGE => {}
                other => return Ok(other.map(|(event, _)| event)),
            }
        }
    }

    /// Takes the next event, and the identifier of a connect request.
    pub(super) fn take_event(&mut self) -> Result<Option<(Event, Option<Self>)>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive, and `raw` is a local.
        let ret = unsafe { rdma_get_cm_event(self.channel.channel.as_ptr(), &raw mut raw) };
        match ret::minus_one("rdma_get_cm_event", ret) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the identifier is alive, and the field is not changed.
        let is_of_datagrams = unsafe { (*self.as_ptr()).ps } == RDMA_PS_UDP;
        // SAFETY: the event is new, not acknowledged, and of this identifier or of a request for
        // the same service.
        let event = unsafe { Event::copied(raw, is_of_datagrams) };
        // SAFETY: the event has not been acknowledged.
        let of = unsafe { (*raw).id };
        // SAFETY: the event is acknowledged once, and not used after this.
        let ret = unsafe { rdma_ack_cm_event(raw) };
        ret::minus_one("rdma_ack_cm_event", ret)?;
        let request = match (event.kind, NonNull::new(of)) {
            // SAFETY: its event has been acknowledged, and it belongs to who takes the event.
            (CmEventType::CONNECT_REQUEST, Some(id)) => Some(unsafe { Self::of_request(id) }?),
            _ => None,
        };
        Ok(Some((event, request)))
    }

    /// Waits until there may be an event; `false` if the deadline passes first.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<bool> {
        fd::wait_readable(self.as_fd(), deadline)
    }

    /// Binds it to a local address.
    pub(super) fn bind(&mut self, addr: SocketAddr) -> Result<()> {
        let mut addr = address::to_c(addr);
        // SAFETY: the identifier is alive, and the address a local.
        let ret = unsafe { rdma_bind_addr(self.as_ptr(), (&raw mut addr).cast()) };
        ret::minus_one("rdma_bind_addr", ret)
    }

    /// Begins to find the device for an address.
    pub(super) fn resolve_addr(&mut self, addr: SocketAddr, timeout: Duration) -> Result<()> {
        let mut addr = address::to_c(addr);
        let (to, millis) = ((&raw mut addr).cast(), millis(timeout));
        // SAFETY: the identifier is alive, and the address a local.
        let ret = unsafe { rdma_resolve_addr(self.as_ptr(), ptr::null_mut(), to, millis) };
        ret::minus_one("rdma_resolve_addr", ret)
    }

    /// Begins to find the route; the identifier has a device.
    pub(super) fn resolve_route(&mut self, timeout: Duration) -> Result<()> {
        // SAFETY: the identifier is alive, and its device is known: the library reads its transport.
        let ret = unsafe { rdma_resolve_route(self.as_ptr(), millis(timeout)) };
        ret::minus_one("rdma_resolve_route", ret)
    }

    /// Asks the peer; the identifier has a device and a route.
    pub(super) fn connect(&mut self, data: &PrivateData, qp: &QpParam) -> Result<()> {
        let mut param = Self::conn_param(data, qp);
        // SAFETY: the identifier is alive, and the parameters and the data outlive the call.
        let ret = unsafe { rdma_connect(self.as_ptr(), &raw mut param) };
        ret::minus_one("rdma_connect", ret)
    }

    /// An error in the child of a fork, where the identifier is the parent's.
    pub(super) fn check_process(&self) -> Result<()> {
        let object = "identifier of the connection manager";
        match self.channel.process.is_current() {
            true => Ok(()),
            false => Err(Error::OtherProcess { object }),
        }
    }

    /// Rejects the peer of a request.
    pub(super) fn reject(&self, data: &PrivateData) -> Result<()> {
        self.check_process()?;
        let bytes = data.as_bytes();
        let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        // SAFETY: the identifier is alive, and the data is of this length.
        let ret = unsafe { rdma_reject(self.as_ptr(), bytes.as_ptr().cast(), len) };
        ret::minus_one("rdma_reject", ret)
    }

    /// Listens at the address that it is bound to.
    pub(super) fn listen(&mut self, backlog: u16) -> Result<()> {
        // SAFETY: the identifier is alive.
        let ret = unsafe { rdma_listen(self.as_ptr(), c_int::from(backlog)) };
        ret::minus_one("rdma_listen", ret)
    }

    pub(super) fn set_tos(&mut self, tos: u8) -> Result<()> {
        self.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, tos)
    }

    pub(super) fn set_reuse_addr(&mut self, on: bool) -> Result<()> {
        let on = c_int::from(on);
        self.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, on)
    }

    pub(super) fn set_ipv6_only(&mut self, on: bool) -> Result<()> {
        let on = c_int::from(on);
        self.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, on)
    }

    /// Sets an option: a level, a name and a value.
    pub(super) fn set_option<T: Copy>(
        &mut self,
        level: u32,
        name: u32,
        mut value: T,
    ) -> Result<()> {
        let (level, name) = (level.cast_signed(), name.cast_signed());
        let (place, len) = ((&raw mut value).cast::<c_void>(), size_of::<T>());
        // SAFETY: the identifier is alive, and the value is a local of this length.
        let ret = unsafe { rdma_set_option(self.as_ptr(), level, name, place, len) };
        ret::minus_one("rdma_set_option", ret)
    }

    /// The attributes for a change to this state, and which of them are set.
    pub(super) fn qp_attr(&mut self, state: QpState) -> Result<QpAttr> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state(state.as_raw()),
            ..ibv_qp_attr::default()
        };
        let mut mask: c_int = 0;
        // SAFETY: the identifier is alive, and both places are locals.
        let ret = unsafe { rdma_init_qp_attr(self.as_ptr(), &raw mut attr, &raw mut mask) };
        ret::minus_one("rdma_init_qp_attr", ret)?;
        let mask = QpAttrMask::from_bits_retain(mask.cast_unsigned());
        Ok(QpAttr::from_raw(attr, mask))
    }

    /// Parameters that both sides send when they connect. The data is read before the call that
    /// gets it returns.
    pub(super) fn conn_param(data: &PrivateData, qp: &QpParam) -> rdma_conn_param {
        let bytes = data.as_bytes();
        rdma_conn_param {
            private_data: bytes.as_ptr().cast(),
            private_data_len: u8::try_from(bytes.len()).unwrap_or(u8::MAX),
            responder_resources: qp.max_dest_rd_atomic,
            initiator_depth: qp.max_rd_atomic,
            flow_control: 0,
            retry_count: qp.retry_cnt,
            rnr_retry_count: qp.rnr_retry,
            srq: u8::from(qp.has_srq),
            qp_num: qp.qp_num,
        }
    }

    /// The name of the device; `None` before one has been found.
    pub(super) fn device_name(&self) -> Option<String> {
        // SAFETY: the identifier is alive; the field changes in calls that have it exclusively.
        let context = unsafe { (*self.as_ptr()).verbs };
        if context.is_null() {
            return None;
        }
        // SAFETY: librdmacm keeps the context of an identifier open.
        let device = unsafe { (*context).device };
        // SAFETY: an open context keeps its device.
        let name = unsafe { &raw const (*device).name };
        // SAFETY: the name is in the device, which the open context keeps, and ends with a zero.
        let name = unsafe { CStr::from_ptr(name.cast()) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Whether this is a context of the identifier's device.
    pub(super) fn is_on(&self, context: &Context) -> bool {
        self.device_name().as_deref() == Some(context.device().name())
    }

    /// An error if the context of a queue pair is another device's, or the address leads to no device.
    pub(super) fn check_is_on(&self, context: &Context) -> Result<()> {
        let child = "the queue pair";
        if self.device_name().is_none() {
            let addr = self.peer_addr().or_else(|| self.local_addr());
            return Err(Error::ConnectionManager {
                step: "finding the device",
                failure: Box::new(CmFailure::no_device(addr)),
            });
        }
        let is_on = self.is_on(context);
        is_on.then_some(()).ok_or(Error::ForeignContext { child })
    }

    /// The private data for a message, of which InfiniBand and RoCE have room for `max` bytes.
    pub(super) fn private_data(&self, message: Message<'_>, max: u8) -> Result<PrivateData> {
        let max = if self.is_iwarp() { MAX_IWARP } else { max };
        message.encode(max)
    }

    fn is_iwarp(&self) -> bool {
        // SAFETY: the identifier is alive; the field changes in calls that have it exclusively.
        let context = unsafe { (*self.as_ptr()).verbs };
        if context.is_null() {
            return false;
        }
        // SAFETY: librdmacm keeps the context of an identifier open.
        let device = unsafe { (*context).device };
        // SAFETY: an open context keeps its device.
        let transport = unsafe { (*device).transport_type };
        transport == IBV_TRANSPORT_IWARP
    }

    /// The number of the port; 0 before one has been found.
    pub(super) fn port_num(&self) -> u8 {
        // SAFETY: the identifier is alive; the field changes in calls that have it exclusively.
        unsafe { (*self.as_ptr()).port_num }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive.
        let addr = unsafe { rdma_get_local_addr(self.as_ptr()) };
        // SAFETY: the address is that of the identifier, which is borrowed.
        unsafe { address::from_c(addr) }
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive.
        let addr = unsafe { rdma_get_peer_addr(self.as_ptr()) };
        // SAFETY: the address is that of the identifier, which is borrowed.
        unsafe { address::from_c(addr) }
    }
}

/// A time limit of the kernel: at least one millisecond.
fn millis(timeout: Duration) -> c_int {
    let millis = timeout.as_nanos().div_ceil(1_000_000).max(1);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// Parameters of a queue pair that its peer needs; only the number, if it is for datagrams.
#[derive(Debug, Default)]
pub(super) struct QpParam {
    pub(super) qp_num: u32,
    pub(super) has_srq: bool,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
}

impl AsFd for Id {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Id {
    /// Takes about 10 ms on soft-RoCE, and up to 7 s on soft-iWARP. It never waits for an event: each was
    /// acknowledged when it was taken.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        // SAFETY: the identifier is alive, and not used after this.
        let ret = unsafe { rdma_destroy_id(self.as_ptr()) };
        if let Err(error) = ret::minus_one("rdma_destroy_id", ret) {
            log::error(format_args!(
                "leaked an identifier of the connection manager: {error}"
            ));
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Id")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish()
    }
}

/// Says so where the peer has given up, at any moment; there is no event of that. The kernel has no other reason:
/// depths are checked when a queue pair is made, and the data before a call. On iWARP the answer cannot be sent.
pub(super) fn given_up<T>(step: &'static str, ended: Result<T>) -> Result<T> {
    match ended {
        Err(Error::Verb {
            verb: "rdma_init_qp_attr" | "rdma_accept" | "rdma_establish",
            source,
        }) if matches!(
            source.raw_os_error(),
            Some(libc::EINVAL | libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN)
        ) =>
        {
            Err(Error::ConnectionManager {
                step,
                failure: Box::new(CmFailure::GONE),
            })
        }
        ended => ended,
    }
}

/// The event that ends a step is another than those that it waits for.
pub(super) fn failed(step: &'static str, event: &Event) -> Error {
    Error::ConnectionManager {
        step,
        failure: Box::new(event.failure()),
    }
}

/// Accessors of the device and the addresses, known once they are resolved.
macro_rules! with_a_device {
    ($($type:ident $(. $field:ident)?)*) => {$(
        impl $type {
            /// The name of the device.
            #[must_use]
            pub fn device_name(&self) -> String {
                self.id$(.$field)?.device_name().unwrap_or_default()
            }

            /// The number of the port.
            #[must_use]
            pub fn port_num(&self) -> u8 {
                self.id$(.$field)?.port_num()
            }

            /// Whether this is a context of the device.
            #[must_use]
            pub fn is_on(&self, context: &Context) -> bool {
                self.id$(.$field)?.is_on(context)
            }

            /// The address of this side.
            #[must_use]
            #[doc(alias = "rdma_get_local_addr")]
            #[doc(alias = "rdma_get_src_port")]
            pub fn local_addr(&self) -> Option<SocketAddr> {
                self.id$(.$field)?.local_addr()
            }
        }
    )*};
}
pub(super) use with_a_device;

/// Accessors of the peer's address.
macro_rules! with_a_peer {
    ($($type:ident)*) => {$(
        impl $type {
            /// The address of the peer.
            #[must_use]
            #[doc(alias = "rdma_get_peer_addr")]
            #[doc(alias = "rdma_get_dst_port")]
            pub fn peer_addr(&self) -> Option<SocketAddr> {
                self.id.peer_addr()
            }
        }
    )*};
}
pub(super) use with_a_peer;
