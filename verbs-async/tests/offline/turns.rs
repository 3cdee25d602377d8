//! A task whose operations are always ready lets other tasks run: on tokio, on async-io, and
//! without a runtime.

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use std::{io, iter};

use fake_libibverbs::{posted, with};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{Channel, Outgoing, OwnedBuffer, TransportError};
use verbs_async::{AsyncGroup, Operation};
use verbs_core::PollSlot;

use crate::bench::{Bench, Task, announce, bounded, done, join};
use crate::groups::Peer;

const TURNS: u32 = if cfg!(miri) { 3 } else { 100 };

/// A task that is always ready, and counts what it does.
type Flood = Pin<Box<dyn Future<Output = ()>>>;

type Begin = fn(&Bench, &'static Cell<u32>) -> Flood;

const FLOODS: [(&str, Begin); 6] = [
    ("one send after another", |bench, work| {
        let peer = Peer::new(bench);
        Box::pin(async move {
            let mut buffer = peer.buffer();
            loop {
                let (sent, back) = send(&peer, buffer).await;
                sent.unwrap();
                buffer = back;
                count(work);
            }
        })
    }),
    (
        "several sends, each with a waker of its own",
        |bench, work| {
            let peer = Peer::new(bench);
            Box::pin(async move {
                let send = |buffer| send(&peer, buffer);
                let mut sends: FuturesUnordered<_> = (0..2).map(|_| send(peer.buffer())).collect();
                while let Some((sent, back)) = sends.next().await {
                    sent.unwrap();
                    count(work);
                    sends.push(send(back));
                }
            })
        },
    ),
    ("room, and no operation", |bench, work| {
        let peer = Peer::new(bench);
        Box::pin(async move {
            loop {
                peer.channel.ready(Queue::Send).await.unwrap();
                drop(send(&peer, peer.buffer()));
                count(work);
            }
        })
    }),
    ("rejected operations", |bench, work| {
        let peer = Peer::new(bench);
        peer.channel.abort();
        Box::pin(async move {
            let mut buffer = peer.buffer();
            loop {
                let (result, back) = peer.channel.send(buffer).await;
                result.unwrap_err();
                buffer = back;
                count(work);
            }
        })
    }),
    ("any completion", |bench, work| {
        let cq = bench.cq();
        Box::pin(async move {
            let mut slots = [PollSlot::new()];
            loop {
                done([1]);
                assert_eq!(cq.poll(&mut slots).await.unwrap().len(), 1);
                count(work);
            }
        })
    }),
    ("one completion", |bench, work| {
        let cq = bench.cq();
        Box::pin(async move {
            loop {
                done([7]);
                cq.poll_wr_id(7).await.unwrap();
                count(work);
            }
        })
    }),
];

fn count(work: &Cell<u32>) {
    work.set(work.get() + 1);
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

/// Runs this with each task that is always ready, and its count.
fn beside_each(test: impl Fn(&Bench, Flood, &'static Cell<u32>)) {
    for (what, begin) in FLOODS {
        println!("{what}");
        bounded(|| {
            let bench = Bench::new();
            let work = Box::leak(Box::default());
            let flood = begin(&bench, work);
            test(&bench, flood, work);
            with(|library| library.done.clear());
        });
    }
}

/// Polls both until the second is ready.
async fn until<T>(mut endless: Flood, other: impl Future<Output = T>) -> T {
    let mut other = pin!(other);
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

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll for sockets")]
fn tokio_driver_runs_after_one_budget_of_each_task_that_is_always_ready() {
    beside_each(|bench, flood, work| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.spawn_local(flood);
        let others = (0..3).map(|_| FLOODS[0].1(bench, work));
        others.for_each(|other| drop(local.spawn_local(other)));
        let longest = runtime.block_on(local.run_until(longest_wait_for_the_driver(work)));
        // Each of four tasks has a budget of 128.
        assert!(longest <= 2 * 130 * 4, "{longest} polls");
    });
}

#[test]
fn other_tasks_run_beside_a_task_that_is_always_ready() {
    beside_each(|_, flood, _| pollster::block_on(until(flood, polled(TURNS))));
}

#[test]
fn task_yields_within_a_tokio_context_that_no_runtime_drives() {
    beside_each(|_, flood, _| {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let _inside = runtime.enter();
        pollster::block_on(until(flood, polled(TURNS)));
    });
}

#[test]
fn long_set_leaves_room_for_others_and_is_rejected_in_turns() {
    let bench = Bench::new();
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Channel::builder(&pd).max_send_wr(2);
    let group = AsyncGroup::new(builder, 2, &bench.events).unwrap();
    let (a, b) = (join(&group), join(&group));
    let empty = || Outgoing::send(OwnedBuffer::empty());
    let mut transfer = group.transfer(1000);
    transfer.add(b.id(), empty());
    (1..1000).for_each(|_| transfer.add(a.id(), empty()));
    with(|library| library.posted.clear());
    drop(Task::new(transfer.finish()).waits());
    let complete = |before: usize| {
        let requests = posted().split_off(before);
        let completed = before + requests.len();
        done(requests);
        announce(&bench);
        completed
    };
    let mut other = Task::new(a.run(empty())).waits();
    // The send of the other channel does not complete yet.
    let mut completed = 1;
    while other.poll().is_pending() {
        completed = complete(completed);
    }
    // Two in the queue, and sixteen in the backlog.
    assert_eq!(completed, 1 + 2 + 16 + 1);
    let mut task = Task::new(transfer.finish()).waits();
    while completed < 100 {
        let before = completed;
        completed = complete(before);
        assert!(before < completed || task.is_woken());
        task = task.waits();
    }
    drop(task);
    done([posted()[0]]);
    done(posted().split_off(completed));
    let mut late = Box::pin(transfer.finish_by(Instant::now(), |_| pending::<()>()));
    let mut cx = Context::from_waker(Waker::noop());
    let polls = iter::repeat_with(|| late.as_mut().poll(&mut cx)).take_while(Poll::is_pending);
    let polls = polls.take(1000).count();
    drop(late);
    assert!((5..1000).contains(&polls), "{polls}");
    let results: Vec<_> = transfer.drain().map(|outcome| outcome.result).collect();
    let carried_out = results.iter().filter(|result| result.is_ok()).count();
    // All that were posted, but for the other's.
    assert_eq!(carried_out, posted().len() - 1);
    let left = &results[carried_out..];
    let is_rejected = |result| matches!(result, &Err(TransportError::Rejected(_)));
    assert!(results.len() == 1000 && left.iter().all(is_rejected));
    assert!(!a.is_down() && !b.is_down());
}
