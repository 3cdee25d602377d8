//! Two hosts, and channels between them.

use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_channel::verbs_core::{Context, ProtectionDomain};
use verbs_channel::{Channel, ChannelConfig};

/// A test's result.
pub(crate) type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

pub(crate) fn hosts(fabric: &Fabric) -> [Host; 2] {
    ["a", "b"].map(|name| fabric.host(name))
}

/// A protection domain of this thread's device.
pub(crate) fn domain() -> ProtectionDomain {
    let context = Context::first_active().expect("a host has a device");
    context.alloc_pd().expect("a device has room for a domain")
}

/// Settings of a channel with room for some requests, that waits for a minute of its time.
pub(crate) fn channel_config(pd: &ProtectionDomain) -> ChannelConfig {
    let builder = Channel::builder(pd).max_send_wr(16).max_recv_wr(16);
    builder.timeout(Duration::from_secs(60)).config()
}

/// A channel from one host to another.
pub(crate) fn channels(a: &Host, b: &Host) -> Result<[Channel; 2]> {
    let [left, right] = [a, b].map(|host| host.enter(|| channel_config(&domain()).build()));
    let (left, right) = (left?, right?);
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    Ok([left.handshake(&to_right)?, right.handshake(&to_left)?])
}
