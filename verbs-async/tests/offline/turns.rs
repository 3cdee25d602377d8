//! A task whose operations are always ready lets other tasks run: on tokio, on async-io, and
//! without a runtime.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fake_libibverbs::with;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use verbs_async::Operation;
use verbs_async::verbs_channel::OwnedBuffer;
use verbs_async::verbs_channel::error::Queue;
use verbs_core::PollSlot;

use crate::bench::{Bench, bounded, done};
use crate::groups::Peer;

const TICK: Duration = Duration::from_millis(1);

const TURNS: u32 = if cfg!(miri) { 3 } else { 100 };

/// Sends and awaits forever; each send has completed when it is first polled.
async fn floods(peer: &Peer) {
    let mut buffer = peer.buffer();
    loop {
        let (sent, back) = send(peer, buffer).await;
        sent.unwrap();
        buffer = back;
    }
}

/// Begins a send, which completes at once.
fn send(peer: &Peer, buffer: OwnedBuffer) -> Operation {
    let send = peer.channel.send(buffer);
    done(with(|library| {
        library.calls.clear();
        let posted = std::mem::take(&mut library.posted).concat();
        posted.last().map(|posted| posted.wr_id)
    }));
    send
}

/// Sends and awaits several at once, each with a waker of its own.
async fn floods_unordered(peer: &Peer) {
    let send = |buffer| send(peer, buffer);
    let mut sends: FuturesUnordered<_> = (0..2).map(|_| send(peer.buffer())).collect();
    while let Some((sent, back)) = sends.next().await {
        sent.unwrap();
        sends.push(send(back));
    }
}

/// Sends forever, and awaits only that there is room.
async fn floods_unawaited(peer: &Peer) {
    loop {
        peer.channel.ready(Queue::Send).await.unwrap();
        drop(send(peer, peer.buffer()));
    }
}

/// Polls both until the second is ready.
async fn until<T>(endless: impl Future<Output = ()>, other: impl Future<Output = T>) -> T {
    let (mut endless, mut other) = (pin!(endless), pin!(other));
    poll_fn(|cx| {
        assert!(endless.as_mut().poll(cx).is_pending());
        other.as_mut().poll(cx)
    })
    .await
}

/// A future that is ready after this many polls.
async fn polled(mut times: u32) {
    poll_fn(|_cx| {
        times -= 1;
        if times == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Waits this often for what tokio's driver reports, and returns the most that `work` grew in one wait.
async fn longest_wait_for_the_driver(work: &Cell<u32>) -> u32 {
    let (near, far) = tokio::net::UnixStream::pair().unwrap();
    let mut longest = 0;
    for _ in 0..10 {
        near.try_write(b"!").unwrap();
        let before = work.get();
        loop {
            far.readable().await.unwrap();
            // It reads one of two bytes: the socket is not readable any more.
            match far.try_read(&mut [0; 2]) {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        longest = longest.max(work.get() - before);
    }
    longest
}

/// Runs tasks that are always ready, and count what they do, in one thread with tokio's driver.
fn driver_runs_beside<F: Future<Output = ()> + 'static>(
    tasks: impl IntoIterator<Item = F>,
    work: &'static Cell<u32>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    let mut count = 0;
    for task in tasks {
        local.spawn_local(task);
        count += 1;
    }
    let longest = runtime.block_on(local.run_until(longest_wait_for_the_driver(work)));
    // Each task has a budget of 128.
    assert!(
        longest <= 2 * 130 * count,
        "{longest} polls of {count} tasks"
    );
}

/// A count of what tasks do, for a test.
fn work() -> &'static Cell<u32> {
    Box::leak(Box::default())
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll for sockets")]
fn tokio_driver_runs_after_one_budget_of_each_task_that_is_always_ready() {
    bounded(|| {
        let bench = Bench::new();
        let work = work();
        for count in [1, 4] {
            let peers = (0..count).map(|_| Peer::new(&bench));
            let tasks = peers.map(|peer| async move {
                let mut buffer = peer.buffer();
                loop {
                    buffer = send(&peer, buffer).await.1;
                    work.set(work.get() + 1);
                }
            });
            driver_runs_beside(tasks.collect::<Vec<_>>(), work);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll for sockets")]
fn tokio_driver_runs_beside_a_task_with_many_operations_that_are_ready() {
    bounded(|| {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let work = work();
        let flood = async move {
            let send = |buffer| send(&peer, buffer);
            let mut sends: FuturesUnordered<_> = (0..2).map(|_| send(peer.buffer())).collect();
            while let Some((_, back)) = sends.next().await {
                work.set(work.get() + 1);
                sends.push(send(back));
            }
        };
        driver_runs_beside([flood], work);
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll for sockets")]
fn tokio_driver_runs_beside_a_task_that_awaits_a_ready_queue() {
    bounded(|| {
        let bench = Bench::new();
        let (any, one) = (bench.cq(), bench.cq());
        let work = work();
        let any = async move {
            let mut slots = [PollSlot::new()];
            loop {
                done([1]);
                any.poll(&mut slots).await.unwrap();
                work.set(work.get() + 1);
            }
        };
        driver_runs_beside([any], work);
        let one = async move {
            loop {
                done([7]);
                one.poll_wr_id(7).await.unwrap();
                work.set(work.get() + 1);
            }
        };
        driver_runs_beside([one], work);
    });
}

#[test]
fn task_yields_within_a_tokio_context_that_no_runtime_drives() {
    bounded(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let _inside = runtime.enter();
        pollster::block_on(until(floods(&peer), polled(TURNS)));
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timerfd")]
fn async_io_timers_run_beside_a_task_that_is_always_ready() {
    bounded(|| {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        async_io::block_on(until(floods(&peer), async {
            for _ in 0..3 {
                async_io::Timer::after(TICK).await;
            }
        }));
    });
}

#[test]
fn other_tasks_run_beside_a_task_that_is_always_ready() {
    bounded(|| {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        pollster::block_on(until(floods(&peer), polled(TURNS)));
    });
}

#[test]
fn other_tasks_run_beside_a_task_with_many_operations_that_are_ready() {
    bounded(|| {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        pollster::block_on(until(floods_unordered(&peer), polled(TURNS)));
    });
}

#[test]
fn other_tasks_run_beside_a_task_that_awaits_room_and_no_operation() {
    bounded(|| {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        pollster::block_on(until(floods_unawaited(&peer), polled(TURNS)));
    });
}

#[test]
fn other_tasks_run_beside_a_task_whose_operations_are_rejected() {
    bounded(|| {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        peer.channel.abort();
        let rejected = async {
            let mut buffer = peer.buffer();
            loop {
                let (result, back) = peer.channel.send(buffer).await;
                result.unwrap_err();
                buffer = back;
            }
        };
        pollster::block_on(until(rejected, polled(TURNS)));
    });
}

#[test]
fn other_tasks_run_beside_one_that_awaits_a_ready_queue() {
    bounded(|| {
        let bench = Bench::new();
        let cq = bench.cq();
        let any = async {
            let mut slots = [PollSlot::new()];
            loop {
                done([1]);
                assert_eq!(cq.poll(&mut slots).await.unwrap().len(), 1);
            }
        };
        pollster::block_on(until(any, polled(TURNS)));
        let one = async {
            loop {
                done([7]);
                cq.poll_wr_id(7).await.unwrap();
            }
        };
        pollster::block_on(until(one, polled(TURNS)));
    });
}
