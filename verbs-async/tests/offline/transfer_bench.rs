//! The fixture of tests of transfers: two channels, timers, and a device that the test completes by
//! hand.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use fake_libibverbs::{is_in_flight, with};
use verbs_async::verbs_channel::engine::TransferOutcome;
use verbs_async::verbs_channel::{
    BufferPool, Channel, ChannelId, Outgoing, OwnedRequest, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, AsyncTransfer};
use verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_WR_FLUSH_ERR};
use verbs_core::verbs_sys::{ibv_wc, ibv_wc_status};

use crate::bench::{Bench, Task, join};

pub(crate) const TIMEOUT: Duration = Duration::from_millis(200);
pub(crate) const DRAIN: Duration = Duration::from_millis(30);

/// Timers that run out when the test ends them.
#[derive(Default)]
pub(crate) struct Clock(RefCell<Vec<(Duration, bool)>>);

impl Clock {
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        let mut timers = self.0.borrow_mut();
        let at = timers.len();
        timers.push((time, false));
        poll_fn(move |_| match self.0.borrow()[at].1 {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// All timers have passed.
    pub(crate) fn passes(&self) {
        let mut timers = self.0.borrow_mut();
        timers
            .iter_mut()
            .for_each(|(_, has_passed)| *has_passed = true);
    }

    /// The times of all timers: those that are left of `TIMEOUT` and `DRAIN`.
    pub(crate) fn times(&self) -> Vec<Duration> {
        let timers = self.0.borrow();
        let whole = |left| match left {
            _ if left > TIMEOUT => left,
            _ if left > DRAIN => TIMEOUT,
            _ => DRAIN,
        };
        timers.iter().map(|(left, _)| whole(*left)).collect()
    }
}

/// A group of two channels with room for two sends each.
pub(crate) struct Pair {
    pub(crate) group: AsyncGroup,
    pub(crate) a: AsyncChannel,
    pub(crate) b: AsyncChannel,
    pub(crate) pool: BufferPool,
}

impl Pair {
    pub(crate) fn new(bench: &Bench) -> Self {
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(2).max_recv_wr(2);
        let builder = builder.drain_timeout(DRAIN);
        let group = AsyncGroup::new(builder, 4, &bench.events).unwrap();
        let (a, b) = (join(&group), join(&group));
        let pool = BufferPool::new(&pd, 64, 12).unwrap();
        with(|library| library.modified.clear());
        Self { group, a, b, pool }
    }

    pub(crate) fn send(&self) -> OwnedRequest {
        Outgoing::send(self.pool.take().unwrap()).into()
    }

    /// Sends on these channels, which have begun.
    pub(crate) fn sends(&self, channels: &[ChannelId]) -> AsyncTransfer {
        let mut transfer = self.group.transfer(channels.len());
        channels
            .iter()
            .for_each(|at| transfer.add(*at, self.send()));
        drop(Task::new(transfer.finish()).waits());
        transfer
    }

    pub(crate) fn free(&self) -> usize {
        self.pool.available()
    }
}

pub(crate) fn ends(wr_id: u64, status: ibv_wc_status) {
    let end = ibv_wc {
        wr_id,
        status,
        ..Default::default()
    };
    with(|library| library.done.push_back(end));
}

/// The device flushes what is in flight, of these requests.
pub(crate) fn flushes(requests: &[u64]) {
    let left = requests.iter().filter(|wr_id| is_in_flight(**wr_id));
    left.for_each(|wr_id| ends(*wr_id, IBV_WC_WR_FLUSH_ERR));
}

/// How many queue pairs were moved to `ERR`.
pub(crate) fn aborted() -> usize {
    with(|library| {
        let modified = library.modified.iter();
        modified
            .filter(|(attr, _)| attr.qp_state == IBV_QPS_ERR)
            .count()
    })
}

/// The driver refuses this once.
pub(crate) fn refuse(verb: &'static str) {
    with(|library| library.refuse.push((verb, libc::EIO)));
}

pub(crate) fn destroyed() -> usize {
    with(|library| {
        let calls = library.calls.iter();
        calls.filter(|call| **call == "ibv_destroy_qp").count()
    })
}

/// The results of all operations, which have their buffers.
pub(crate) fn results(transfer: &mut AsyncTransfer) -> Vec<Result<(), TransportError>> {
    let outcomes = transfer.drain().enumerate();
    let result = |(index, outcome): (usize, TransferOutcome)| {
        assert_eq!(outcome.index, index);
        assert_eq!(outcome.buffer.unwrap().capacity(), 64);
        outcome.result.map(drop)
    };
    outcomes.map(result).collect()
}

pub(crate) const fn is_timed_out(result: &Result<(), TransportError>) -> bool {
    matches!(result, Err(TransportError::Aborted(reason)) if reason.is_timed_out())
}

pub(crate) const fn is_rejected(result: &Result<(), TransportError>) -> bool {
    matches!(result, Err(TransportError::Rejected(_)))
}
