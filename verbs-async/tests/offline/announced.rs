//! Many queues on one completion channel.

use fake_libibverbs::assert_all_is_well;
use verbs_async::{AsyncCq, CqEvents, DeviceEvents, Error};
use verbs_core::CompletionQueue;
use verbs_core::completion::CompletionChannel;

use crate::bench::{Bench, Hand, Task, done, system_calls};

fn queue(bench: &Bench) -> CompletionQueue {
    CompletionQueue::builder(&bench.context, 16)
        .channel(bench.events.channel())
        .build()
        .unwrap()
}

#[test]
fn event_wakes_the_waiters_of_its_own_queue() {
    let bench = Bench::new();
    let queues: Vec<_> = (0..8).map(|_| bench.cq()).collect();
    let mut tasks: Vec<_> = (0..8)
        .zip(&queues)
        .map(|(id, cq)| Task::new(cq.poll_wr_id(id)).waits())
        .collect();
    // An event without a completion, and readiness without an event, wake no task.
    bench.hand.readable();
    bench.announce([queues[1].cq()]);
    for at in [3, 0, 7] {
        done([u64::try_from(at).unwrap()]);
        bench.announce([queues[at].cq()]);
        assert_eq!(tasks[at].was_woken(), 1);
        assert!(tasks[at].ends().is_ok());
    }
    assert_eq!(tasks.iter().map(Task::was_woken).sum::<usize>(), 3);
    // Events that arrive together are all taken: one queue's poll takes what each of these finds.
    let before = system_calls();
    done([1]);
    bench.announce([1, 2, 4, 5].map(|at| queues[at].cq()));
    assert_eq!(system_calls().1 - before.1, 5, "three are armed anew");
    assert_eq!(tasks[1].was_woken(), 1);
}

#[test]
fn event_of_an_unawaited_or_dropped_queue_hides_no_other() {
    {
        let bench = Bench::new();
        let (stranger, gone, cq) = (queue(&bench), bench.cq(), bench.cq());
        let mut task = Task::new(cq.poll_wr_id(1)).waits();
        stranger.req_notify(false).unwrap();
        done([1]);
        bench.announce([&stranger, cq.cq()]);
        assert_eq!(task.was_woken(), 1);
        assert!(task.ends().is_ok());
        let again = Task::new(cq.poll_wr_id(2)).waits();
        bench.announce([&stranger]);
        assert_eq!(again.was_woken(), 0);
        let waits = Task::new(gone.poll_wr_id(1)).waits();
        fake_libibverbs::announce(gone.cq());
        drop(waits);
        drop(gone);
        done([2]);
        bench.announce([cq.cq()]);
        assert_eq!(again.was_woken(), 1);
    }
    assert_all_is_well();
}

#[test]
fn a_queue_is_awaited_once_at_a_time_and_on_its_own_completion_channel() {
    let bench = Bench::new();
    let cq = queue(&bench);
    let first = AsyncCq::new(cq.clone(), &bench.events).unwrap();
    let second = AsyncCq::new(cq.clone(), &bench.events);
    assert!(matches!(second, Err(Error::AlreadyAwaited)));
    // A rejected queue takes no event from the first.
    let mut task = Task::new(first.poll_wr_id(1)).waits();
    done([1]);
    bench.announce([&cq]);
    assert!(task.ends().is_ok());
    drop((task, first));
    assert!(AsyncCq::new(cq, &bench.events).is_ok());
    let quiet = CompletionQueue::create(&bench.context, 16).unwrap();
    let rejected = AsyncCq::new(quiet, &bench.events);
    assert!(matches!(rejected, Err(Error::NoCompletionChannel)));
    let channel = CompletionChannel::create(&bench.context).unwrap();
    let elsewhere = CqEvents::new(channel, Hand::default()).unwrap();
    let rejected = AsyncCq::new(queue(&bench), &elsewhere);
    assert!(matches!(rejected, Err(Error::ForeignChannel)));
}

#[test]
fn completion_channel_or_device_has_one_watcher() {
    let bench = Bench::new();
    let again = || CqEvents::new(bench.events.channel().clone(), Hand::default());
    assert!(matches!(again(), Err(Error::AlreadyWatched)));
    let device = || DeviceEvents::create(&bench.events);
    let events = device().unwrap();
    assert!(matches!(device(), Err(Error::AlreadyWatched)));
    drop(events);
    device().unwrap();
    // It is watched until the last clone is dropped.
    let channel = bench.events.channel().clone();
    let clone = bench.events.clone();
    drop(bench.events);
    CqEvents::new(channel.clone(), Hand::default()).unwrap_err();
    drop(clone);
    CqEvents::new(channel, Hand::default()).unwrap();
}
