//! Sends messages to and fro on async channels, in tokio: many connections, one group.
//!
//! Read first: `send` in `../echo/client.rs`, and `echo` in `../echo/server.rs`.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use programs::echo::{Client, Options, Server, socket};
use programs::{Context as _, Failure, Listener, run, say};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::ctrl_c;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::compat::TokioAsyncReadCompatExt as _;
use verbs_async::CqEvents;

/// Send messages to and fro on async channels in tokio, and check every byte that comes back
///
/// All connections share a group: one completion queue, one file descriptor that the runtime
/// watches, and a task for each connection. The server may be a `smol_echo`, and so may the client.
#[derive(Debug, Parser)]
#[command(name = "async_echo", after_help = EXAMPLES)]
struct Program {
    #[command(flatten)]
    echo: Options,

    /// Threads of the runtime
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

const EXAMPLES: &str = "\
Examples:
  async_echo                                be the server, until Ctrl-C
  async_echo 192.0.2.1                      be its client
  async_echo -c 16 -w 8 -s 4096 192.0.2.1   16 connections, 8 messages in flight on each
  async_echo --busy-poll 50 192.0.2.1       poll for 50 microseconds before going to sleep";

fn main() -> ExitCode {
    run(|program: &Program| {
        let options = &program.echo;
        let runtime = programs::runtime(program.threads)?;
        match options.common.host.clone() {
            Some(host) => runtime.block_on(client(options, host)),
            None => runtime.block_on(serve(options)),
        }
    })
}

async fn serve(options: &Options) -> Result<(), Failure> {
    let device = programs::open(&options.common)?;
    let events = CqEvents::create_tokio(&device)?;
    let server = Arc::new(Server::new(options, &device, &events)?);
    let listener = Listener::bind(options.common.port)?;
    let (name, port) = (device.device().name(), listener.port());
    let listener = TcpListener::from_std(listener.into_socket())?;
    say(format_args!("waiting on {name}, TCP port {port}"))?;
    let mut clients = JoinSet::new();
    while !server.is_done() {
        tokio::select! {
            came = listener.accept() => {
                let (stream, _from) = came.context(|| "cannot accept a client")?;
                let server = Arc::clone(&server);
                let tcp = socket(&stream)?;
                clients.spawn(async move { server.serve(tcp, stream.compat(), sleep).await });
            }
            Some(ended) = clients.join_next() => ended??,
            () = sleep(options.common.wait()), if clients.is_empty() => {
                server.no_client_comes()?;
                break;
            }
            pressed = ctrl_c() => {
                pressed?;
                break;
            }
        }
    }
    server.end();
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    server.print()
}

async fn client(options: &Options, host: String) -> Result<(), Failure> {
    let device = programs::open(&options.common)?;
    let events = CqEvents::create_tokio(&device)?;
    let client = Arc::new(Client::new(options, &device, &events)?);
    let start = Instant::now();
    let mut connections = JoinSet::new();
    for number in 0..options.connections {
        let (client, common, host) = (Arc::clone(&client), options.common.clone(), host.clone());
        connections.spawn(async move {
            let connecting = TcpStream::connect((host.as_str(), common.port));
            let connected = timeout(common.limit(), connecting).await;
            let connected = connected.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into()));
            let stream = connected.context(|| common.cannot_connect(&host))?;
            client
                .run(number, socket(&stream)?, stream.compat(), sleep)
                .await
        });
    }
    let mut took = Vec::new();
    while let Some(ended) = connections.join_next().await {
        took.extend(ended??);
    }
    client.print("async_echo", took, start.elapsed())
}
