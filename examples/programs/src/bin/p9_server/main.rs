//! A file server over RDMA that Linux mounts, in safe Rust.
//!
//! Read first: `serve` in `rdma.rs`, thirty lines from a message to its answer. The messages are
//! defined in `../../p9`.

mod clients;
mod rdma;
mod tcp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use programs::p9::{MIN_SIZE, Tree};
use programs::{Context as _, many_descriptors, run};
use rustix::fs::Mode;
use rustix::process::umask;

use clients::Clients;

/// Serve a directory by 9P2000.L over RDMA, as a file server that Linux mounts
///
/// A client sees the directory and what is in it, and nothing else. It does everything as the user that
/// runs this program: the client's own users are ignored. There is no encryption and no authentication:
/// every host that reaches the address can mount. Locks, extended attributes and devices are not
/// supported.
///
/// Ctrl-C and SIGTERM end the server.
#[derive(Clone, Debug, Parser)]
#[command(name = "p9_server", after_help = EXAMPLES)]
struct Options {
    /// Serve this directory
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    /// Refuse everything that changes the directory
    #[arg(long)]
    read_only: bool,

    /// Listen at this address; over RDMA, 0.0.0.0 is that of all devices
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:5640")]
    listen: SocketAddr,

    /// Serve over TCP instead, to compare
    #[arg(long)]
    tcp: bool,

    /// The longest message; mount with msize=BYTES for more than the kernel's 131072
    #[arg(long, value_name = "BYTES", default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(i64::from(MIN_SIZE)..=1 << 20))]
    msize: u32,

    /// Receives for each client; no fewer than its mount option rq, which is 32 unless set
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,

    /// Clients at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=500))]
    max_clients: u32,

    /// Give up on a client that takes so long to connect or to take an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

const EXAMPLES: &str = "\
Examples:
  p9_server --root /srv/files                               read and write, on all RDMA devices
  p9_server --root /srv/files --read-only --listen 192.0.2.1:5640

The client, which needs the modules 9p and 9pnet_rdma:
  mount -t 9p -o trans=rdma,port=5640,version=9p2000.L 192.0.2.1 /mnt

The client reads and writes one message at a time, so longer ones are faster. The longest that it sends
over RDMA have 1 MiB: start the server with --msize 1048576, and mount with msize=1048576. Each client
takes pinned memory for (--depth + 17) messages of that length.";

impl Options {
    const fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    fn size(&self) -> usize {
        usize::try_from(self.msize).unwrap_or(usize::MAX)
    }
}

fn main() -> ExitCode {
    run(|options: &Options| {
        many_descriptors()?;
        // A client has applied its own to each mode.
        let _before = umask(Mode::empty());
        let tree = Tree::open(&options.root, options.read_only);
        let tree = tree.context(|| options.root.display())?;
        let clients = Clients::new(options, tree)?;
        let runtime = programs::runtime(1)?;
        let served = if options.tcp {
            runtime.block_on(tcp::accept(options, clients))
        } else {
            runtime.block_on(rdma::accept(options, clients))
        };
        // A thread that waits for the disk keeps the program no longer.
        runtime.shutdown_timeout(options.limit());
        served
    })
}
