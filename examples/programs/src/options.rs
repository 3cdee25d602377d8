//! Options that the programs with a peer share.

use std::time::Duration;

use clap::Args;
use verbs_channel::{Channel, ChannelConfig};
use verbs_core::ProtectionDomain;

use crate::tcp::cannot_connect;

/// Where the peer is, which device to use, and how long to wait.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct Common {
    /// The server's host name or address; without it this is the server
    pub host: Option<String>,

    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value_t = 18515)]
    pub port: u16,

    /// Use this RDMA device [default: the first with an ACTIVE port]
    #[arg(short = 'd', long, alias = "device", value_name = "NAME")]
    pub ib_dev: Option<String>,

    /// Use this port of the device [default: the first ACTIVE one]
    #[arg(short = 'i', long, value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,

    /// Use the GID at this index of the port's table [default: the best one, where one is needed]
    #[arg(short = 'g', long, value_name = "INDEX")]
    pub gid_idx: Option<u8>,

    /// Give up when nothing has come from the peer for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,

    /// As a server, wait so long for a client
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub wait: u64,
}

impl Common {
    /// Channels on the port and with the GID that were asked for.
    #[must_use]
    pub fn channels(&self, pd: &ProtectionDomain) -> ChannelConfig {
        Channel::builder(pd)
            .port_num(self.ib_port)
            .gid_index(self.gid_idx)
            .config()
    }

    /// How long the peer may be silent.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The failure of a client that cannot connect to the server on this host.
    #[must_use]
    pub fn cannot_connect(&self, host: &str) -> String {
        cannot_connect(host, self.port)
    }

    /// How long a server waits for a client.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        Duration::from_secs(self.wait)
    }
}
