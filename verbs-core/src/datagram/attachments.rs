//! The multicast groups that a queue pair is attached to.
#![expect(unsafe_code, reason = "attaches an `ibv_qp` to groups")]

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs_sys::{ibv_attach_mcast, ibv_detach_mcast, ibv_qp};

use crate::codes::Gid;
use crate::error::{Error, ErrorChain, Result};
use crate::ffi::{Process, log, ret};

/// The groups that a queue pair is attached to. Dropping it detaches the queue pair from all of them, so it
/// is a field before the queue pair's handle.
///
/// The kernel attaches a queue pair to a group once, however often it is asked to: so this counts.
pub(super) struct Attached {
    qp: *mut ibv_qp,
    process: Process,
    groups: Mutex<Vec<Group>>,
}

struct Group {
    gid: Gid,
    lid: u16,
    /// How many [`Attachment`](super::Attachment)s there are.
    attachments: usize,
    is_kept: bool,
}

impl Attached {
    /// # Safety
    ///
    /// - The queue pair outlives the value.
    pub(super) unsafe fn new(qp: *mut ibv_qp) -> Self {
        Self {
            qp,
            process: Process::current(),
            groups: Mutex::default(),
        }
    }

    /// One more attachment to a group.
    pub(super) fn attach(&self, gid: Gid, lid: u16) -> Result<()> {
        let mut groups = self.groups();
        if let Some(group) = find(&mut groups, gid, lid) {
            group.attachments += 1;
            return Ok(());
        }
        let raw = gid.as_raw();
        // SAFETY: the queue pair is alive, by the contract of `new`, and `raw` is a local.
        let ret = unsafe { ibv_attach_mcast(self.qp, &raw const raw, lid) };
        ret::errno("ibv_attach_mcast", ret)?;
        groups.push(Group {
            gid,
            lid,
            attachments: 1,
            is_kept: false,
        });
        Ok(())
    }

    /// Turns an attachment into one that is kept.
    pub(super) fn keep(&self, gid: Gid, lid: u16) {
        if let Some(group) = find(&mut self.groups(), gid, lid) {
            group.attachments -= 1;
            group.is_kept = true;
        }
    }

    /// Ends an attachment, or the one that is kept. Returns whether there was one.
    pub(super) fn detach(&self, gid: Gid, lid: u16, is_kept: bool) -> Result<bool> {
        if !self.process.is_current() {
            let object = "attachment to a multicast group";
            return Err(Error::OtherProcess { object });
        }
        let mut groups = self.groups();
        let Some(group) = find(&mut groups, gid, lid) else {
            return Ok(false);
        };
        let others = group.attachments + usize::from(group.is_kept);
        match is_kept {
            true if !group.is_kept => return Ok(false),
            _ if others == 1 => self.detached(gid, lid)?,
            _ => {}
        }
        match is_kept {
            true => group.is_kept = false,
            false => group.attachments -= 1,
        }
        groups.retain(|group| group.is_kept || group.attachments > 0);
        Ok(true)
    }

    fn detached(&self, gid: Gid, lid: u16) -> Result<()> {
        let raw = gid.as_raw();
        // SAFETY: the queue pair is alive, by the contract of `new`, and `raw` is a local.
        let ret = unsafe { ibv_detach_mcast(self.qp, &raw const raw, lid) };
        ret::errno("ibv_detach_mcast", ret)
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(groups: &mut [Group], gid: Gid, lid: u16) -> Option<&mut Group> {
    let mut groups = groups.iter_mut();
    groups.find(|group| (group.gid, group.lid) == (gid, lid))
}

// SAFETY: any thread may use verbs objects: see `handle`.
unsafe impl Send for Attached {}
// SAFETY: any thread may use verbs objects: see `handle`.
unsafe impl Sync for Attached {}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        // Those that are kept, and those of attachments that were leaked.
        let groups = mem::take(&mut *self.groups());
        for Group { gid, lid, .. } in groups {
            log_failure(self.detached(gid, lid), gid);
        }
    }
}

pub(super) fn log_failure(detached: Result<()>, gid: Gid) {
    match detached {
        Ok(()) | Err(Error::OtherProcess { .. }) => {}
        Err(error) => log::error(format_args!(
            "a queue pair stays in multicast group {gid}: {}",
            ErrorChain::new(&error)
        )),
    }
}
