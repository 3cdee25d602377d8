//! Sends datagrams to a server and back, checks every byte of them at both ends, and counts those that
//! are lost. One server has any number of clients.
//!
//! Read first: `echo` in `server.rs`, then `send` and `receive` in `client.rs`.

mod client;
mod message;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use programs::{Common, Failure, run};
use verbs_channel::datagrams::DatagramsConfig;
use verbs_channel::verbs_core::Context;
use verbs_channel::{Datagrams, PollStrategy};

/// Send datagrams to a server and back, check every byte, and count those that are lost
///
/// A server gives each client its endpoint over TCP, and sends back what comes. Nothing is sent
/// again: a datagram whose answer has not come in time is lost.
#[derive(Debug, Parser)]
#[command(name = "datagram_echo", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Client: bytes in a datagram, at most the port's MTU
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(message::MIN..=4096))]
    size: u32,

    /// Client: how many datagrams to send
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iters: u32,

    /// Client: datagrams on their way at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    window: u32,

    /// Client: a datagram whose answer takes longer is lost
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    lost_after: u64,

    /// Server: end when this many clients have come and gone
    #[arg(long, value_name = "COUNT")]
    clients: Option<u64>,

    /// Server: lose one datagram in this many on purpose
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    lose: Option<u64>,

    /// Sleep until something comes, instead of spinning
    #[arg(short, long)]
    events: bool,
}

const EXAMPLES: &str = "\
Examples:
  datagram_echo                          be the server, on the first active device
  datagram_echo 192.0.2.1                be one of its clients
  datagram_echo -n 100000 -w 64 HOST     100,000 datagrams, 64 at once
  datagram_echo --lose 10                a server that loses one in ten";

fn main() -> ExitCode {
    run(|options: &Options| match &options.common.host {
        Some(host) => client::run(options, host),
        None => server::run(options),
    })
}

impl Options {
    /// The settings of this side's endpoint.
    fn datagrams(&self, context: &Context) -> Result<DatagramsConfig, Failure> {
        let strategy = if self.events {
            PollStrategy::Notify { after: 0 }
        } else {
            PollStrategy::SpinThenYield
        };
        Ok(Datagrams::builder(&context.alloc_pd()?)
            .port_num(self.common.ib_port)
            .gid_index(self.common.gid_idx)
            .max_send_wr(256)
            .max_recv_wr(256)
            .timeout(self.common.limit())
            .strategy(strategy)
            .config())
    }

    const fn lost_after(&self) -> Duration {
        Duration::from_millis(self.lost_after)
    }
}
