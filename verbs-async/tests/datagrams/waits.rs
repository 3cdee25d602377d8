//! Awaited datagram endpoints: who is woken, what a dropped future leaves, and how waits end.

use std::future::Future;
use std::task::Poll;

use fake_libibverbs::{announce_last, assert_all_is_well, deliver, posted, share, with};
use verbs_async::verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_GRH, IBV_WC_RECV, IBV_WC_SUCCESS, ibv_wc,
};
use verbs_async::verbs_channel::verbs_core::{DatagramEndpoint, Gid, ProtectionDomain, QKey};
use verbs_async::verbs_channel::{BufferPool, Datagrams, DownReason, OwnedBuffer, RejectReason};
use verbs_async::{AsyncDatagrams, Error};

use crate::bench::{Bench, Task, done, now};

const HEADER: usize = 40;

fn peer() -> DatagramEndpoint {
    let gid: Gid = "::ffff:10.0.0.9".parse().unwrap();
    let endpoint = DatagramEndpoint::builder(0x77, QKey::MAX).gid(gid);
    endpoint.build().unwrap()
}

fn endpoint(bench: &Bench) -> (ProtectionDomain, AsyncDatagrams) {
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Datagrams::builder(&pd).max_send_wr(1).max_recv_wr(2);
    let datagrams = AsyncDatagrams::create(&builder, &bench.events).unwrap();
    (pd, datagrams)
}

/// A datagram comes into this receive.
fn comes(wr_id: u64, bytes: &[u8]) {
    let mut message = vec![0; HEADER];
    message[20] = 0x45;
    message[32..36].copy_from_slice(&[10, 0, 0, 9]);
    message.extend_from_slice(bytes);
    deliver(wr_id, &message);
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

/// The queue has an event.
fn announce(bench: &Bench) {
    assert!(announce_last());
    bench.hand.readable();
}

fn buffer(pd: &ProtectionDomain) -> OwnedBuffer {
    pd.reg_mr(vec![1_u8; 8]).unwrap().into()
}

/// Polls until it is ready: the address handle is made on a helper thread.
fn sends<T>(send: impl Future<Output = T>) -> T {
    let mut task = Task::new(send);
    loop {
        if let Poll::Ready(sent) = task.poll() {
            return sent;
        }
        std::thread::yield_now();
    }
}

#[test]
fn datagram_wakes_the_task_that_waits_for_it() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let mut task = Task::new(datagrams.receive_from()).waits();
    comes(posted()[0], b"hello");
    announce(&bench);
    assert_eq!(task.was_woken(), 1);
    let datagram = task.ends().unwrap();
    assert_eq!(&datagram[..], b"hello");
    assert_eq!(datagram.from().qp_num(), 0x77);
    drop(task);
    drop((datagram, datagrams, pd, bench));
    assert_all_is_well();
}

#[test]
fn task_that_waits_for_room_is_woken_by_the_one_that_polls() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let peer = peer();
    sends(datagrams.send_to(&peer, buffer(&pd))).unwrap();
    let mut second = Task::new(datagrams.send_to(&peer, buffer(&pd))).waits();
    let mut receive = Task::new(datagrams.receive_from()).waits();
    let sent = *posted().last().unwrap();
    done([sent]);
    announce(&bench);
    // One of the two takes the completion, whichever it is.
    assert!(receive.poll().is_pending());
    assert!(second.was_woken() > 0);
    second.ends().unwrap();
    assert_eq!(posted().len(), 4, "two receives, and two datagrams");
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
    drop(dropped);
    assert!(kept.was_woken() > 0);
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
fn block_that_was_sent_is_free_when_the_send_was_polled() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let pool = BufferPool::new(&pd, 64, 1).unwrap();
    let block = pool.take_with(b"x").unwrap().unwrap();
    let peer = peer();
    sends(datagrams.send_to(&peer, block)).unwrap();
    assert_eq!(pool.available(), 0);
    let mut flush = Task::new(datagrams.flush()).waits();
    done([*posted().last().unwrap()]);
    announce(&bench);
    flush.ends();
    assert_eq!(pool.available(), 1);
}

#[test]
fn dropped_send_leaves_its_block_in_the_pool() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let pool = BufferPool::new(&pd, 64, 1).unwrap();
    let block = pool.take_with(b"x").unwrap().unwrap();
    let peer = peer();
    drop(Task::new(datagrams.send_to(&peer, block)).waits());
    assert_eq!(pool.available(), 1);
    assert_eq!(posted().len(), 2, "only the receives");
}

#[test]
fn closed_endpoint_ends_every_wait() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let mut task = Task::new(datagrams.receive_from()).waits();
    datagrams.clone().close().unwrap();
    assert!(task.was_woken() > 0);
    let error = task.ends().unwrap_err();
    let closed = Error::Rejected(RejectReason::Down(DownReason::Closed));
    assert_eq!(error.to_string(), closed.to_string());
    let peer = peer();
    let rejected = now(datagrams.send_to(&peer, buffer(&pd))).unwrap_err();
    assert_eq!(rejected.into_given().len(), 8);
    now(datagrams.flush());
    drop(task);
    drop((datagrams, pd, bench));
    assert_all_is_well();
}

#[test]
fn failed_notifier_ends_every_wait() {
    let _shared = share();
    let bench = Bench::new();
    let (_pd, datagrams) = endpoint(&bench);
    let mut task = Task::new(datagrams.receive_from()).waits();
    bench.hand.over();
    assert!(task.was_woken() > 0);
    assert!(task.ends().is_err());
    assert!(datagrams.down_reason().is_some());
    assert!(now(datagrams.receive_from()).is_err());
}
