//! Sends a message back and forth over a reliable connection, as `ibv_rc_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself.
//!
//! Read first: `run`, `completed` and `send` in `../pingpong/game.rs`.

use std::process::ExitCode;

use clap::Parser;
use programs::pingpong::{Connected, connected};
use programs::run;
use verbs_core::codes::QpType;

/// Send a message back and forth over a reliable connection (RC), like `ibv_rc_pingpong`
///
/// Either end may be C's `ibv_rc_pingpong`, with the same -s and -n (and -g, which C needs on RoCE).
#[derive(Debug, Parser)]
#[command(name = "rc_pingpong", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    connected: Connected,
}

const EXAMPLES: &str = "\
Examples:
  rc_pingpong                           be the server, on the first active device
  rc_pingpong 192.0.2.1                 be its client
  rc_pingpong -d rxe0 -s 65536 -c       64 KiB messages over rxe0, every byte checked
  rc_pingpong -d rxe1 -s 65536 -c HOST  the client for that; either may be ibv_rc_pingpong";

fn main() -> ExitCode {
    run(|options: &Options| connected(QpType::Rc, &options.connected))
}
