//! HTTP over RDMA: a server of files and a client, by hyper, which uses a byte stream.
//!
//! Read first: `meet` in `link.rs`: a channel becomes a stream that hyper can use.

mod client;
mod expected;
mod link;
mod patient;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use programs::{Common, Failure, run};

/// Serve files by HTTP over RDMA, and fetch them
///
/// HTTP is hyper's, which reads and writes a stream, whatever is beneath. The
/// server has the files of a directory, and sends back what is posted to /echo. The client prints
/// the status, the headers and the body.
#[derive(Clone, Debug, Parser)]
#[command(name = "http_over_rdma", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Client: what to ask for
    #[arg(default_value = "/")]
    path: String,

    /// Server: serve the files in here
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    dir: PathBuf,

    /// Server: end when this many clients have come and gone
    #[arg(long, value_name = "COUNT")]
    clients: Option<u64>,

    /// Client: the method [default: GET, or POST with --data or --upload]
    #[arg(short = 'X', long, value_name = "NAME")]
    method: Option<String>,

    /// Client: send these words
    #[arg(long, value_name = "TEXT")]
    data: Option<String>,

    /// Client: send this file, in chunks
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    upload: Option<PathBuf>,

    /// Client: put the body here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Client: fail unless the body is this file, byte by byte
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  http_over_rdma --dir /srv/files                 serve files, on the first active device
  http_over_rdma 192.0.2.1                        what files are there?
  http_over_rdma 192.0.2.1 /image.iso -o my.iso   fetch one
  http_over_rdma 192.0.2.1 /echo --data hello     have something sent back
  http_over_rdma 192.0.2.1 /echo --upload my.iso -o again.iso --check my.iso";

fn main() -> ExitCode {
    run(|options: &Options| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let done = runtime.block_on(async {
            match &options.common.host {
                Some(host) => client::fetch(options, host).await,
                None => server::serve(options).await,
            }
        });
        // Does not wait for a file that is being read.
        runtime.shutdown_background();
        done
    })
}

/// The body of a request or a response.
type Body = http_body_util::combinators::UnsyncBoxBody<hyper::body::Bytes, std::io::Error>;

/// A file as a body, in chunks.
fn file_body(file: tokio::fs::File) -> Body {
    use futures_util::TryStreamExt as _;
    use http_body_util::BodyExt as _;
    use hyper::body::Frame;
    let chunks = tokio_util::io::ReaderStream::with_capacity(file, CHUNK);
    http_body_util::StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync()
}

const CHUNK: usize = 64 << 10;

/// Whether it took longer than the options allow.
fn too_long(options: &Options, what: &str) -> Failure {
    let limit = options.common.timeout;
    Failure::new(format!(
        "{what} took more than {limit} s (--timeout waits longer)"
    ))
}
