//! Limits and timers a queue pair was built with.

use super::timers::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber};
use crate::codes::{MaximumTransferUnit, QpType};
use crate::device::{AtomicCap, Context, DeviceAttr};
use crate::error::Result;
use crate::memory::AccessFlags;
use crate::path::{LocalPath, Route, check_range};

/// The choices, kept for the handshake and for a reset.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) qp_type: QpType,
    pub(super) route: Route,
    pub(super) sq_psn: Option<PacketSequenceNumber>,
    pub(super) path_mtu: Option<MaximumTransferUnit>,
    pub(super) qp_access_flags: AccessFlags,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    /// Whether that was set: no smaller one is used in its place then.
    pub(super) is_served_as_set: bool,
    /// The device's limit on the elements of a read; 0 if it reports none.
    pub(super) max_sge_rd: u32,
    pub(super) min_rnr_timer: MinRnrTimer,
    pub(super) timeout: AckTimeout,
    pub(super) retry_cnt: MaxAckRetries,
    pub(super) rnr_retry: MaxRnrRetries,
}

impl Config {
    /// Chooses this side's end of the path.
    pub(super) fn path(&self, context: &Context) -> Result<LocalPath> {
        let path = self.route.local(context)?;
        if let Some(path_mtu) = self.path_mtu {
            check_range("path_mtu", path_mtu.bytes(), 256, path.active_mtu.bytes())?;
        }
        Ok(path)
    }

    /// The number of the first packet.
    pub(super) fn psn(&self) -> PacketSequenceNumber {
        self.sq_psn.unwrap_or_else(PacketSequenceNumber::random)
    }
}

/// Every kind of access that the device can give to a peer.
pub(super) fn everything(qp_type: QpType, device: &DeviceAttr) -> AccessFlags {
    if qp_type == QpType::Uc {
        return AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    }
    let all = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    if device.atomic_cap() == AtomicCap::NONE {
        all.difference(AccessFlags::REMOTE_ATOMIC)
    } else {
        all
    }
}
