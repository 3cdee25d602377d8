//! Sends messages back and forth over many connections with one shared receive queue, as
//! `ibv_srq_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself.
//!
//! Read first: `play` and `completed` in `game.rs`.

mod buffers;
mod game;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use programs::{
    Address, AddressError, Common, Context as _, Failure, Listener, Measured, Patience, Peer, run,
    say,
};
use verbs_core::completion::CompletionChannel;
use verbs_core::queue_pair::SharedReceives;
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{
    AccessFlags, CompletionQueue, Context, MaximumTransferUnit, PreparedQueuePair, QueuePair,
};

use crate::buffers::Buffers;
use crate::game::Game;

/// Send messages back and forth over many connections (RC) with one shared receive queue (SRQ), like
/// `ibv_srq_pingpong`
///
/// Either end may be C's `ibv_srq_pingpong`, with the same -s, -q and -n (and -g, which C needs on RoCE).
#[derive(Debug, Parser)]
#[command(name = "srq_pingpong", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Size of the messages in bytes
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,

    /// Path MTU, the same at both ends: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", default_value = "1024")]
    mtu: MaximumTransferUnit,

    /// How many queue pairs to connect, the same at both ends
    #[arg(short = 'q', long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..i64::from(MAX_QP)))]
    num_qp: u32,

    /// How many receives to post at a time, at least one for each queue pair
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rx_depth: u32,

    /// How many messages each side sends, on all queue pairs together
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// Service level
    #[arg(short = 'l', long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,

    /// Sleep until completions are announced, instead of polling
    #[arg(short, long)]
    events: bool,

    /// Check every byte of every message; each of the receives has memory of its own then
    #[arg(short, long)]
    chk: bool,
}

/// Addresses in the exchange, however many queue pairs there are.
const MAX_QP: u32 = 256;

const EXAMPLES: &str = "\
Examples:
  srq_pingpong                      be the server, on the first active device
  srq_pingpong 192.0.2.1            be its client
  srq_pingpong -d rxe0 -q 100 -c    100 queue pairs on rxe0, every byte checked
  srq_pingpong -d rxe1 -q 100 HOST  the client for that; either may be ibv_srq_pingpong";

fn main() -> ExitCode {
    run(pingpong)
}

fn pingpong(options: &Options) -> Result<(), Failure> {
    let Options { common, .. } = options;
    let (num_qp, rx_depth) = (options.num_qp, options.rx_depth);
    if num_qp > rx_depth {
        return Err(Failure::new(format!(
            "-r {rx_depth} is too small for {num_qp} queue pairs: there must be a receive for each"
        )));
    }
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let buffers = Buffers::new(&pd, options)?;
    let (cq, channel) = completions(&context, options)?;
    let srq = SharedReceiveQueue::create(&pd, rx_depth)?;
    let builder = QueuePair::builder(&pd, &cq, &cq)
        .max_send_wr(1)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qp_access_flags(AccessFlags::empty())
        .path_mtu(options.mtu)
        .max_rd_atomic(1)
        .max_dest_rd_atomic(1)
        .sl(options.sl)
        .srq(&srq);
    let mut prepared = Vec::new();
    for _ in 0..num_qp {
        prepared.push(builder.build()?);
    }
    // It has a clone of the shared receive queue, which is closed at the end.
    drop(builder);
    if let Some(first) = prepared.first() {
        programs::check_size(&context, first.endpoint().port_num(), options.size.into())?;
    }
    let mut game = Game {
        qps: Vec::new(),
        srq,
        numbers: prepared
            .iter()
            .map(PreparedQueuePair::qp_num)
            .zip(0..)
            .collect(),
        buffers: &buffers,
        patience: Patience::new(common.limit(), None),
        options,
        free: (0..rx_depth).collect(),
        received: 0,
        sent: 0,
        begun: 0,
        underway: Vec::new(),
        cq,
        channel,
    };
    game.post_receives()?;
    if game.channel.is_some() {
        game.cq.req_notify(false)?;
    }
    game.qps = connect(prepared, common)?;
    let took = game.play(common.host.is_some())?;
    game.close()?;
    report(options, took)?;
    if common.host.is_some() {
        let (size, iters) = (options.size.into(), options.iters.into());
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
    let cq = CompletionQueue::builder(context, options.rx_depth + options.num_qp)
        .channel(channel.as_ref())
        .build()?;
    Ok((cq, channel))
}

/// Exchanges addresses over TCP and connects. The server connects first, so that it is ready when
/// the client has its addresses.
fn connect(
    prepared: Vec<PreparedQueuePair<SharedReceives>>,
    common: &Common,
) -> Result<Vec<QueuePair<SharedReceives>>, Failure> {
    let ours: Vec<_> = prepared
        .iter()
        .map(|qp| Address::from(&qp.endpoint()))
        .collect();
    for ours in &ours {
        say(format_args!("  local address:  {ours}"))?;
    }
    let connected = |theirs: Vec<Address>| {
        for (_, theirs) in prepared.iter().zip(&theirs) {
            say(format_args!("  remote address: {theirs}"))?;
        }
        let pairs = prepared.into_iter().zip(theirs);
        let connected = pairs.map(|(qp, theirs)| {
            let connected = qp.handshake(&theirs.to_endpoint()?);
            connected.context(|| "cannot connect a queue pair")
        });
        connected.collect::<Result<Vec<_>, Failure>>()
    };
    if let Some(host) = &common.host {
        let peer = Peer::connect(host, common.port, common.limit())?;
        send_addresses(&peer, &ours)?;
        let qps = connected(addresses(&peer)?)?;
        peer.send(&Address::DONE)?;
        Ok(qps)
    } else {
        let peer = Listener::bind(common.port)?.accept(common.wait(), common.limit())?;
        let qps = connected(addresses(&peer)?)?;
        send_addresses(&peer, &ours)?;
        let mut done = [0; Address::DONE.len()];
        peer.receive(&mut done)
            .context(|| "the client did not connect")?;
        if done == Address::DONE {
            Ok(qps)
        } else {
            Err(AddressError::Format.into())
        }
    }
}

/// The number on the wire is the same for any number of queue pairs: the rest is zeros.
fn send_addresses(peer: &Peer, ours: &[Address]) -> Result<(), Failure> {
    let none = std::iter::repeat(&Address::NONE);
    let all = ours.iter().chain(none).take(MAX_QP as usize);
    let wire: Vec<u8> = all.flat_map(Address::to_wire).collect();
    peer.send(&wire)
}

fn addresses(peer: &Peer) -> Result<Vec<Address>, Failure> {
    let mut wire = vec![[0; Address::WIRE_LEN]; MAX_QP as usize];
    peer.receive(wire.as_flattened_mut())?;
    let addresses = wire.iter().map(Address::from_wire);
    Ok(addresses.collect::<Result<_, _>>()?)
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
