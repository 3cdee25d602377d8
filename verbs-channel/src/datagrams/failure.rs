//! Datagrams that failed after they were posted.

use std::fmt;

use verbs_core::WorkError;
use verbs_core::codes::Gid;
use verbs_core::path::DatagramEndpoint;

/// A datagram that failed after it was posted, from [`Datagrams::take_failed`](super::Datagrams::take_failed).
///
/// It is lost, and the endpoint works on: the next datagram to this peer resolves the peer's address again.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the datagram to {peer} failed{gid}", peer = Peer(peer), gid = Explained(gid))]
#[non_exhaustive]
pub struct DatagramFailure {
    /// The endpoint that it was sent to.
    pub peer: DatagramEndpoint,
    /// How it failed; `None` if it was in flight when the queue pair had to be restarted for another reason, and had
    /// not completed. It may have been sent then.
    #[source]
    pub error: Option<WorkError>,
    pub(super) gid: Option<GidChange>,
}

/// A change of this side's GID since an address handle was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GidChange {
    pub(super) gid: Gid,
    /// The index that the handle has, and the one where the GID is now, if it is still in the table.
    pub(super) from: u8,
    pub(super) to: Option<u8>,
}

verbs_core::error_debug!(DatagramFailure);

struct Peer<'p>(&'p DatagramEndpoint);

impl fmt::Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {:#x} at ", self.0.qp_num())?;
        match self.0.gid() {
            Some(gid) => write!(f, "{gid}"),
            None => write!(f, "LID {}", self.0.lid()),
        }
    }
}

struct Explained<'c>(&'c Option<GidChange>);

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(GidChange { gid, from, to }) = self.0 else {
            return Ok(());
        };
        match to {
            Some(to) => write!(
                f,
                ": this side's GID {gid} has moved from index {from} to {to}, where the next datagram uses it"
            ),
            None => write!(
                f,
                ": this side's GID {gid} is no longer in its port's table (it was at index {from}): add the address \
                 to its network interface again"
            ),
        }
    }
}
