//! Moves pages of a KV cache from a prefill process to a decode process, over one or several devices.
//!
//! Read first: `request` and `free` in `decode.rs`, then `write` in `prefill.rs`. The future of a request may
//! be dropped at any time; after `free` nothing writes to its pages, and they can be used again. Pages are
//! written by a transfer, in chains.

mod decode;
mod prefill;

use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use programs::{Common, MemoryKind, open_each, run};
use serde::{Deserialize, Serialize};
use verbs_core::{Context, RemoteMemoryRegion};
use verbs_harness::allocations::Counting;

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

    /// Use these RDMA devices, each for a rail; the same number on both sides [default: that of -d]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    devices: Vec<String>,

    /// Memory of the pages
    #[arg(long, value_enum, default_value_t = MemoryKind::Heap)]
    memory: MemoryKind,

    /// Pages, all of which a request moves: the same on both sides
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 26))]
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

    /// Prefill: how many pages to post with one doorbell, at most 16; four times that are in flight
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    chain: u16,

    /// Prefill: lose the first rail in the middle of every such request
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    lose_every: Option<u64>,
}

/// Decode's cache, and how a rail reaches it: the private data of the rail's connection.
#[derive(Debug, Serialize, Deserialize)]
struct Cache {
    /// The number of its pages, and their length.
    size: (usize, usize),
    memory: RemoteMemoryRegion,
}

/// The pages that decode asks a rail for, by a message on the rail. No order at all is a goodbye.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    generation: u64,
    pages: Range<usize>,
    immediate: u32,
    /// The immediate comes with every `each` pages.
    each: usize,
    timeout: Duration,
}

/// An order is no longer than this.
const ORDER_LEN: usize = 256;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const EXAMPLES: &str = "\
Examples:
  kv_transfer                                 be decode, on the first active device
  kv_transfer 192.0.2.1                       be its prefill
  kv_transfer --devices mlx5_0,mlx5_1         two rails: as many on both sides
  kv_transfer --memory huge --pages 8192       a larger cache, of huge pages: on both sides
  kv_transfer -n 100000 --abort-every 3       run for long, and use pages of aborted requests again";

impl Options {
    /// The number of pages, and their length: the same on both sides.
    const fn size(&self) -> (usize, usize) {
        (self.pages, self.page << 10)
    }

    /// Where decode puts a page of prefill's: elsewhere in each generation.
    fn place(&self, page: usize, generation: u64) -> usize {
        let turn = usize::try_from(generation).unwrap_or_default() % self.pages;
        (page + turn) % self.pages
    }

    const fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline)
    }
}

fn main() -> ExitCode {
    run(|options: &Options| {
        let devices = open_each(&options.common, &options.devices)?;
        match &options.common.host {
            Some(host) => prefill::run(options, &devices, host)?,
            None => decode::run(options, &devices)?,
        }
        // An error if an object of a device is left: whatever has failed above, nothing leaks.
        Ok(devices.into_iter().try_for_each(Context::close)?)
    })
}
