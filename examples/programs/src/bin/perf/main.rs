//! Latency and bandwidth between two processes, of each layer and each operation.
//!
//! Read first: `latency` and `bandwidth` in `run.rs`, the loops that are measured. A layer is a
//! `Link`: `core.rs`, `channel.rs` and `datagrams.rs` are polled, `futures.rs` has the same loops for tasks.

mod buffers;
mod channel;
mod connect;
mod core;
mod datagrams;
mod figures;
mod futures;
#[cfg(feature = "programs")]
mod h2;
mod link;
mod memory;
mod messages;
mod plan;
mod run;
mod stream;
mod tcp;

use std::process::ExitCode;

use clap::Parser;
use programs::{Common, Failure, Frames, Hello, Listener, Peer, many_descriptors, run, say};

use figures::Figures;
use plan::{Layer, Plan};

/// Measure latency or bandwidth between two processes
///
/// The server serves one client, which chooses what is measured. Without --bandwidth that is the latency:
/// of half a round trip for a send, a write and a write with immediate, and of the whole operation for
/// reads and atomics.
#[derive(Debug, Parser)]
#[command(name = "perf", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    plan: Plan,

    /// Print one line of JSON in place of the table
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  perf                                       be the server, on the first active device
  perf HOST                                  the latency of a send of 8 bytes, on verbs-core
  perf --op read --size 4096 HOST            of a read of a page
  perf --bandwidth --size 65536 HOST         the bandwidth of sends
  perf --layer async --depth 64 --bandwidth --size 64 HOST
  perf --bandwidth --op write --qps 16 --duration 10 --json HOST

Side by side with perftest: ib_send_lat -s 8 -n 1000, ib_write_bw -s 65536 -n 5000 -t 128";

fn main() -> ExitCode {
    run(|options: &Options| {
        many_descriptors()?;
        let hello = Hello::new("perf", 3);
        if let Some(host) = &options.common.host {
            let plan = options.plan.clone().checked()?;
            let peer = Peer::connect(host, options.common.port, options.common.limit())?;
            let frames = Frames::greet(peer, &hello)?;
            frames.send(&plan)?;
            let ours = measure(options, &plan, &frames)?;
            let theirs = messages::receive(&frames)?;
            ours.with(theirs)?.print(&plan, options.json)
        } else {
            // Faults of the device are found before a client comes.
            let _device = programs::open(&options.common)?;
            let listener = Listener::bind(options.common.port)?;
            say(format_args!("waiting on TCP port {}", listener.port()))?;
            let peer = listener.accept(options.common.wait(), options.common.limit())?;
            let frames = Frames::greet(peer, &hello)?;
            let plan: Plan = frames.receive()?;
            let ours = measure(options, &plan.checked()?, &frames)?;
            messages::send(&frames, &ours)
        }
    })
}

/// Measures on this side. If that fails, the peer gets to know why.
fn measure(options: &Options, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let common = &options.common;
    let measured = match plan.layer {
        Layer::Channel if plan.datagrams => datagrams::measure(common, plan, frames),
        Layer::Core => core::measure(common, plan, frames),
        Layer::Channel => channel::measure(common, plan, frames),
        Layer::Async => futures::measure(common, plan, frames),
        Layer::Stream => stream::measure(common, plan, frames),
        Layer::Tcp => tcp::measure(common, plan, frames),
    };
    measured.inspect_err(|why| messages::send_failure(frames, why))
}
