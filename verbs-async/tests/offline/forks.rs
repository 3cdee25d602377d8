//! Forks: in the child, what is dropped of a parent's group, queue or endpoint touches nothing of the device's,
//! and waits for no thread.

use fake_libibverbs::{assert_all_is_well, assert_unused};
use verbs_async::verbs_channel::{Datagrams, Outgoing};
use verbs_async::{AsyncDatagrams, CqEvents, DeviceEvents};
use verbs_harness::child::{fork, in_the_child};
use verbs_harness::logged;

use crate::bench::{Bench, Task, announce, done};
use crate::groups::{Peer, posted};

/// A child runs this, which must not use the device.
fn without_the_device(run: impl FnOnce()) {
    logged::listen();
    in_the_child(fork(), || {
        assert_unused(run);
        assert_eq!(logged::lines(), [""; 0]);
        assert_eq!(threads(), 1, "no thread was started");
    });
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_group_with_operations_is_dropped_in_a_child_and_goes_on_in_its_parent() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let other = peer.join();
    // The last is in the backlog.
    let sends = [(); 3].map(|()| peer.send().waits());
    let unawaited = peer.channel.receive(peer.buffer());
    let mut transfer = peer.group().transfer(1);
    transfer.add(peer.channel.id(), Outgoing::send(peer.buffer()));
    let mut objects = Some((sends, transfer, unawaited, other, peer, bench));
    without_the_device(|| drop(objects.take()));
    let (mut sends, transfer, unawaited, other, peer, bench) = objects.unwrap();
    done([posted()[0]]);
    announce(&bench);
    assert!(sends[0].ends().0.is_ok());
    drop((sends, transfer, unawaited, other, peer, bench));
    assert_all_is_well();
}

#[test]
fn an_awaited_queue_datagrams_and_device_events_are_dropped_in_a_child() {
    let bench = Bench::new();
    let cq = bench.cq();
    let one = Task::new(cq.poll_wr_id(7)).waits();
    let pd = bench.context.alloc_pd().unwrap();
    let datagrams = AsyncDatagrams::create(Datagrams::builder(&pd), &bench.events).unwrap();
    let events = DeviceEvents::create(&CqEvents::create_thread(&bench.context).unwrap()).unwrap();
    let mut objects = Some((one, cq, datagrams, events, pd, bench));
    without_the_device(|| drop(objects.take()));
    drop(objects);
    assert_all_is_well();
}
