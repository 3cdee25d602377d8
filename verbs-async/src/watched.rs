//! Which completion channels and devices are watched: each has one watcher at most.

use std::collections::BTreeSet;

use verbs_channel::verbs_core::AsyncEvent;

use crate::error::{Error, Result};
use crate::sync::Mutex;

/// The addresses of the objects that are watched.
static WATCHED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The exclusive right to watch an object, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Its owner must drop it before the object: after that, the address may be that of another
    /// object.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyWatched`].
    pub(crate) fn new<T>(object: *const T) -> Result<Self> {
        let address = object.addr();
        if WATCHED.lock().insert(address) {
            Ok(Self(address))
        } else {
            Err(Error::AlreadyWatched)
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.lock().remove(&self.0);
    }
}

/// A group or queue that fails when a device, or a part of it, does.
pub(crate) trait DeviceListener: Send + Sync {
    /// Handles an event of the device, or of something on it.
    fn on_device_event(&self, event: AsyncEvent);
}
