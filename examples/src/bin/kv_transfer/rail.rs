//! Rails: a device each, with a context, the registered pages and a channel of its own.

use std::sync::Arc;

use examples::Failure;
use verbs_channel::{Channel, PreparedChannel, SharedMemory};
use verbs_core::{AccessFlags, Device, ProtectionDomain, RemoteMemoryRegion};

use crate::Options;
use crate::pool::Pool;

/// Chains in flight on a rail.
pub(crate) const CHAINS: u16 = 4;
/// Receives for immediates on a rail, and the most slices of its memory in flight.
pub(crate) const DEPTH: u16 = 256;

pub(crate) struct Rail {
    pub(crate) name: String,
    // First: its device is done with the pages when it has been dropped.
    pub(crate) channel: Option<Channel>,
    pub(crate) memory: SharedMemory,
    pub(crate) remote: RemoteMemoryRegion,
    pd: ProtectionDomain,
}

impl Rail {
    /// Registers the pages on each of the options' devices.
    pub(crate) fn open_all(
        options: &Options,
        pool: &Arc<Pool>,
        access: AccessFlags,
    ) -> Result<Vec<Self>, Failure> {
        let devices = options.devices.iter();
        let mut contexts = devices
            .map(|name| Ok(Device::by_name(name)?.open()?))
            .collect::<Result<Vec<_>, Failure>>()?;
        if contexts.is_empty() {
            contexts.push(examples::open(&options.common)?);
        }
        let rails = contexts.into_iter().map(|context| {
            let pd = context.alloc_pd()?;
            let (memory, remote) = pool.register(&pd, access, DEPTH.into())?;
            let name = context.device().name().to_owned();
            Ok(Self {
                name,
                channel: None,
                memory,
                remote,
                pd,
            })
        });
        rails.collect()
    }

    /// Ends its channel, and prepares another one.
    pub(crate) fn prepare(&mut self, options: &Options) -> Result<PreparedChannel, Failure> {
        self.channel = None;
        let prepared = Channel::builder(&self.pd)
            .port_num(options.common.ib_port)
            .gid_index(options.common.gid_idx)
            .max_send_wr(u32::from(CHAINS * options.chain))
            .max_recv_wr(u32::from(DEPTH))
            .build()?;
        Ok(prepared)
    }
}
