//! Many clients on one shared receive queue and one completion queue.
//!
//! Read first: `run`, `take` and `reply` in `server.rs`. `plan.rs` has the messages, and `crowd.rs`
//! shows how the client starts, slows down and kills its processes.

mod client;
mod crowd;
mod figures;
mod plan;
mod server;

use std::process::ExitCode;

use clap::Parser;
use programs::{Common, many_descriptors, run};

/// Answer the requests of up to a thousand clients from one queue of receives
///
/// The server has one receive queue, one completion queue and one thread for all of its clients, and
/// checks every byte of every request. The client opens many connections, from one process or from
/// several, and checks every byte of every answer. It can have slow connections, which leave their
/// answers waiting, and processes that it kills.
#[derive(Debug, Parser)]
#[command(name = "many_clients", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Server: connections at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_clients: u32,

    /// Server: receives in the shared queue
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    receives: u32,

    /// Server: requests and answers in flight together, of all connections [default: no limit]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,

    /// Server: end when this many connections have come and gone
    #[arg(long, value_name = "COUNT")]
    clients: Option<u64>,

    /// Client: connections of each process
    #[arg(short, long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,

    /// Client: processes
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,

    /// Client: further processes, which are killed while their requests are in flight
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    kill: u32,

    /// Client: connections of each process that take their answers late
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    slow: u32,

    /// Client: how late they take them
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pause: u64,

    /// Client: requests on each connection
    #[arg(short = 'n', long, visible_alias = "iters", value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    count: u32,

    /// Client: the longest request and answer, in bytes
    #[arg(short, long, value_name = "BYTES", default_value_t = plan::MAX_LEN, value_parser = clap::value_parser!(u32).range(i64::from(plan::HEADER)..=i64::from(plan::MAX_LEN)))]
    size: u32,

    /// This is one of the client's processes, of this number
    #[arg(long, value_name = "NUMBER", hide = true)]
    part: Option<u32>,
}

const EXAMPLES: &str = "\
Examples:
  many_clients --clients 64            be the server, until 64 connections have come and gone
  many_clients 192.0.2.1               be a client with 64 connections
  many_clients -c 250 --processes 4 --slow 10 --kill 1 192.0.2.1";

fn main() -> ExitCode {
    run(|options: &Options| {
        many_descriptors()?;
        match (&options.common.host, options.part) {
            (None, _) => server::serve(options),
            (Some(host), Some(part)) => client::run(options, host, part),
            (Some(host), None) => crowd::run(options, host),
        }
    })
}
