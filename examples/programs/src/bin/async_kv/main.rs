//! An async client of `kv_store`: many tasks on one connection read values at the same time.
//!
//! Read first: `ask` and `get` in `connection.rs`: a message and its reply, and a read.

mod bench;
mod connection;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use programs::kv::load::Load;
use programs::{Common, Context as _, Failure, run, say};
use verbs_async::{AsyncGroup, CqEvents};

use crate::connection::Connection;

/// Store small values on the server of `kv_store`, and read them from its memory, with async code
///
/// Requests are messages, one after the other; values are read with RDMA reads, one at a time for
/// each task. The server is that of `kv_store`.
#[derive(Debug, Parser)]
#[command(name = "async_kv", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Threads of the runtime
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Store a value under a key
    Put { key: String, value: String },
    /// Print the values of keys, which are read at the same time
    Get {
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Remove a key and its value
    Delete { key: String },
    /// Let many tasks change and read the same values
    Bench {
        #[command(flatten)]
        load: Load,

        /// How many tasks share the connection of each client; each does that number of operations
        #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
        tasks: u32,
    },
}

const EXAMPLES: &str = "\
Examples:
  kv_store                                       be the server
  async_kv 192.0.2.1 put color blue
  async_kv 192.0.2.1 get color
  async_kv 192.0.2.1 bench --clients 4 --tasks 16";

fn main() -> ExitCode {
    run(|options: &Options| {
        let host = options.common.host.as_deref();
        let host = host.ok_or_else(|| Failure::misuse("which server? (async_kv HOST COMMAND)"))?;
        let command = options.command.as_ref();
        let command = command
            .ok_or_else(|| Failure::misuse("what is to be done? (put, get, delete, bench)"))?;
        programs::runtime(options.threads)?.block_on(async {
            match command {
                Command::Bench { load, tasks } => bench::run(options, load, *tasks, host).await,
                command => once(options, command, host).await,
            }
        })
    })
}

impl Options {
    /// A group for `connections` connections.
    fn group(&self, connections: u32) -> Result<AsyncGroup, Failure> {
        let device = programs::open(&self.common)?;
        let pd = device.alloc_pd()?;
        let builder = self.common.channels(&pd);
        let events = CqEvents::create_tokio(&device)?;
        let group = AsyncGroup::new(builder, connections, &events);
        group.context(|| format!("cannot have {connections} connections at once"))
    }
}

async fn once(options: &Options, command: &Command, host: &str) -> Result<(), Failure> {
    let group = options.group(1)?;
    let connection = Connection::new(&group, &options.common, host).await?;
    let work = async {
        let missing = |key: &str| Failure::new(format!("there is no value under {key:?}"));
        match command {
            Command::Put { key, value } => connection.put(key.as_bytes(), value.as_bytes()).await,
            Command::Get { keys } => {
                let values = keys.iter().map(|key| connection.get(key.as_bytes()));
                for (key, value) in keys
                    .iter()
                    .zip(futures_util::future::join_all(values).await)
                {
                    let value = value?.ok_or_else(|| missing(key))?;
                    say(String::from_utf8_lossy(&value))?;
                }
                Ok(())
            }
            Command::Delete { key } => {
                let deleted = connection.delete(key.as_bytes()).await?;
                deleted.then_some(()).ok_or_else(|| missing(key))
            }
            Command::Bench { .. } => Ok(()),
        }
    };
    let done = connection.watched(work).await;
    // Leave in order, also after an error.
    let left = connection.bye().await;
    done.and(left)
}
