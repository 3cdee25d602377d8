//! A key-value store: requests by messages, values read from the server's memory without its help.
//!
//! Read first: `get` and `read` in `client.rs`; then `run` and `take` in `server.rs`.

mod bench;
mod client;
mod server;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use programs::kv::load::Load;
use programs::{Common, Failure, run, say};

use crate::client::Connection;

/// Store small values on a server, and read them from its memory without its help
///
/// Clients put, delete and list by messages; they ask where a value is once, and then read it with
/// RDMA reads. A value has a version and a checksum, so that one that was read while it changed is
/// read again.
#[derive(Debug, Parser)]
#[command(name = "kv_store", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Server: end when this many clients have come and gone
    #[arg(long, value_name = "COUNT")]
    clients: Option<u64>,

    /// Server: clients at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_clients: u32,

    /// Server: how many values it can hold
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    capacity: u32,

    /// Server: how long a value can be, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    max_value: u32,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Store a value under a key
    Put { key: String, value: String },
    /// Print the value of a key
    Get { key: String },
    /// Remove a key and its value
    Delete { key: String },
    /// Print all keys
    List,
    /// Let many clients change and read the same values
    Bench(Load),
}

const EXAMPLES: &str = "\
Examples:
  kv_store                             be the server, on the first active device
  kv_store 192.0.2.1 put color blue    be a client
  kv_store 192.0.2.1 get color
  kv_store 192.0.2.1 bench --clients 8";

fn main() -> ExitCode {
    run(
        |options: &Options| match (&options.common.host, &options.command) {
            (None, None) => server::serve(options),
            (None, Some(_)) => Err(Failure::misuse("which server? (kv_store HOST COMMAND)")),
            (Some(_), None) => Err(Failure::misuse(
                "what is to be done? (put, get, delete, list, bench)",
            )),
            (Some(host), Some(Command::Bench(bench))) => bench::run(options, bench, host),
            (Some(host), Some(command)) => client(options, command, host),
        },
    )
}

fn client(options: &Options, command: &Command, host: &str) -> Result<(), Failure> {
    let context = programs::open(&options.common)?;
    let mut connection = Connection::new(&options.common, &context, host)?;
    let missing = |key: &str| Failure::new(format!("there is no value under {key:?}"));
    let done = match command {
        Command::Put { key, value } => connection.put(key.as_bytes(), value.as_bytes()),
        Command::Get { key } => match connection.get(key.as_bytes()) {
            Ok(Some(value)) => say(String::from_utf8_lossy(value)),
            Ok(None) => Err(missing(key)),
            Err(why) => Err(why),
        },
        Command::Delete { key } => match connection.delete(key.as_bytes()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(missing(key)),
            Err(why) => Err(why),
        },
        Command::List => connection.list().and_then(|keys| {
            keys.iter()
                .try_for_each(|key| say(String::from_utf8_lossy(key)))
        }),
        Command::Bench(_) => Ok(()),
    };
    // Leave in order, also after an error.
    let left = connection.bye();
    done.and(left)
}
