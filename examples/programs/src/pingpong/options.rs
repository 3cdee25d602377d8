//! The options of C's ping-pongs.

use clap::Args;
use verbs_core::MaximumTransferUnit;

use crate::Common;

/// Options of all ping-pongs.
#[derive(Args, Clone, Debug)]
#[group(skip)]
#[non_exhaustive]
pub struct Options {
    /// Where the peer is, and which device to use.
    #[command(flatten)]
    pub common: Common,

    /// How many receives to post at a time
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rx_depth: u32,

    /// How many messages each side sends
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: u32,

    /// Service level
    #[arg(short = 'l', long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub sl: u8,

    /// Sleep until completions are announced, instead of polling
    #[arg(short, long)]
    pub events: bool,

    /// Check every byte of every message
    #[arg(short, long)]
    pub chk: bool,
}

/// Further options of those over a connection.
#[derive(Args, Clone, Debug)]
#[group(skip)]
#[non_exhaustive]
pub struct Connected {
    /// Size of the message in bytes
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub size: u32,

    /// Path MTU, the same at both ends: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", default_value = "1024")]
    pub mtu: MaximumTransferUnit,

    /// The other options.
    #[command(flatten)]
    pub options: Options,
}
