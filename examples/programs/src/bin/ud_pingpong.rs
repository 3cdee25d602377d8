//! Sends a message back and forth in datagrams, as `ibv_ud_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself. A datagram that is lost
//! is not sent again: the program ends when nothing has come for `--timeout`.
//!
//! Read first: `datagrams` in `../pingpong/datagrams.rs`, then `send` in `../pingpong/link.rs`.

use std::process::ExitCode;

use clap::Parser;
use programs::run;

/// Send a message back and forth in datagrams (UD), like `ibv_ud_pingpong`
///
/// Either end may be C's `ibv_ud_pingpong`, with the same -s and -n (and -g, which C needs on RoCE).
#[derive(Debug, Parser)]
#[command(name = "ud_pingpong", after_help = EXAMPLES)]
struct Options {
    /// Size of the message in bytes, at most the port's MTU
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096))]
    size: u32,

    #[command(flatten)]
    options: programs::pingpong::Options,
}

const EXAMPLES: &str = "\
Examples:
  ud_pingpong                          be the server, on the first active device
  ud_pingpong 192.0.2.1                be its client
  ud_pingpong -d rxe0 -s 512 -c        datagrams of 512 bytes over rxe0, every byte checked
  ud_pingpong -d rxe1 -s 512 -c HOST   the client for that; either may be ibv_ud_pingpong";

fn main() -> ExitCode {
    run(|options: &Options| programs::pingpong::datagrams(options.size, &options.options))
}
