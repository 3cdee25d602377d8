//! Parts of the random programs: numbers from a seed, a device that completes requests, and its
//! faults.
//!
//! A failure prints the seed of its program. `FUZZ_SEED=N` runs that program alone, `FUZZ_ROUNDS=N`
//! runs `N` programs from there on.

use std::collections::HashMap;
use std::{env, mem, thread};

use verbs_core::verbs_sys::{
    IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_status,
};

use super::{is_in_flight, with};

/// Runs programs: `count` of them, unless the environment asks for others.
pub fn programs(count: u64, run: fn(u64)) {
    let number = |name| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seed = number("FUZZ_SEED");
    let rounds = match (number("FUZZ_ROUNDS"), seed) {
        (Some(rounds), _) => rounds,
        (None, Some(_)) => 1,
        (None, None) if cfg!(miri) => 4,
        (None, None) => count,
    };
    let first = seed.unwrap_or(0);
    for seed in first..first + rounds {
        // Each thread has a library of its own.
        let program = thread::Builder::new().name(format!("FUZZ_SEED={seed}"));
        let program = program.spawn(move || run(seed)).unwrap();
        let ended = program.join();
        assert!(ended.is_ok(), "failed: replay it with FUZZ_SEED={seed}");
    }
}

/// A generator of numbers (`SplitMix64`).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.number() % count as u64).unwrap()
    }

    /// Whether it is one of `count` cases.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A request that the device has not completed.
struct Posted {
    wr_id: u64,
    qp_num: u32,
    is_send: bool,
    is_signaled: bool,
    length: u32,
}

/// The device: it completes posted requests.
#[derive(Default)]
pub struct FaultyDevice {
    /// No request fails.
    pub is_healthy: bool,
    posted: Vec<Posted>,
    /// The status of each completion, by its `wr_id`.
    statuses: HashMap<u64, ibv_wc_status>,
    /// The `wr_id` of the last request for each address.
    addresses: HashMap<u64, u64>,
}

impl FaultyDevice {
    /// Records what was posted, and checks the bytes to send.
    pub fn see(&mut self) {
        let posted = with(|library| mem::take(&mut library.posted));
        for posted in posted.into_iter().flatten() {
            let mark = posted.sent.first().copied();
            assert!(
                posted.sent.iter().all(|byte| Some(*byte) == mark),
                "other bytes"
            );
            let addresses = posted.list.iter().map(|(addr, ..)| (*addr, posted.wr_id));
            self.addresses.extend(addresses);
            self.posted.push(Posted {
                wr_id: posted.wr_id,
                qp_num: posted.qp_num,
                is_send: posted.is_send,
                is_signaled: !posted.is_send || posted.send_flags & 2 != 0,
                length: posted.list.iter().map(|(_, length, _)| length).sum(),
            });
        }
        // Requests of a destroyed queue pair do not complete; completions in the queue are polled.
        self.posted.retain(|posted| is_in_flight(posted.wr_id));
    }

    /// Completes the first request of a queue. After a failure, the rest is flushed.
    pub fn complete(&mut self, random: &mut Random) {
        self.see();
        if self.posted.is_empty() {
            return;
        }
        let any = &self.posted[random.below(self.posted.len())];
        let (qp_num, is_send) = (any.qp_num, any.is_send);
        let is_next = |posted: &Posted| (posted.qp_num, posted.is_send) == (qp_num, is_send);
        let fails = random.one_in(12) && !self.is_healthy;
        while let Some(at) = self.posted.iter().position(is_next) {
            let done = self.posted.remove(at);
            if done.is_signaled || fails {
                let status = if fails {
                    IBV_WC_REM_ACCESS_ERR
                } else {
                    IBV_WC_SUCCESS
                };
                self.finish(&done, status);
                break;
            }
        }
        if fails && !random.one_in(4) {
            self.flush(qp_num);
        }
    }

    /// How many entries of the completion queue are taken, or may be at any time: by requests that are
    /// in flight, and by their completions that were not polled.
    pub fn occupied(&self) -> usize {
        let is_ours = |done: &&ibv_wc| self.statuses.contains_key(&done.wr_id);
        let unpolled = with(|library| library.done.iter().filter(is_ours).count());
        self.posted.len() + unpolled
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&mut self) -> bool {
        self.see();
        self.posted.is_empty()
    }

    /// Completes all requests in flight successfully.
    pub fn complete_all(&mut self) {
        self.see();
        for done in mem::take(&mut self.posted) {
            if done.is_signaled {
                self.finish(&done, IBV_WC_SUCCESS);
            }
        }
    }

    /// Asserts that an operation ended as its requests did. An aborted one may have completed on the
    /// device if the queue could not be polled any more.
    pub fn assert_agrees<T, E>(
        &self,
        wr_ids: &[u64],
        result: &Result<T, E>,
        is_work_error: impl FnOnce(&E) -> bool,
    ) {
        let statuses = || wr_ids.iter().filter_map(|wr_id| self.statuses.get(wr_id));
        let has_failed = statuses().any(|status| *status != IBV_WC_SUCCESS);
        match result {
            Ok(_) => assert!(self.has_succeeded(wr_ids), "it did not succeed"),
            Err(error) if is_work_error(error) => assert!(has_failed, "it did not fail"),
            Err(_) => {}
        }
    }

    /// The last request whose first byte was at this address.
    pub fn posted_at(&self, address: usize) -> Option<u64> {
        self.addresses.get(&(address as u64)).copied()
    }

    /// Whether a request has completed.
    pub fn has_completed(&self, wr_id: Option<u64>) -> bool {
        wr_id.is_some_and(|wr_id| self.statuses.contains_key(&wr_id))
    }

    /// Whether the last of these requests has succeeded, and none before it has failed.
    pub fn has_succeeded(&self, wr_ids: &[u64]) -> bool {
        let statuses = || wr_ids.iter().filter_map(|wr_id| self.statuses.get(wr_id));
        let is_complete = self.has_completed(wr_ids.last().copied());
        is_complete && statuses().all(|status| *status == IBV_WC_SUCCESS)
    }

    fn flush(&mut self, qp_num: u32) {
        let flushed = self.posted.extract_if(.., |posted| posted.qp_num == qp_num);
        for flushed in flushed.collect::<Vec<_>>() {
            self.finish(&flushed, IBV_WC_WR_FLUSH_ERR);
        }
    }

    fn finish(&mut self, posted: &Posted, status: ibv_wc_status) {
        let done = ibv_wc {
            wr_id: posted.wr_id,
            qp_num: posted.qp_num,
            status,
            byte_len: posted.length,
            ..Default::default()
        };
        self.statuses.insert(posted.wr_id, status);
        with(|library| library.done.push_back(done));
    }
}

/// The byte that the device writes at this index.
pub fn received(wr_id: u64, at: usize) -> u8 {
    let [a, b, .., c] = wr_id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    a ^ b ^ c ^ at.to_le_bytes()[0]
}

/// Asserts that these are the bytes that [`received`] gives.
pub fn assert_written(bytes: &[u8], wr_id: u64) {
    let expected = (0..bytes.len()).map(|at| received(wr_id, at));
    assert!(
        bytes.iter().copied().eq(expected),
        "other bytes than the device wrote"
    );
}

/// Removes the faults that no call has met.
pub fn no_more_faults() {
    with(|library| {
        library.refuse.clear();
        library.refuse_post = None;
        library.bad_wr = None;
        library.poll_answer = None;
    });
}

/// The `wr_id`s of the requests that were posted last.
pub fn last_posted() -> Vec<u64> {
    with(|library| {
        let last = library.posted.last().into_iter().flatten();
        last.map(|posted| posted.wr_id).collect()
    })
}

/// Adds a fault that some call will meet. Returns whether a buffer may be leaked because of it.
pub fn fault(random: &mut Random) -> bool {
    let errno = [libc::EIO, -libc::ENOMEM, libc::EINVAL][random.below(3)];
    let is_named = random.one_in(2);
    let at = random.below(3);
    match random.below(8) {
        0 => with(|library| library.poll_answer = Some(-2)),
        1 => with(|library| library.refuse_post = Some((at, errno, is_named))),
        2 => with(|library| {
            library.refuse_post = Some((at, errno, true));
            library.bad_wr = Some(0xdead_0000);
        }),
        3 => with(|library| library.refuse.push(("ibv_modify_qp", libc::EIO))),
        4 => with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO))),
        5 => with(|library| library.refuse.push(("ibv_create_qp", libc::ENOMEM))),
        6 => {
            with(|library| library.refuse.push(("ibv_dereg_mr", libc::EBUSY)));
            return true;
        }
        _ => {
            with(|library| library.refuse.push(("ibv_destroy_qp", libc::EBUSY)));
            return true;
        }
    }
    false
}

/// A completion of no operation.
pub fn stray_completion(random: &mut Random) {
    let done = ibv_wc {
        wr_id: random.number(),
        status: IBV_WC_SUCCESS,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}
