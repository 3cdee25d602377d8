//! The multicast groups that a queue pair stays attached to.
#![expect(unsafe_code, reason = "detaches an `ibv_qp` from groups")]

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs_sys::{ibv_detach_mcast, ibv_qp};

use crate::error::{ErrorChain, Result};
use crate::gid::Gid;
use crate::{logged, ret};

/// The groups that a queue pair stays attached to. Dropping it detaches the queue pair from all of them, so
/// it is a field before the queue pair's handle.
pub(super) struct Kept {
    qp: *mut ibv_qp,
    groups: Mutex<Vec<(Gid, u16)>>,
}

impl Kept {
    /// # Safety
    ///
    /// - The queue pair outlives the value.
    pub(super) const unsafe fn new(qp: *mut ibv_qp) -> Self {
        let groups = Mutex::new(Vec::new());
        Self { qp, groups }
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<(Gid, u16)>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: any thread may use verbs objects: see `handle`.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        let groups = mem::take(&mut *self.groups());
        for (gid, lid) in groups {
            // SAFETY: the queue pair outlives this, by the contract of `new`.
            let detached = unsafe { detach(self.qp, gid, lid) };
            log_failure(detached, gid);
        }
    }
}

pub(super) fn log_failure(detached: Result<()>, gid: Gid) {
    if let Err(error) = detached {
        logged::error(format_args!(
            "a queue pair stays in multicast group {gid}: {}",
            ErrorChain::new(&error)
        ));
    }
}

/// Detaches a queue pair from a group.
///
/// # Safety
///
/// - The queue pair is alive.
pub(super) unsafe fn detach(qp: *mut ibv_qp, gid: Gid, lid: u16) -> Result<()> {
    let raw = gid.as_raw();
    // SAFETY: the queue pair is alive, and `raw` is a local.
    let ret = unsafe { ibv_detach_mcast(qp, &raw const raw, lid) };
    ret::errno("ibv_detach_mcast", ret)
}
