//! Leases between hosts of a simulated network, whose faults a seed or a test chooses.

mod late_peers;
mod lent;
mod lifetime;

use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_channel::verbs_core::{AccessFlags, Context, ProtectionDomain, SharedRegion};
use verbs_channel::{Channel, ChannelConfig, SharedMemory};

/// The two ends of a connection, the first of which has windows.
struct Ends {
    fabric: Fabric,
    hosts: [Host; 2],
    owner: Channel,
    peer: Channel,
}

fn config(pd: &ProtectionDomain, windows: u32) -> ChannelConfig {
    let builder = Channel::builder(pd).max_send_wr(16).max_recv_wr(16);
    builder
        .timeout(Duration::from_secs(60))
        .lease_windows(windows)
        .config()
}

impl Ends {
    fn new(seed: u64, windows: u32) -> Self {
        Self::with(seed, windows, |_config| {})
    }

    fn with(seed: u64, windows: u32, change: impl Fn(&mut ChannelConfig)) -> Self {
        let fabric = Fabric::seeded(seed);
        let hosts = ["owner", "peer"].map(|name| fabric.host(name));
        let [owner, peer] = [0, 1].map(|end| {
            hosts[end].enter(|| {
                let pd = Context::first_active().unwrap().alloc_pd().unwrap();
                let mut config = config(&pd, windows);
                change(&mut config);
                config.build().unwrap()
            })
        });
        let (to_owner, to_peer) = (owner.endpoint(), peer.endpoint());
        let owner = hosts[0].enter(|| owner.handshake(&to_peer).unwrap());
        let peer = hosts[1].enter(|| peer.handshake(&to_owner).unwrap());
        Self {
            fabric,
            hosts,
            owner,
            peer,
        }
    }

    /// Memory of the owner that peers reach by leases only.
    fn memory(&self, len: usize) -> SharedMemory {
        self.memory_with(len, AccessFlags::MW_BIND)
    }

    fn memory_with(&self, len: usize, access: AccessFlags) -> SharedMemory {
        SharedMemory::register([self.owner.pd()], vec![0_u8; len], access).unwrap()
    }
}

pub(crate) fn region(memory: &SharedMemory) -> &SharedRegion<Vec<u8>> {
    memory.region().unwrap()
}

pub(crate) fn bytes(memory: &SharedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    region(memory).read(0, &mut bytes).unwrap();
    bytes
}
