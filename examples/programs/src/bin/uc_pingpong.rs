//! Sends a message back and forth over an unreliable connection, as `ibv_uc_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself.
//!
//! A message that is lost is not sent again: the program ends when nothing has come for `--timeout`.
//!
//! Read first: `run`, `completed` and `send` in `../pingpong/game.rs`.

use std::process::ExitCode;

use clap::Parser;
use programs::pingpong::{Connected, connected};
use programs::run;
use verbs_core::codes::QpType;

/// Send a message back and forth over an unreliable connection (UC), like `ibv_uc_pingpong`
///
/// Either end may be C's `ibv_uc_pingpong`, with the same -s and -n (and -g, which C needs on RoCE).
#[derive(Debug, Parser)]
#[command(name = "uc_pingpong", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    connected: Connected,
}

const EXAMPLES: &str = "\
Examples:
  uc_pingpong                           be the server, on the first active device
  uc_pingpong 192.0.2.1                 be its client
  uc_pingpong -d rxe0 -s 65536 -c       64 KiB messages over rxe0, every byte checked
  uc_pingpong -d rxe1 -s 65536 -c HOST  the client for that; either may be ibv_uc_pingpong";

fn main() -> ExitCode {
    run(|options: &Options| connected(QpType::Uc, &options.connected))
}
