//! The path of a transition that failed.

use std::fmt;

use crate::codes::Gid;

/// The two GIDs of a path, for errors: this side's and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidPath {
    /// This side's GID; `None` if the table has no GID at its index any more.
    pub local: Option<Gid>,
    /// The index of this side's GID.
    pub sgid_index: u8,
    /// The peer's GID.
    pub remote: Gid,
}

impl fmt::Display for GidPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, remote) = (self.sgid_index, self.remote);
        match self.local {
            Some(local) => write!(
                f,
                "this side's GID {local} (index {index}) to the peer's GID {remote}"
            ),
            None => write!(
                f,
                "this side's GID index {index}, which is empty, to the peer's GID {remote}"
            ),
        }
    }
}
