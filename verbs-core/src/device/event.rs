//! Device events: what happens to ports, queue pairs and the device itself.
#![expect(unsafe_code, reason = "gets and acknowledges `ibv_async_event`")]

use std::mem::MaybeUninit;
use std::time::Duration;

use verbs_sys::{ibv_ack_async_event, ibv_get_async_event};

use super::context::Context;
use crate::codes::macros::{man, open_enum};
use crate::error::{ErrorKind, Result};
use crate::ffi::{fd, ret};

/// A device event: something that happened to the device, a port, or an object.
///
/// It is plain data, from [`Context::get_async_event`]. The event has been acknowledged, so its object
/// can be destroyed.
#[doc = man!("ibv_get_async_event")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
pub struct AsyncEvent {
    event_type: EventType,
    element: EventElement,
}

/// The object that a device event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventElement {
    /// The queue pair with this number.
    Qp {
        /// Its number.
        qp_num: u32,
    },
    /// The completion queue with this handle, see
    /// [`CompletionQueue::handle`](crate::CompletionQueue::handle).
    Cq {
        /// Its handle.
        handle: u32,
    },
    /// The shared receive queue with this handle.
    Srq {
        /// Its handle.
        handle: u32,
    },
    /// The work queue with this handle.
    Wq {
        /// Its handle.
        handle: u32,
    },
    /// The port with this number.
    Port {
        /// Its number.
        port_num: u8,
    },
    /// The device itself.
    Device,
}

impl AsyncEvent {
    /// The type of the event.
    #[must_use]
    pub const fn event_type(&self) -> EventType {
        self.event_type
    }

    /// The object that the event is about.
    #[must_use]
    pub const fn element(&self) -> EventElement {
        self.element
    }
}

impl Context {
    /// Waits for the next device event and takes it; `None` if `timeout` passes first. Without a
    /// timeout it waits forever.
    ///
    /// # Errors
    ///
    /// The errno, such as `EIO` from a device that is gone.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        let deadline = fd::deadline(timeout);
        loop {
            match self.try_get_async_event() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                event => return event.map(Some),
            }
            if !fd::wait_readable(self.async_fd(), deadline)? {
                return Ok(None);
            }
        }
    }

    fn try_get_async_event(&self) -> Result<AsyncEvent> {
        let mut event = MaybeUninit::uninit();
        // SAFETY: the context is open, and its descriptor does not block.
        let ret = unsafe { ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) };
        ret::minus_one("ibv_get_async_event", ret)?;
        // SAFETY: the call succeeded, so it filled the event in.
        let mut event = unsafe { event.assume_init() };
        let event_type = EventType::from_raw(event.event_type.0);
        // SAFETY: the event is fresh and not acknowledged, so what it is about is alive.
        let element = unsafe { element(event_type, &event.element) };
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { ibv_ack_async_event(&raw mut event) };
        Ok(AsyncEvent {
            event_type,
            element,
        })
    }
}

/// The object that an event concerns, which depends on its type.
///
/// # Safety
///
/// - The event came from `ibv_get_async_event` and has not been acknowledged: destroying an object
///   waits for that.
unsafe fn element(
    event_type: EventType,
    element: &verbs_sys::ibv_async_event__bindgen_ty_1,
) -> EventElement {
    match event_type {
        EventType::QP_FATAL
        | EventType::QP_REQ_ERR
        | EventType::QP_ACCESS_ERR
        | EventType::COMM_EST
        | EventType::SQ_DRAINED
        | EventType::PATH_MIG
        | EventType::PATH_MIG_ERR
        | EventType::QP_LAST_WQE_REACHED => {
            // SAFETY: for these types the union holds a queue pair.
            let qp = unsafe { element.qp };
            // SAFETY: the caller keeps it alive.
            let qp_num = unsafe { (*qp).qp_num };
            EventElement::Qp { qp_num }
        }
        EventType::CQ_ERR => {
            // SAFETY: for this type the union holds a completion queue.
            let cq = unsafe { element.cq };
            // SAFETY: the caller keeps it alive.
            let handle = unsafe { (*cq).handle };
            EventElement::Cq { handle }
        }
        EventType::SRQ_ERR | EventType::SRQ_LIMIT_REACHED => {
            // SAFETY: for these types the union holds a shared receive queue.
            let srq = unsafe { element.srq };
            // SAFETY: the caller keeps it alive.
            let handle = unsafe { (*srq).handle };
            EventElement::Srq { handle }
        }
        EventType::WQ_FATAL => {
            // SAFETY: for this type the union holds a work queue.
            let wq = unsafe { element.wq };
            // SAFETY: the caller keeps it alive.
            let handle = unsafe { (*wq).handle };
            EventElement::Wq { handle }
        }
        EventType::PORT_ACTIVE
        | EventType::PORT_ERR
        | EventType::LID_CHANGE
        | EventType::PKEY_CHANGE
        | EventType::SM_CHANGE
        | EventType::CLIENT_REREGISTER
        | EventType::GID_CHANGE => {
            // SAFETY: for these types the union holds a port number.
            let port = unsafe { element.port_num };
            EventElement::Port {
                port_num: u8::try_from(port).unwrap_or(0),
            }
        }
        // An event of the device, or of a type that is newer than this crate.
        _ => EventElement::Device,
    }
}

open_enum! {
    /// The type of a device event.
    #[doc(alias = "ibv_event_type_str")]
    EventType(u32), "ibv_event_type";
    /// A completion queue overran or failed. Its completions are lost: destroy it.
    CQ_ERR = IBV_EVENT_CQ_ERR "IBV_EVENT_CQ_ERR",
    /// A queue pair failed without a completion that reports it: destroy it.
    QP_FATAL = IBV_EVENT_QP_FATAL "IBV_EVENT_QP_FATAL",
    /// The peer sent an invalid request; the queue pair is in `ERR`.
    QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR "IBV_EVENT_QP_REQ_ERR",
    /// The peer accessed memory without permission; the queue pair is in `ERR`.
    QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR "IBV_EVENT_QP_ACCESS_ERR",
    /// A packet of the peer arrived before this side was moved to `RTS`.
    COMM_EST = IBV_EVENT_COMM_EST "IBV_EVENT_COMM_EST",
    /// A send queue has drained, after its queue pair was moved to `SQD`.
    SQ_DRAINED = IBV_EVENT_SQ_DRAINED "IBV_EVENT_SQ_DRAINED",
    /// A connection moved to its alternate path.
    PATH_MIG = IBV_EVENT_PATH_MIG "IBV_EVENT_PATH_MIG",
    /// A connection could not move to its alternate path.
    PATH_MIG_ERR = IBV_EVENT_PATH_MIG_ERR "IBV_EVENT_PATH_MIG_ERR",
    /// The device is unusable: destroy everything and open it again.
    DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL "IBV_EVENT_DEVICE_FATAL",
    /// A port came up.
    PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE "IBV_EVENT_PORT_ACTIVE",
    /// A port went down.
    PORT_ERR = IBV_EVENT_PORT_ERR "IBV_EVENT_PORT_ERR",
    /// A port's LID changed: connections over it are stale.
    LID_CHANGE = IBV_EVENT_LID_CHANGE "IBV_EVENT_LID_CHANGE",
    /// A port's P_Key table changed.
    PKEY_CHANGE = IBV_EVENT_PKEY_CHANGE "IBV_EVENT_PKEY_CHANGE",
    /// There is a new subnet manager.
    SM_CHANGE = IBV_EVENT_SM_CHANGE "IBV_EVENT_SM_CHANGE",
    /// A shared receive queue failed.
    SRQ_ERR = IBV_EVENT_SRQ_ERR "IBV_EVENT_SRQ_ERR",
    /// A shared receive queue reached its limit.
    SRQ_LIMIT_REACHED = IBV_EVENT_SRQ_LIMIT_REACHED "IBV_EVENT_SRQ_LIMIT_REACHED",
    /// A queue pair in `ERR` takes no more from its shared receive queue.
    QP_LAST_WQE_REACHED = IBV_EVENT_QP_LAST_WQE_REACHED "IBV_EVENT_QP_LAST_WQE_REACHED",
    /// The subnet manager asks clients to register again.
    CLIENT_REREGISTER = IBV_EVENT_CLIENT_REREGISTER "IBV_EVENT_CLIENT_REREGISTER",
    /// A port's GID table changed.
    GID_CHANGE = IBV_EVENT_GID_CHANGE "IBV_EVENT_GID_CHANGE",
    /// A work queue failed.
    WQ_FATAL = IBV_EVENT_WQ_FATAL "IBV_EVENT_WQ_FATAL",
}
