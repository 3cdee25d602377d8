//! Rails: a device each, with a context, the registered pages and a channel of its own.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use examples::Failure;
use rustix::time::{ClockId, clock_gettime};
use verbs_channel::{Channel, DownReason, PreparedChannel, SharedMemory};
use verbs_core::{AccessFlags, Device, ProtectionDomain, RemoteMemoryRegion};

use crate::Options;
use crate::pool::Pool;

/// Chains in flight on a rail.
pub(crate) const CHAINS: u16 = 4;
/// Receives for immediates on a rail, and the most slices of its memory at once.
pub(crate) const DEPTH: u16 = 256;
/// Rounds between two looks for a message, or without success before a sleep.
const ROUNDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

pub(crate) struct Rail {
    pub(crate) name: String,
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
        let named = |name: &String| Ok(Device::by_name(name)?.open()?);
        let contexts: Result<Vec<_>, Failure> = options.devices.iter().map(named).collect();
        let mut contexts = contexts?;
        if contexts.is_empty() {
            contexts.push(examples::open(&options.common)?);
        }
        let rails = contexts.into_iter().map(|context| {
            let pd = context.alloc_pd()?;
            let (memory, remote) = pool.register(&pd, access, DEPTH.into())?;
            let name = context.device().name().to_owned();
            let channel = None;
            Ok(Self {
                name,
                channel,
                memory,
                remote,
                pd,
            })
        });
        rails.collect()
    }

    /// Prepares a channel. There is none until it is connected.
    pub(crate) fn prepare(&mut self, options: &Options) -> Result<PreparedChannel, Failure> {
        self.end()?;
        let channel = Channel::builder(&self.pd)
            .port_num(options.common.ib_port)
            .gid_index(options.common.gid_idx)
            .max_send_wr(u32::from(CHAINS * options.chain))
            .max_recv_wr(u32::from(DEPTH));
        Ok(channel.build()?)
    }

    /// Destroys the queue pair: after this, the peer writes nothing over this rail.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        if let Some(channel) = &mut self.channel {
            channel.engine_mut().destroy_all(DownReason::Closed);
            if channel.endpoint().is_some() {
                return Err(Failure::new(
                    "a queue pair is stuck: its pages are never free",
                ));
            }
        }
        self.channel = None;
        Ok(())
    }
}

/// Rounds of a loop that polls.
#[derive(Default)]
pub(crate) struct Rounds {
    all: u32,
    idle: u32,
}

impl Rounds {
    /// One more; it sleeps after many without success. Whether to look for a message.
    pub(crate) fn next(&mut self, has_moved: bool) -> bool {
        self.all = self.all.wrapping_add(1);
        self.idle = if has_moved { 0 } else { self.idle + 1 };
        if self.idle == ROUNDS {
            self.idle -= 1;
            thread::sleep(NAP);
            return true;
        }
        self.all.is_multiple_of(ROUNDS)
    }
}

/// The processor time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
