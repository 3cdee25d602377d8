//! Sends messages back and forth over many connections with one shared receive queue, as
//! `ibv_srq_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself.
//!
//! Read first: `run` and `completed` in `game.rs`.

mod buffers;
mod game;

use std::process::ExitCode;

use clap::Parser;
use programs::pingpong::{Connected, Queue, meet};
use programs::{Address, Failure, run};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{AccessFlags, PreparedQueuePair, QueuePair};

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
    connected: Connected,

    /// How many queue pairs to connect, the same at both ends: -n counts the messages on all of them,
    /// and -r is at least one for each
    #[arg(short = 'q', long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..MAX_QP as i64))]
    num_qp: u32,
}

impl Options {
    const fn game(&self) -> &programs::pingpong::Options {
        &self.connected.options
    }
}

/// Addresses in the exchange, however many queue pairs there are.
const MAX_QP: usize = 256;

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
    let (connected, num_qp) = (&options.connected, options.num_qp);
    let game = options.game();
    let (common, rx_depth) = (&game.common, game.rx_depth);
    if num_qp > rx_depth {
        return Err(Failure::new(format!(
            "-r {rx_depth} is too small for {num_qp} queue pairs: there must be a receive for each"
        )));
    }
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let buffers = Buffers::new(&pd, connected)?;
    let queue = Queue::new(&context, game, rx_depth + num_qp)?;
    let srq = SharedReceiveQueue::create(&pd, rx_depth)?;
    let builder = QueuePair::builder(&pd, &queue.cq, &queue.cq)
        .max_send_wr(1)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qp_access_flags(AccessFlags::empty())
        .path_mtu(connected.mtu)
        .max_rd_atomic(1)
        .max_dest_rd_atomic(1)
        .sl(game.sl)
        .srq(&srq);
    let mut prepared = Vec::new();
    for _ in 0..num_qp {
        prepared.push(builder.build()?);
    }
    // It has a clone of the shared receive queue, which is closed at the end.
    drop(builder);
    if let Some(first) = prepared.first() {
        programs::check_size(&context, first.endpoint().port_num(), connected.size.into())?;
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
        options,
        free: (0..rx_depth).collect(),
        received: 0,
        sent: 0,
        begun: 0,
        underway: Vec::new(),
    };
    game.post_receives()?;
    queue.arm()?;
    let ours = prepared.iter().map(|qp| Address::from(&qp.endpoint()));
    let ours: Vec<_> = ours.collect();
    game.qps = meet(common, &ours, |theirs: [_; MAX_QP]| {
        let pairs = prepared.into_iter().zip(theirs);
        pairs
            .map(|(qp, theirs)| Ok(qp.handshake(&theirs.to_endpoint()?)?))
            .collect()
    })?;
    game.run(&queue)
}
