//! Which completion channels and devices are watched: each has one watcher at most.

use std::collections::BTreeSet;
use std::time::Instant;

use verbs_channel::DownReason;
use verbs_channel::verbs_core::__private::Process;
use verbs_channel::verbs_core::device::{AsyncEvent, EventElement, EventType};

use crate::error::{Error, Result};
use crate::task::sync::Mutex;
use crate::threads::per_process::PerProcess;

/// The addresses of the objects that are watched.
static WATCHED: PerProcess<Mutex<BTreeSet<usize>>> = PerProcess::new(Mutex::default);

/// The exclusive right to watch an object, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(usize, Process);

impl Watch {
    /// Its owner must drop it before the object: after that, the address may be that of another
    /// object.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyWatched`].
    pub(crate) fn new<T>(object: *const T) -> Result<Self> {
        let address = object.addr();
        if WATCHED.get().lock().insert(address) {
            Ok(Self(address, Process::current()))
        } else {
            Err(Error::AlreadyWatched)
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The child of a fork keeps the object, too.
        if self.1.is_current() {
            WATCHED.get().lock().remove(&self.0);
        }
    }
}

/// A group, datagram endpoint or queue that fails when a device, or a part of it, does.
pub(crate) trait DeviceListener: Send + Sync {
    /// Since when it has this part. One that failed before may have had the same handle, or the same number.
    fn since(&self, part: Failed) -> Instant;

    /// Handles an event of the device, or of something on it.
    fn on_device_event(&self, event: AsyncEvent);

    /// There are no more events, for this reason: goes down.
    fn on_events_ended(&self, reason: DownReason);
}

/// The object that a device event reports as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    Device,
    /// The completion queue with this handle.
    Cq(u32),
    /// The queue pair with this number.
    Qp(u32),
    /// The shared receive queue with this handle.
    Srq(u32),
}

impl Failed {
    /// `None` if nothing has.
    pub(crate) const fn of(event: AsyncEvent) -> Option<Self> {
        match (event.event_type(), event.element()) {
            (EventType::DEVICE_FATAL, _) => Some(Self::Device),
            (EventType::CQ_ERR, EventElement::Cq { handle }) => Some(Self::Cq(handle)),
            (EventType::SRQ_ERR, EventElement::Srq { handle }) => Some(Self::Srq(handle)),
            // For each of these it is in `ERR`.
            (
                EventType::QP_FATAL | EventType::QP_REQ_ERR | EventType::QP_ACCESS_ERR,
                EventElement::Qp { qp_num },
            ) => Some(Self::Qp(qp_num)),
            _ => None,
        }
    }
}
