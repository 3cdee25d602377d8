//! Counters that any thread reads, and the line for an operator.

use std::thread;
use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::verbs_sys::{IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};
use verbs_channel::{
    BufferPool, Channel, Incoming, Outgoing, OwnedBuffer, OwnedRequest, PollStrategy,
    TransportError,
};

use crate::fake_device::{
    channel, connected, ends, forget_the_past, join, pd, posted, refuse, remote, succeeds,
};
use crate::transfers::{group_of, writes};

#[test]
fn requests_are_counted_by_how_they_end_and_read_by_any_thread() {
    let mut channel = channel();
    let counters = channel.counters();
    let pool = BufferPool::new(channel.pd(), 64, 8).unwrap();
    assert_eq!(counters.read(), Default::default());
    let mut bytes = channel.pd().reg_mr(vec![0_u8; 10]).unwrap();
    with(|library| library.completes_sends = true);
    channel.send(bytes.gather_element(..).unwrap()).unwrap();
    with(|library| library.completes_sends = false);
    let tickets = [(); 3].map(|()| channel.start_send(pool.take().unwrap()).unwrap());
    channel.start_receive(pool.take().unwrap()).unwrap();
    let elsewhere = counters.clone();
    let now = thread::spawn(move || elsewhere.read()).join().unwrap();
    assert_eq!((now.posted, now.completed, now.depth()), (5, 1, 4));
    assert_eq!(now.bytes, 10 + 3 * 64);
    let requests = posted();
    let [.., first, second, third, receive] = requests[..] else {
        panic!("{requests:?}");
    };
    succeeds(first);
    ends(second, IBV_WC_REM_ACCESS_ERR);
    ends(third, IBV_WC_WR_FLUSH_ERR);
    ends(receive, IBV_WC_WR_FLUSH_ERR);
    for ticket in tickets {
        drop(channel.poll(ticket).unwrap().unwrap());
    }
    let now = counters.read();
    assert_eq!((now.completed, now.failed, now.aborted), (5, 1, 2));
    assert_eq!((now.posted, now.depth()), (5, 0));
    let text = now.to_string();
    assert!(
        text.contains("5 posted with 202 bytes, 0 in flight, 5 completed, 1 failed, 2 aborted"),
        "{text}"
    );
    // It is down: nothing is posted.
    assert!(channel.receive(bytes.scatter_element(..).unwrap()).is_err());
    assert_eq!(counters.read(), now);
}

#[test]
fn rejected_post_is_not_counted() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 8).unwrap();
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    channel.start_send(pool.take().unwrap()).unwrap_err();
    assert_eq!(channel.counters().read(), Default::default());
    // The last request of a batch is impossible.
    let short = remote().slice(..1).unwrap();
    let mut requests: Vec<OwnedRequest> = vec![Outgoing::send(pool.take().unwrap()).into()];
    requests.push(Outgoing::write(pool.take().unwrap(), short).into());
    channel.start_batch(requests).unwrap_err();
    let mut bytes = channel.pd().reg_mr(vec![0_u8; 10]).unwrap();
    let writes = [10, 1].map(|len| {
        let remote = remote().slice(..len).unwrap();
        Outgoing::write(bytes.gather_element(..).unwrap(), remote)
    });
    channel.run_batch(writes).unwrap_err();
    let sends = || (0..3).map(|_| Outgoing::send(pool.take().unwrap()).into());
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    let chain = OwnedChain::new(sends().collect()).unwrap();
    channel.start_chain(chain).unwrap_err();
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    let into = bytes.scatter_element(..).unwrap();
    channel.run(Incoming::read(into, remote())).unwrap_err();
    assert_eq!(channel.counters().read(), Default::default());
    // The device has the first of three requests: they end with the queue pair.
    with(|library| library.refuse_post = Some((1, libc::ENOMEM, true)));
    channel.start_batch(sends().collect()).unwrap_err();
    let now = channel.counters().read();
    assert_eq!((now.posted, now.bytes, now.aborted), (3, 3 * 64, 3));
    assert_eq!(now.depth(), 0);
}

#[test]
fn channel_in_the_place_of_another_counts_from_zero_and_its_group_goes_on() {
    let (mut group, ids) = group_of(2, 64, None);
    let pool = BufferPool::new(group.pd(), 64, 100).unwrap();
    with(|library| library.completes_sends = true);
    let mut transfer = writes(ids[0], &pool, 100);
    group.transfer(&mut transfer, None).unwrap();
    drop(transfer);
    let first = group.channel(ids[0]).unwrap().counters();
    let all = group.counters();
    assert_eq!(first.read().completed, 100);
    let text = group.to_string();
    assert!(
        text.lines().count() == 3
            && text.starts_with("fake0: 2 open channels: 100 posted with 6400 bytes, 0 in flight"),
        "{text}"
    );
    group.remove(ids[0]).unwrap();
    let again = join(&mut group);
    let again = group.channel(again).unwrap().counters();
    assert_eq!((again.read(), all.read().posted), (Default::default(), 100));
}

#[test]
fn time_asleep_is_counted() {
    let sleeps = PollStrategy::Notify { after: 0 };
    let builder = Channel::builder(&pd()).strategy(sleeps);
    let mut channel = connected(builder.build().unwrap());
    forget_the_past();
    let mut bytes = channel.pd().reg_mr(vec![0_u8; 10]).unwrap();
    channel.set_timeout(Some(Duration::from_millis(30)));
    refuse("ibv_modify_qp", 1);
    let ended = channel.receive(bytes.scatter_element(..).unwrap());
    assert!(matches!(ended, Err(TransportError::Aborted(_))));
    let asleep = channel.counters().read().asleep;
    assert!(asleep > Duration::from_millis(5), "{asleep:?}");
}

#[test]
fn bytes_of_batches_and_chains_are_those_of_the_requests_that_are_posted() {
    let mut channel = channel();
    let counters = channel.counters();
    let pool = BufferPool::new(channel.pd(), 64, 8).unwrap();
    with(|library| library.completes_sends = true);
    let sends = |count| {
        let blocks = std::iter::from_fn(|| pool.take()).take(count);
        blocks.map(|block| Outgoing::send(block).into()).collect()
    };
    let batch = channel.start_batch(sends(3)).unwrap();
    channel.wait(batch, None).unwrap().unwrap().result.unwrap();
    assert_eq!(counters.read().bytes, 3 * 64);
    // The same chain, whole, with one request replaced, and a part of it.
    let mut chain = OwnedChain::new(sends(4)).unwrap();
    for (posted, bytes) in [(7, 7 * 64), (11, 10 * 64), (13, 11 * 64)] {
        let ticket = channel.start_chain(chain).unwrap();
        chain = channel.wait(ticket, None).unwrap().unwrap().chain.unwrap();
        let now = counters.read();
        assert_eq!((now.posted, now.bytes), (posted, bytes));
        drop(chain.set(0, Outgoing::send(OwnedBuffer::empty())).unwrap());
        chain
            .set_range(if posted == 7 { 0..4 } else { 0..2 })
            .unwrap();
    }
    let bytes = channel.pd().reg_mr(vec![0_u8; 10]).unwrap();
    let requests = [0..3, 3..10].map(|part| Outgoing::send(bytes.gather_element(part).unwrap()));
    let before = counters.read().bytes;
    channel
        .scope(|scope| scope.post_batch(requests).map(drop))
        .unwrap();
    assert_eq!(counters.read().bytes, before + 10);
}
