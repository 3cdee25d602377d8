//! Sends messages to and fro on async channels, in smol: no tokio is needed.
//!
//! Read first: `send` in `../echo/client.rs`, and `echo` in `../echo/server.rs`.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

use async_signal::{Signal, Signals};
use clap::Parser;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use programs::echo::{Client, Options, Server, socket};
use programs::silence::first;
use programs::{Context as _, Failure, Listener, run, say};
use smol::{Async, Timer, net};
use verbs_async::CqEvents;

/// Send messages to and fro on async channels in smol, and check every byte that comes back
///
/// The same as `async_echo`, which may be the other end, on one thread.
#[derive(Debug, Parser)]
#[command(name = "smol_echo", after_help = EXAMPLES)]
struct Program {
    #[command(flatten)]
    echo: Options,
}

const EXAMPLES: &str = "\
Examples:
  smol_echo              be the server, until Ctrl-C
  smol_echo 192.0.2.1    be its client, or that of an async_echo";

fn main() -> ExitCode {
    run(|Program { echo }: &Program| match &echo.common.host {
        Some(host) => smol::block_on(client(echo, host)),
        None => smol::block_on(serve(echo)),
    })
}

/// The event that a server waits for.
enum Next {
    Came(Async<TcpStream>),
    Left,
    Over,
}

async fn serve(options: &Options) -> Result<(), Failure> {
    let device = programs::open(&options.common)?;
    let events = CqEvents::create_async_io(&device)?;
    let server = Server::new(options, &device, &events)?;
    let listener = Listener::bind(options.common.port)?;
    let (name, port) = (device.device().name(), listener.port());
    let listener: Async<TcpListener> = listener.into_socket().try_into()?;
    say(format_args!("waiting on {name}, TCP port {port}"))?;
    let mut ctrl_c = Signals::new([Signal::Int])?;
    let mut clients = FuturesUnordered::new();
    while !server.is_done() {
        let came = async {
            let accepted = listener.accept().await;
            let (stream, _from) = accepted.context(|| "cannot accept a client")?;
            Ok(Next::Came(stream))
        };
        let left = async {
            if let Some(ended) = clients.next().await {
                let ended: Result<(), Failure> = ended;
                return ended.map(|()| Next::Left);
            }
            let _now = Timer::after(options.common.wait()).await;
            server.no_client_comes().map(|()| Next::Over)
        };
        let pressed = async {
            let _signal = ctrl_c.next().await;
            Ok(Next::Over)
        };
        let next = first(came, first(left, pressed)).await?;
        match next {
            Next::Came(stream) => {
                clients.push(server.serve(socket(&stream)?, stream, Timer::after));
            }
            Next::Left => {}
            Next::Over => break,
        }
    }
    server.end();
    while let Some(ended) = clients.next().await {
        ended?;
    }
    server.print()
}

async fn client(options: &Options, host: &str) -> Result<(), Failure> {
    let device = programs::open(&options.common)?;
    let events = CqEvents::create_async_io(&device)?;
    let client = Client::new(options, &device, &events)?;
    let (port, start) = (options.common.port, Instant::now());
    let connection = async |number| {
        let late = async {
            let _now = Timer::after(options.common.limit()).await;
            Err(ErrorKind::TimedOut.into())
        };
        let stream = first(net::TcpStream::connect((host, port)), late).await;
        let stream = stream.context(|| options.common.cannot_connect(host))?;
        client
            .run(number, socket(&stream)?, stream, Timer::after)
            .await
    };
    let mut connections: FuturesUnordered<_> = (0..options.connections).map(connection).collect();
    let mut took = Vec::new();
    while let Some(ended) = connections.next().await {
        took.extend(ended?);
    }
    client.print("smol_echo", took, start.elapsed())
}
