//! The device of both streams: it moves the messages of one to the memory of the other.

use std::collections::VecDeque;
use std::mem;

use fake_libibverbs::{Posted, announce_last, deliver, is_in_flight, with};
use verbs_core::verbs_sys::{
    __be32, IBV_WC_RECV, IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_status,
};

use crate::bench::Bench;

/// The connection of two queue pairs.
pub(super) struct Wire {
    sides: [Side; 2],
}

#[derive(Default)]
struct Side {
    qp_num: u32,
    receives: VecDeque<Posted>,
    sends: VecDeque<Posted>,
    /// The `wr_id`s of messages that have arrived, and of which the sender has no completion.
    arrived: VecDeque<u64>,
    /// Bytes of the stream that have arrived at the other side.
    bytes: usize,
    has_failed: bool,
}

/// The kind of a message with bytes of the stream.
const DATA: u8 = 2;

impl Wire {
    pub(super) fn new(qp_nums: [u32; 2]) -> Self {
        let sides = qp_nums.map(|qp_num| Side {
            qp_num,
            ..Side::default()
        });
        Self { sides }
    }

    /// Records new posts.
    fn see(&mut self) {
        let posted = with(|library| mem::take(&mut library.posted));
        for posted in posted.into_iter().flatten() {
            let of_it = |side: &&mut Side| side.qp_num == posted.qp_num;
            let Some(side) = self.sides.iter_mut().find(of_it) else {
                continue;
            };
            match posted.is_send {
                true => side.sends.push_back(posted),
                false => side.receives.push_back(posted),
            }
        }
        for side in &mut self.sides {
            side.sends.retain(|send| is_in_flight(send.wr_id));
            side.receives.retain(|receive| is_in_flight(receive.wr_id));
            side.arrived.retain(|wr_id| is_in_flight(*wr_id));
        }
    }

    /// Delivers the oldest message of a side. Returns whether there was one. With `may_fail` there
    /// may be no receive for it.
    pub(super) fn deliver(&mut self, from: usize, may_fail: bool) -> bool {
        self.see();
        if self.sides[from].has_failed {
            return self.fail(from);
        }
        let Some(send) = self.sides[from].sends.pop_front() else {
            return false;
        };
        let receive = self.sides[1 - from].receives.pop_front();
        // A helper thread may have destroyed the peer's queue pair meanwhile.
        let Some(receive) = receive.filter(|receive| deliver(receive.wr_id, &send.sent)) else {
            assert!(may_fail, "a message finds no receive");
            self.sides[from].sends.push_front(send);
            return self.fail(from);
        };
        let mut arrived = ibv_wc {
            wr_id: receive.wr_id,
            qp_num: receive.qp_num,
            status: IBV_WC_SUCCESS,
            opcode: IBV_WC_RECV,
            byte_len: send.sent.len().try_into().unwrap(),
            wc_flags: IBV_WC_WITH_IMM.0,
            ..Default::default()
        };
        arrived.__bindgen_anon_1.imm_data = __be32(u32::from_ne_bytes(send.imm_data));
        with(|library| library.done.push_back(arrived));
        let side = &mut self.sides[from];
        if send.imm_data[0] >> 4 == DATA {
            side.bytes += send.sent.len();
        }
        side.arrived.push_back(send.wr_id);
        true
    }

    /// Completes the oldest delivered message at its sender. Returns whether there was one.
    pub(super) fn complete(&mut self, from: usize) -> bool {
        self.see();
        let side = &mut self.sides[from];
        match side.arrived.pop_front() {
            Some(wr_id) => completes(wr_id, IBV_WC_SUCCESS),
            None => return false,
        }
        true
    }

    /// A side loses its connection: its sends fail and its receives are flushed. Returns whether there
    /// were any. Delivered messages may be among the failed ones.
    pub(super) fn fail(&mut self, at: usize) -> bool {
        self.see();
        let side = &mut self.sides[at];
        side.has_failed = true;
        let sends = side.sends.drain(..).map(|send| send.wr_id);
        let mut status = IBV_WC_RETRY_EXC_ERR;
        let mut has_any = false;
        for wr_id in side.arrived.drain(..).chain(sends) {
            completes(wr_id, mem::replace(&mut status, IBV_WC_WR_FLUSH_ERR));
            has_any = true;
        }
        for receive in side.receives.drain(..) {
            completes(receive.wr_id, IBV_WC_WR_FLUSH_ERR);
            has_any = true;
        }
        has_any
    }

    /// How many bytes of the stream have arrived from this side.
    pub(super) const fn bytes(&self, from: usize) -> usize {
        self.sides[from].bytes
    }
}

/// Delivers the event of the queue, if it was armed since the last one and has completions.
/// Returns whether it did.
pub(super) fn announce(bench: &Bench) -> bool {
    let is_due = with(|library| {
        let is_due = !library.armed.is_empty() && !library.done.is_empty();
        if is_due {
            library.armed.clear();
        }
        is_due
    });
    let is_announced = is_due && announce_last();
    if is_announced {
        bench.hand.readable();
    }
    is_announced
}

fn completes(wr_id: u64, status: ibv_wc_status) {
    let done = ibv_wc {
        wr_id,
        status,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}
