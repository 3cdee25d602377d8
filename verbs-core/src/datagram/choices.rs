//! What was chosen for a queue pair for datagrams when it was built.

use super::qkey::QKey;
use crate::context::Context;
use crate::error::Result;
use crate::path::LocalPath;

/// The choices, kept for the paths to peers and for a reset.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) port_num: Option<u8>,
    pub(super) gid_index: Option<u8>,
    pub(super) pkey_index: u16,
    pub(super) qkey: QKey,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
}

impl Config {
    /// Chooses the port and the GID.
    pub(super) fn path(&self, context: &Context) -> Result<LocalPath> {
        LocalPath::choose(context, self.port_num, self.gid_index)
    }
}
