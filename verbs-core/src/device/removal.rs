//! The removal of a device from the kernel, as sysfs shows it.
//!
//! A device that is being removed refuses calls first, with `EIO`: `uverbs_disassociate_api_pre`, called by
//! `ib_uverbs_free_hw_resources` (`drivers/infiniband/core/uverbs_main.c`). Only then does the kernel destroy the
//! queue pairs and memory regions of each process: `uverbs_destroy_ufile_hw`, called there. And drivers return `EIO`
//! for reasons of their own. So an `EIO` is no proof that the device accesses no memory any more.
//!
//! The end of the device's directory in sysfs comes after that. `__ib_unregister_device` (`device.c`) calls
//! `disable_device`, in which `ib_uverbs_remove_one` has destroyed all objects when it returns, and `device_del`,
//! which removes the directory, after it. That a completion channel reports `POLLERR`
//! (`uverbs_completion_event_file_destroy_uobj`) comes earlier: objects are destroyed from the newest to the oldest.
//!
//! The directory is recognised by its inode, as devices can be renamed, and one of the same name may be back.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// A device's directory in sysfs, and the one of its class, as they were when the device was opened.
pub(crate) struct Directory {
    device: Identity,
    class: Identity,
    class_path: PathBuf,
}

/// The identity of a directory, wherever it is: the file system, the inode, and where there is one, the time at which
/// the inode was made, as its number may be used again.
#[derive(PartialEq, Eq)]
struct Identity(u64, u64, Option<SystemTime>);

impl Identity {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self(found.dev(), found.ino(), found.created().ok()))
    }
}

impl Directory {
    /// The directory at this path; `None` if it cannot be read.
    pub(crate) fn of(device: &Path) -> Option<Self> {
        let class_path = device.parent()?.to_owned();
        Some(Self {
            device: Identity::of(device).ok()?,
            class: Identity::of(&class_path).ok()?,
            class_path,
        })
    }

    /// Whether the device is in sysfs no more.
    pub(crate) fn is_removed(&self) -> bool {
        // Twice: a directory that is read while an entry is renamed may be read without it.
        (0..2).all(|_| self.is_missing().unwrap_or(false))
    }

    /// Whether the device is under no name in its class.
    ///
    /// # Errors
    ///
    /// An entry that cannot be read may be the device.
    fn is_missing(&self) -> io::Result<bool> {
        // In a mount of another network namespace there are other devices.
        if Identity::of(&self.class_path)? != self.class {
            return Ok(false);
        }
        for entry in fs::read_dir(&self.class_path)? {
            match Identity::of(&entry?.path()) {
                Ok(found) if found == self.device => return Ok(false),
                Ok(_) => {}
                // It was removed just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
