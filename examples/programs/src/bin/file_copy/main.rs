//! Copies a file over RDMA writes, checks it at both ends, and goes on where an earlier copy broke.
//!
//! Read first: `give` in `sender.rs`: a window of loans, each written, credited and filled again.

mod digest;
mod partial;
mod protocol;
mod receiver;
mod sender;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use programs::{Common, Failure, run};
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{Channel, PollStrategy, PreparedChannel};

use crate::protocol::{BLOCK, WINDOW};

/// Copy a file to another host over RDMA writes, and check it at both ends
///
/// Several blocks are in flight at once, each on loan to the device until it has been written; the
/// receiver gives credit for more as it takes them. The file has a temporary name until its SHA-256
/// is found to be the sender's.
#[derive(Debug, Parser)]
#[command(name = "file_copy", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Sender: the file
    file: Option<PathBuf>,

    /// Sender: go on with what an earlier copy left at the receiver, if it is a part of this file
    #[arg(long)]
    resume: bool,

    /// Sender: bytes in a block
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(i64::from(*BLOCK.start())..=i64::from(*BLOCK.end())))]
    block: u32,

    /// Sender: blocks in flight at once
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(i64::from(*WINDOW.start())..=i64::from(*WINDOW.end())))]
    window: u16,

    /// Receiver: put the file here
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    dir: PathBuf,

    /// Receiver: replace a file that is there
    #[arg(long)]
    force: bool,

    /// Receiver: check the file, and keep nothing
    #[arg(long)]
    discard: bool,
}

const EXAMPLES: &str = "\
Examples:
  file_copy                               receive a file, into this directory
  file_copy 192.0.2.1 image.iso           send one
  file_copy --resume 192.0.2.1 image.iso  go on with a copy that broke
  file_copy --discard                     receive one to see how fast that is

An incomplete file is left as .NAME.part, for --resume.";

fn main() -> ExitCode {
    run(
        |options: &Options| match (&options.common.host, &options.file) {
            (Some(host), Some(file)) => sender::send(options, host, file),
            (Some(_), None) => Err(Failure::misuse("which file? (file_copy HOST FILE)")),
            (None, _) => receiver::receive(options),
        },
    )
}

impl Options {
    /// A channel for `window` blocks in flight, not connected yet.
    fn prepare(&self, pd: &ProtectionDomain, window: u16) -> Result<PreparedChannel, Failure> {
        let prepared = Channel::builder(pd)
            .port_num(self.common.ib_port)
            .gid_index(self.common.gid_idx)
            .max_send_wr(window.into())
            .max_recv_wr(window.into())
            .timeout(self.common.limit())
            .strategy(PollStrategy::Notify { after: 100 })
            .build()?;
        Ok(prepared)
    }
}

/// A bar on standard error, if that is a terminal; dropping it removes it.
fn bar(size: u64, from: u64) -> ProgressBar {
    let bar = ProgressBar::new(size).with_position(from);
    let template = "{bytes} of {total_bytes} {wide_bar} {binary_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.reset_eta();
    bar.with_finish(ProgressFinish::AndClear)
}
