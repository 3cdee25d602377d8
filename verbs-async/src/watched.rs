//! What is watched already: each completion channel, and each device's events, by one only.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::sync::Mutex;

/// The addresses of the objects that are watched.
static WATCHED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Something that nobody else watches until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Whoever has it goes before its object does: the address is another's then.
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
