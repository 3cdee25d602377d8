//! Moves pages of a KV cache from a prefill process to a decode process, over one or several devices.
//!
//! Read first: `request` and `free` in `decode.rs`, then `write` in `prefill.rs`. The future of a request may
//! be dropped at any time; after `free` nothing writes to its pages, and they can be used again. Pages are
//! written in chains that are built once.

mod decode;
mod pool;
mod prefill;
mod protocol;

use std::process::ExitCode;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use examples::{Common, Failure, run};
use verbs_channel::{Channel, ChannelBuilder};
use verbs_core::{Context, Device, ProtectionDomain};
use verbs_harness::allocations::Counting;

use crate::pool::Kind;

/// Move pages of a KV cache from a prefill process to a decode process
///
/// Decode asks for pages and counts the immediates that come with them; prefill writes them in chains. Each
/// device is a rail, and each rail has a part of the pages. A request that ends early, at its deadline or
/// because a process or all rails have failed, leaves nothing behind that could write: its pages are used
/// again at once, under another generation. Each byte, and each canary between the pages, is checked.
#[derive(Debug, Parser)]
#[command(name = "kv_transfer", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Use these RDMA devices, each for a rail; as many on both sides [default: that of -d]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    devices: Vec<String>,

    /// Memory of the pages
    #[arg(long, value_enum, default_value_t = Kind::Heap)]
    memory: Kind,

    /// Layers of the model: the same on both sides
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    layers: usize,

    /// Pages of each layer, all of which a request moves: the same on both sides
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_535))]
    pages: usize,

    /// KiB in a page: the same on both sides
    #[arg(long, value_name = "KIB", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=8192))]
    page: usize,

    /// Decode: how many requests
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
    requests: u64,

    /// Decode: one immediate for each rail and request, in place of one for each page
    #[arg(long)]
    count_rails: bool,

    /// Decode: the deadline of a request
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,

    /// Decode: abort every such request when half of it has come
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    abort_every: Option<u64>,

    /// Prefill: how many pages to post with one doorbell
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    chain: u16,

    /// Prefill: lose the first rail in the middle of every such request
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    lose_every: Option<u64>,
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const EXAMPLES: &str = "\
Examples:
  kv_transfer                                 be decode, on the first active device
  kv_transfer 192.0.2.1                       be its prefill
  kv_transfer --devices mlx5_0,mlx5_1         two rails: as many on both sides
  kv_transfer --memory huge --layers 80       a larger cache, of huge pages: on both sides
  kv_transfer -n 100000 --abort-every 3       run for long, and use pages of aborted requests again";

impl Options {
    /// Opens the devices, one for each rail.
    fn open(&self) -> Result<Vec<Context>, Failure> {
        if self.devices.is_empty() {
            return Ok(vec![examples::open(&self.common)?]);
        }
        let names = self.devices.iter();
        names
            .map(|name| Ok(Device::by_name(name)?.open()?))
            .collect()
    }

    /// The settings of a rail's channels.
    fn channels(&self, pd: &ProtectionDomain, sends: u16, receives: u16) -> ChannelBuilder {
        Channel::builder(pd)
            .port_num(self.common.ib_port)
            .gid_index(self.common.gid_idx)
            .max_send_wr(sends.into())
            .max_recv_wr(receives.into())
    }
}

fn main() -> ExitCode {
    run(|options: &Options| {
        let devices = options.open()?;
        match &options.common.host {
            Some(host) => prefill::run(options, &devices, host)?,
            None => decode::run(options, &devices)?,
        }
        // An error if an object of a device is left: whatever has failed above, nothing leaks.
        Ok(devices.into_iter().try_for_each(Context::close)?)
    })
}
