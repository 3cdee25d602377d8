//! What was chosen for a queue pair when it was built.

use super::config::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber};
use super::qp_type::QpType;
use crate::context::Context;
use crate::device_attr::{AtomicCap, DeviceAttr};
use crate::error::Result;
use crate::memory::AccessFlags;
use crate::mtu::MaximumTransferUnit;
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

/// How many reads and atomics at once: what was asked for, within the device's limit, or the limit.
pub(super) fn depth(what: &'static str, asked: Option<u8>, max: u32) -> Result<u8> {
    match asked {
        Some(asked) => Context::within(what, asked.into(), max).map(|()| asked),
        None => Ok(u8::try_from(max).unwrap_or(u8::MAX)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_bounded_by_the_device() {
        assert_eq!(depth("max_rd_atomic", None, 128).unwrap(), 128);
        assert_eq!(depth("max_rd_atomic", None, 1000).unwrap(), 255);
        assert_eq!(depth("max_rd_atomic", Some(4), 16).unwrap(), 4);
        let error = depth("max_rd_atomic", Some(17), 16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "max_rd_atomic 17 exceeds this device's 16"
        );
    }
}
