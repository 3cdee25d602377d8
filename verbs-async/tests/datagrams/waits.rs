//! Awaited datagram endpoints: who is woken, what a dropped future leaves, and how waits end.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{
    announce_last, assert_all_is_well, deliver, is_all_ended, posted, share, with,
};
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::verbs_core::ProtectionDomain;
use verbs_async::verbs_channel::verbs_core::codes::Gid;
use verbs_async::verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_async::verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_GRH, IBV_WC_RECV, IBV_WC_SUCCESS, ibv_wc,
};
use verbs_async::verbs_channel::{
    BufferPool, Datagrams, DownReason, OwnedBuffer, RejectReason, TransportError,
};
use verbs_async::{AsyncDatagrams, Error};

use verbs_harness::allocations::allocations;
use verbs_harness::until;

use crate::bench::{Bench, Task, WakeCounter, announce, done, now, system_calls};

const HEADER: usize = 40;
/// Only what hangs takes so long.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Asserts that everything ends. The last of an endpoint is dropped on a helper thread.
pub(crate) fn assert_all_ends() {
    until(LONG, is_all_ended);
    assert_all_is_well();
}

pub(crate) fn peer() -> DatagramEndpoint {
    let gid: Gid = "::ffff:10.0.0.9".parse().unwrap();
    let endpoint = DatagramEndpoint::builder(0x77, QKey::MAX).gid(gid);
    endpoint.build().unwrap()
}

pub(crate) fn endpoint(bench: &Bench) -> (ProtectionDomain, AsyncDatagrams) {
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Datagrams::builder(&pd).max_send_wr(1).max_recv_wr(2);
    let datagrams = AsyncDatagrams::create(builder, &bench.events).unwrap();
    (pd, datagrams)
}

/// A datagram comes into this receive.
pub(crate) fn comes(wr_id: u64, bytes: &[u8]) {
    let mut message = vec![0; HEADER];
    message[20] = 0x45;
    message[32..36].copy_from_slice(&[10, 0, 0, 9]);
    message.extend_from_slice(bytes);
    assert!(deliver(wr_id, &message));
    let done = ibv_wc {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len: u32::try_from(message.len()).unwrap(),
        src_qp: 0x77,
        wc_flags: IBV_WC_GRH.0,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}

pub(crate) fn buffer(pd: &ProtectionDomain) -> OwnedBuffer {
    pd.reg_mr(vec![1_u8; 8]).unwrap().into()
}

/// Polls until it is ready: the address handle is made on a helper thread.
pub(crate) fn sends<T>(send: impl Future<Output = T>) -> T {
    let (mut task, begun) = (Task::new(send), Instant::now());
    loop {
        if let Poll::Ready(sent) = task.poll() {
            return sent;
        }
        assert!(begun.elapsed() < LONG, "it hangs");
        thread::yield_now();
    }
}

#[test]
fn dropped_future_loses_no_datagram_and_no_wake_up() {
    let _shared = share();
    let bench = Bench::new();
    let (_pd, datagrams) = endpoint(&bench);
    let receives = posted();
    let dropped = Task::new(datagrams.receive_from()).waits();
    let mut kept = Task::new(datagrams.receive_from()).waits();
    comes(receives[0], b"a");
    announce(&bench);
    assert_eq!((dropped.was_woken(), kept.was_woken()), (1, 0));
    drop(dropped);
    assert_eq!(kept.was_woken(), 1);
    assert_eq!(&kept.ends().unwrap()[..], b"a");
    // One that was dropped before it began, and one in the middle.
    drop(datagrams.receive_from());
    drop(Task::new(datagrams.receive_from()).waits());
    comes(receives[1], b"b");
    assert_eq!(&now(datagrams.receive_from()).unwrap()[..], b"b");
}

#[test]
fn block_that_comes_back_while_a_task_waits_is_posted_again() {
    let _shared = share();
    let bench = Bench::new();
    let (_pd, datagrams) = endpoint(&bench);
    let receives = posted();
    for wr_id in &receives {
        comes(*wr_id, b"x");
    }
    let taken = [(); 2].map(|()| now(datagrams.receive_from()).unwrap());
    assert_eq!(posted().len(), 2, "all blocks are in use");
    let mut task = Task::new(datagrams.receive_from()).waits();
    // No completion announces this.
    drop(taken);
    assert!(task.was_woken() > 0);
    assert!(task.poll().is_pending());
    assert_eq!(posted().len(), 4, "both receives are posted again");
    comes(posted()[2], b"again");
    announce(&bench);
    assert_eq!(&task.ends().unwrap()[..], b"again");
}

#[test]
fn block_of_a_send_is_free_when_it_was_polled_or_its_future_is_dropped() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let pool = BufferPool::new(&pd, 64, 2).unwrap();
    let block = || pool.take_with(b"x").unwrap().unwrap();
    let peer = peer();
    sends(datagrams.send_to(&peer, block())).unwrap();
    drop(Task::new(datagrams.send_to(&peer, block())).waits());
    assert_eq!(pool.available(), 1);
    assert_eq!(posted().len(), 3, "the receives, and the first datagram");
    let mut flush = Task::new(datagrams.flush()).waits();
    done([*posted().last().unwrap()]);
    announce(&bench);
    flush.ends();
    assert_eq!(pool.available(), 2);
}

#[test]
fn closed_or_failed_endpoint_ends_every_wait() {
    let _shared = share();
    for is_closed in [true, false] {
        let bench = Bench::new();
        let (pd, datagrams) = endpoint(&bench);
        let mut task = Task::new(datagrams.receive_from()).waits();
        match is_closed {
            true => sends(datagrams.close()).unwrap(),
            false => bench.hand.over(),
        }
        assert!(task.was_woken() > 0);
        let reason = match is_closed {
            true => DownReason::Closed,
            false => DownReason::NotifierFailed,
        };
        assert_eq!(task.ends().unwrap_err().down_reason(), Some(reason));
        assert_eq!(datagrams.down_reason(), Some(reason));
        now(datagrams.receive_from()).unwrap_err();
        let rejected = now(datagrams.send_to(&peer(), buffer(&pd))).unwrap_err();
        assert_eq!(rejected.into_given().len(), 8);
        now(datagrams.flush());
        drop(task);
        drop((datagrams, pd, bench));
        assert_all_ends();
    }
}

#[test]
fn each_datagram_wakes_one_task_and_each_room_one() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let receives = posted();
    let mut receiving = [(); 3].map(|()| Task::new(datagrams.receive_from()).waits());
    let peer = peer();
    sends(datagrams.send_to(&peer, buffer(&pd))).unwrap();
    let mut sending = [(); 3].map(|()| Task::new(datagrams.send_to(&peer, buffer(&pd))).waits());
    let mut flush = Task::new(datagrams.flush()).waits();
    let first = *posted().last().unwrap();
    comes(receives[0], b"a");
    announce(&bench);
    assert_eq!(receiving.each_ref().map(Task::was_woken), [1, 0, 0]);
    // Before the first is polled: it is the only one that is woken for it.
    comes(receives[1], b"b");
    announce(&bench);
    assert_eq!(receiving.each_ref().map(Task::was_woken), [1, 1, 0]);
    assert_eq!(sending.each_ref().map(Task::was_woken), [0; 3]);
    done([first]);
    announce(&bench);
    assert_eq!(receiving.each_ref().map(Task::was_woken), [1, 1, 0]);
    assert_eq!(sending.each_ref().map(Task::was_woken), [1, 0, 0]);
    let taken = [0, 1].map(|at| receiving[at].ends().unwrap());
    assert_eq!(taken.each_ref().map(|datagram| &datagram[..]), [b"a", b"b"]);
    assert_eq!(taken[0].from().qp_num(), 0x77);
    for (at, send) in (1..).zip(&mut sending) {
        assert_eq!(send.was_woken(), 1);
        send.ends().unwrap();
        assert_eq!(flush.was_woken(), at, "all had left");
        assert!(flush.poll().is_pending());
        done([*posted().last().unwrap()]);
        announce(&bench);
    }
    flush.ends();
    assert!(receiving[2].poll().is_pending());
    drop((receiving, sending, flush, taken));
    drop((datagrams, pd, bench));
    assert_all_ends();
}

#[test]
fn task_that_was_woken_and_is_not_polled_delays_no_other_of_its_own() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let peer = peer();
    sends(datagrams.send_to(&peer, buffer(&pd))).unwrap();
    let woken = Task::new(datagrams.send_to(&peer, buffer(&pd))).waits();
    done([*posted().last().unwrap()]);
    announce(&bench);
    assert_eq!(woken.was_woken(), 1);
    now(datagrams.send_to(&peer, buffer(&pd))).unwrap();
    assert_eq!(woken.was_woken(), 1);
    let mut woken = woken.waits();
    done([*posted().last().unwrap()]);
    announce(&bench);
    assert_eq!(woken.was_woken(), 2);
    woken.ends().unwrap();
}

#[test]
fn task_that_was_woken_and_does_not_come_hands_its_turn_on() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let kept = Task::new(datagrams.receive_from()).waits();
    let mut others = [(); 2].map(|()| Task::new(datagrams.receive_from()).waits());
    comes(posted()[0], b"one");
    announce(&bench);
    assert_eq!((kept.was_woken(), others[0].was_woken()), (1, 0));
    assert!(until(LONG, || others[0].was_woken() > 0), "it sleeps on");
    // The second does not come, either.
    assert!(until(LONG, || others[1].was_woken() > 0), "it sleeps on");
    assert_eq!(&others[1].ends().unwrap()[..], b"one");
    drop((kept, others));
    drop((datagrams, pd, bench));
    assert_all_ends();
}

#[test]
fn poll_returns_on_time_while_completions_keep_coming() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let ends = || with(|library| library.endless.take());
    with(|library| library.endless = Some(u64::MAX));
    let (returns, returned) = mpsc::channel();
    let watchdog = thread::spawn(move || {
        // A poll that lasts as long as the flood returns, too.
        if returned.recv_timeout(LONG).is_err() {
            ends();
        }
    });
    let mut task = Task::new(datagrams.receive_from()).waits();
    assert!(ends().is_some(), "the poll lasts as long as the flood");
    returns.send(()).unwrap();
    watchdog.join().unwrap();
    // A helper thread goes on until the queue is armed. Completions that came after that have raised an event.
    let is_over = || {
        if system_calls().0 > 0 && announce_last() {
            bench.hand.readable();
        }
        with(|library| library.done.is_empty())
    };
    assert!(until(LONG, is_over), "the rest is left");
    comes(posted()[0], b"hello");
    assert_eq!(&sends(task.future()).unwrap()[..], b"hello");
    drop(task);
    drop((datagrams, pd, bench));
    assert_all_ends();
}

#[test]
fn datagrams_allocate_nothing_once_the_endpoint_is_warm() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let pool = BufferPool::new(&pd, 64, 1).unwrap();
    let peer = peer();
    with(|library| {
        library.calls.reserve(10_000);
        library.rooms.reserve(10_000);
        library.armed.reserve(10_000);
    });
    let waker = Waker::from(WakeCounter::new());
    let round = || {
        sends(datagrams.send_to(&peer, pool.take_with(b"x").unwrap().unwrap())).unwrap();
        done([*posted().last().unwrap()]);
        // The library would check their memory, and allocates for that.
        fake_libibverbs::forget_requests();
        let before = allocations();
        let mut cx = Context::from_waker(&waker);
        let mut receiving = pin!(datagrams.receive_from());
        let mut flush = pin!(datagrams.flush());
        let mut polls = 0;
        while flush.as_mut().poll(&mut cx).is_pending() {
            polls += 1;
            assert!(polls < 9);
        }
        assert!(receiving.as_mut().poll(&mut cx).is_pending());
        let allocated = allocations() - before;
        assert_eq!(pool.available(), 1);
        allocated
    };
    let _warm = [(); 3].map(|()| round());
    assert_eq!([(); 5].map(|()| round()), [0; 5]);
}

#[test]
fn queue_is_armed_while_a_task_sleeps() {
    let _shared = share();
    let bench = Bench::new();
    let (_pd, datagrams) = endpoint(&bench);
    let receives = posted();
    let armed = || system_calls().0;
    assert_eq!(armed(), 0, "no task sleeps");
    let mut first = Task::new(datagrams.receive_from()).waits();
    let mut second = Task::new(datagrams.receive_from()).waits();
    assert_eq!(armed(), 1);
    comes(receives[0], b"a");
    announce(&bench);
    assert_eq!(armed(), 2, "the second sleeps");
    first.ends().unwrap();
    comes(receives[1], b"b");
    announce(&bench);
    assert_eq!(armed(), 2);
    second.ends().unwrap();
    now(datagrams.flush());
    assert_eq!(armed(), 2);
}

/// Polls a future when it is woken.
struct PollsInPlace {
    future: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
    was_ready: Mutex<Vec<bool>>,
}

impl Wake for PollsInPlace {
    fn wake(self: Arc<Self>) {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = self.future.lock().unwrap().as_mut().poll(&mut cx);
        self.was_ready.lock().unwrap().push(polled.is_ready());
    }
}

#[test]
fn flush_is_ready_when_the_last_block_is_free() {
    let _shared = share();
    let bench = Bench::new();
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Datagrams::builder(&pd).max_send_wr(2);
    let datagrams = AsyncDatagrams::create(builder, &bench.events).unwrap();
    let pool = BufferPool::new(&pd, 64, 2).unwrap();
    let peer = peer();
    for _ in 0..2 {
        let block = pool.take_with(b"x").unwrap().unwrap();
        sends(datagrams.send_to(&peer, block)).unwrap();
    }
    let shared = datagrams.clone();
    let polls = Arc::new(PollsInPlace {
        future: Mutex::new(Box::pin(async move { shared.flush().await })),
        was_ready: Mutex::default(),
    });
    let waker = Waker::from(Arc::clone(&polls));
    let mut free = pin!(pool.take_when_free());
    let mut cx = Context::from_waker(&waker);
    assert!(free.as_mut().poll(&mut cx).is_pending());
    // So that the queue has an event.
    let mut flush = Task::new(datagrams.flush()).waits();
    let all = posted();
    done(all[all.len() - 2..].iter().copied());
    announce(&bench);
    // The first block was free, and the second not yet.
    assert_eq!(*polls.was_ready.lock().unwrap(), [false]);
    flush.ends();
    assert_eq!(
        pool.available(),
        1,
        "the other is given to the one that waits"
    );
}

#[test]
fn endpoint_without_room_is_an_error_and_no_wait() {
    let _shared = share();
    let bench = Bench::new();
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Datagrams::builder(&pd).max_send_wr(0).max_recv_wr(0);
    let datagrams = AsyncDatagrams::create(builder, &bench.events).unwrap();
    let reason = |error| match error {
        Error::Transport(TransportError::Rejected(reason)) => reason,
        error => panic!("{error}"),
    };
    let rejected = sends(datagrams.send_to(&peer(), buffer(&pd))).unwrap_err();
    let send = RejectReason::NoCapacity(Queue::Send);
    assert_eq!(reason(rejected.into_error()), send);
    let receive = RejectReason::NoCapacity(Queue::Receive);
    assert_eq!(reason(now(datagrams.receive_from()).unwrap_err()), receive);
    drop((datagrams, pd, bench));
    assert_all_ends();
}
