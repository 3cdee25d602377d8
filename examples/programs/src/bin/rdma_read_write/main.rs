//! Moves bytes one-sidedly and with immediates between two processes, and checks each at both ends.
//!
//! Read first: `transfer` and `post` in `client.rs`.

mod client;
mod protocol;
mod server;

use std::process::ExitCode;

use clap::Parser;
use programs::{Common, run};
use verbs_core::{AccessFlags, CompletionQueue, PreparedQueuePair, ProtectionDomain, QueuePair};

use client::Client;
use server::Server;

/// Write, read, and send with immediates between two processes, and check every byte at both ends
///
/// The client asks for one run after the other; the server checks what came, and that nothing else
/// was touched. The data lies in pieces, which a list of elements puts together; several requests
/// are posted at once, and only the last of them is signalled.
#[derive(Debug, Parser)]
#[command(name = "rdma_read_write", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Bytes in a message; may be given several times [default: 1 4096 65537 4194304]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Vec<u32>,

    /// How many messages of each kind and size; fewer of large ones
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4096))]
    iters: u32,

    /// How many requests to post with one doorbell
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    chain: u16,

    /// How many elements in a request
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    elements: u16,
}

const EXAMPLES: &str = "\
Examples:
  rdma_read_write                       be the server, on the first active device
  rdma_read_write 192.0.2.1             be its client
  rdma_read_write -s 1000000 -n 8 HOST  8 messages of 1,000,000 bytes of each kind
  rdma_read_write --chain 1 HOST        each request on its own";

fn main() -> ExitCode {
    run(|options: &Options| match &options.common.host {
        Some(host) => Client::start(options, host)?.run(),
        None => Server::start(options)?.run(),
    })
}

/// A queue pair of either side, with room for these numbers of requests to send and to receive.
fn prepare(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    common: &Common,
    [send, receive]: [u32; 2],
    elements: u32,
    access: AccessFlags,
) -> verbs_core::Result<PreparedQueuePair> {
    QueuePair::builder(pd, cq, cq)
        .max_send_wr(send)
        .max_recv_wr(receive)
        .max_send_sge(elements)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qp_access_flags(access)
        .build()
}
