//! Sends a message back and forth over a reliable connection, as `ibv_rc_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself.
//!
//! Read first: `play`, `completed` and `send` in `game.rs`.
#![expect(unsafe_code, reason = "posts work requests")]

mod buffers;
mod game;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use examples::{
    Address, AddressError, Common, Context as _, Failure, Listener, Measured, Patience, Peer, run,
    say,
};
use verbs_core::{
    AccessFlags, CompletionChannel, CompletionQueue, Context, MaximumTransferUnit,
    PreparedQueuePair, QueuePair,
};

use crate::buffers::Buffers;
use crate::game::{Game, RECEIVE, receive};

/// Send a message back and forth over a reliable connection (RC), like `ibv_rc_pingpong`
///
/// Either end may be C's `ibv_rc_pingpong`, with the same -s and -n (and -g, which C needs on RoCE).
#[derive(Debug, Parser)]
#[command(name = "rc_pingpong", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Size of the message in bytes
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,

    /// Path MTU, the same at both ends: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", default_value = "1024")]
    mtu: MaximumTransferUnit,

    /// How many receives to post at a time
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rx_depth: u32,

    /// How many messages each side sends
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// Service level
    #[arg(short = 'l', long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,

    /// Sleep until completions are announced, instead of polling
    #[arg(short, long)]
    events: bool,

    /// Check every byte of every message
    #[arg(short, long)]
    chk: bool,
}

const EXAMPLES: &str = "\
Examples:
  rc_pingpong                           be the server, on the first active device
  rc_pingpong 192.0.2.1                 be its client
  rc_pingpong -d rxe0 -s 65536 -c       64 KiB messages over rxe0, every byte checked
  rc_pingpong -d rxe1 -s 65536 -c HOST  the client for that; either may be ibv_rc_pingpong";

fn main() -> ExitCode {
    run(pingpong)
}

fn pingpong(options: &Options) -> Result<(), Failure> {
    let Options { common, iters, .. } = options;
    let context = examples::open(common)?;
    let pd = context.alloc_pd()?;
    let buffers = Buffers::new(&pd, options)?;
    let (cq, channel) = completions(&context, options)?;
    let prepared = QueuePair::builder(&pd, &cq, &cq)
        .max_send_wr(1)
        .max_recv_wr(options.rx_depth)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qp_access_flags(AccessFlags::empty())
        .path_mtu(options.mtu)
        .max_rd_atomic(1)
        .max_dest_rd_atomic(1)
        .sl(options.sl)
        .build()?;
    let port_num = prepared.endpoint().port_num();
    examples::check_size(&context, port_num, options.size.into())?;
    let mut element = buffers.receive()?;
    receive(&mut element, options.rx_depth, |receive| {
        // SAFETY: `buffers` outlives the queue pair, which is declared after it; its receive buffer
        // is a shared region, of which only copies are taken.
        unsafe { prepared.post_receive(receive) }
    })?;
    if channel.is_some() {
        cq.req_notify(false)?;
    }
    let qp = connect(prepared, common)?;
    let mut game = Game {
        buffers: &buffers,
        patience: Patience::new(common.limit(), None),
        options,
        posted: options.rx_depth,
        received: 0,
        sent: 0,
        underway: RECEIVE,
        qp,
        cq,
        channel,
    };
    let took = game.play(common.host.is_some())?;
    game.close()?;
    report(options, took)?;
    if common.host.is_some() {
        let (size, iters) = (options.size.into(), (*iters).into());
        Measured::new("send", size, iters, took, options.chk).print()?;
    }
    Ok(())
}

/// The queue, with a channel that announces its completions if they are to be slept for.
fn completions(
    context: &Context,
    options: &Options,
) -> Result<(CompletionQueue, Option<CompletionChannel>), Failure> {
    let channel = options.events.then(|| CompletionChannel::create(context));
    let channel = channel.transpose()?;
    let cq = CompletionQueue::builder(context, options.rx_depth + 1)
        .channel(channel.as_ref())
        .build()?;
    Ok((cq, channel))
}

/// Exchanges addresses over TCP and connects. The server connects first, so that it is ready when
/// the client has its address.
fn connect(prepared: PreparedQueuePair, common: &Common) -> Result<QueuePair, Failure> {
    let ours = Address::from(&prepared.endpoint());
    say(format_args!("  local address:  {ours}"))?;
    let connected = |theirs: Address| {
        say(format_args!("  remote address: {theirs}"))?;
        let connected = prepared.handshake(&theirs.to_endpoint()?);
        connected.context(|| "cannot connect the queue pair")
    };
    if let Some(host) = &common.host {
        let peer = Peer::connect(host, common.port, common.limit())?;
        peer.send(&ours.to_wire())?;
        let qp = connected(address(&peer)?)?;
        peer.send(&Address::DONE)?;
        Ok(qp)
    } else {
        let peer = Listener::bind(common.port)?.accept(common.wait(), common.limit())?;
        let qp = connected(address(&peer)?)?;
        peer.send(&ours.to_wire())?;
        let mut done = [0; Address::DONE.len()];
        peer.receive(&mut done)
            .context(|| "the client did not connect")?;
        if done == Address::DONE {
            Ok(qp)
        } else {
            Err(AddressError::Format.into())
        }
    }
}

fn address(peer: &Peer) -> Result<Address, Failure> {
    let mut wire = [0; Address::WIRE_LEN];
    peer.receive(&mut wire)?;
    Ok(Address::from_wire(&wire)?)
}

/// C's output.
fn report(options: &Options, took: Duration) -> Result<(), Failure> {
    let (size, iters) = (u64::from(options.size), u64::from(options.iters));
    let (bytes, seconds) = (size * iters * 2, took.as_secs_f64());
    let usec = seconds * 1e6;
    let megabits = bytes as f64 * 8.0 / usec;
    say(format_args!(
        "{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec"
    ))?;
    let each = usec / iters as f64;
    say(format_args!(
        "{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
    ))
}
