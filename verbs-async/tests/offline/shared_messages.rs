//! Messages of shared receives, awaited: who is woken, what a dropped future leaves, and blocks that
//! come back.

use std::future::Future;

use fake_libibverbs::{assert_all_is_well, deliver, with};
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{BufferPool, Channel, ChannelId, DownReason, Message, Outgoing};
use verbs_async::{AsyncChannel, AsyncGroup, SharedMessages};
use verbs_core::device::EventType;
use verbs_core::verbs_sys::{IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, IBV_WC_SUCCESS, ibv_wc};

use crate::bench::{Bench, Task, announce, done, join, later, now, system_calls};
use crate::groups::posted;

/// A group with shared receives, and two channels of it.
struct Shared {
    group: AsyncGroup,
    pool: BufferPool,
    channels: [AsyncChannel; 2],
}

impl Shared {
    /// With this many receives, and a pool with a block for each.
    fn new(bench: &Bench, count: u32) -> (Self, SharedMessages) {
        let pd = bench.context.alloc_pd().unwrap();
        let pool = BufferPool::new(&pd, 64, count as usize).unwrap();
        let receives = Channel::builder(&pd).shared_receives(&pool, count);
        let shared = AsyncGroup::with_shared_receives(&receives, 4, &bench.events);
        let (group, messages) = shared.unwrap();
        let channels = [(); 2].map(|()| join(&group));
        let shared = Self {
            group,
            pool,
            channels,
        };
        (shared, messages)
    }

    fn id(&self, channel: usize) -> ChannelId {
        self.channels[channel].id()
    }

    /// The device receives these bytes into the receive that was posted as this one.
    fn arrives(&self, receive: usize, channel: usize, bytes: &[u8]) {
        arrives(receive, &self.channels[channel], bytes);
    }
}

fn arrives(receive: usize, channel: &AsyncChannel, bytes: &[u8]) {
    let wr_id = posted()[receive];
    assert!(deliver(wr_id, bytes));
    let message = ibv_wc {
        wr_id,
        qp_num: channel.endpoint().unwrap().qp_num(),
        opcode: IBV_WC_RECV,
        byte_len: u32::try_from(bytes.len()).unwrap(),
        status: IBV_WC_SUCCESS,
        ..Default::default()
    };
    with(|library| library.done.push_back(message));
}

fn waits<'m>(messages: &'m mut SharedMessages) -> Task<impl Future<Output = Option<Message>> + 'm> {
    Task::new(messages.next()).waits()
}

fn taken(messages: &mut SharedMessages) -> Message {
    now(messages.next()).unwrap()
}

#[test]
fn message_wakes_the_task_that_waits_for_it() {
    {
        let bench = Bench::new();
        let (shared, mut messages) = Shared::new(&bench, 4);
        // Two that are there before the first poll.
        shared.arrives(0, 1, b"a");
        shared.arrives(1, 0, b"bc");
        for (channel, bytes) in [(1, &b"a"[..]), (0, b"bc")] {
            let message = taken(&mut messages);
            assert_eq!(message.channel, shared.id(channel));
            assert_eq!(message.bytes(), Some(bytes));
        }
        assert_eq!(system_calls().0, 0, "it was not armed");
        let mut task = waits(&mut messages);
        assert_eq!((system_calls().0, posted().len()), (1, 6));
        shared.arrives(2, 1, b"d");
        announce(&bench);
        assert_eq!(task.was_woken(), 1);
        assert_eq!(task.ends().unwrap().bytes(), Some(&b"d"[..]));
    }
    assert_all_is_well();
}

#[test]
fn message_that_another_task_polls_wakes_the_one_that_waits() {
    let bench = Bench::new();
    let (shared, mut messages) = Shared::new(&bench, 4);
    let mut task = waits(&mut messages);
    let buffer = shared.group.pd().reg_mr(vec![0_u8; 8]).unwrap();
    let mut send = Task::new(shared.channels[0].run(Outgoing::send(buffer)));
    shared.arrives(0, 0, b"hi");
    done(posted().last().copied());
    send.ends().0.unwrap();
    assert_eq!(task.was_woken(), 1, "no event comes for it any more");
    assert_eq!(task.ends().unwrap().bytes(), Some(&b"hi"[..]));
    drop(task);
    // And the other way round: the task that waits for messages polls for the other.
    let buffer = shared.group.pd().reg_mr(vec![0_u8; 8]).unwrap();
    let mut send = Task::new(shared.channels[0].run(Outgoing::send(buffer))).waits();
    done(posted().last().copied());
    let task = waits(&mut messages);
    assert_eq!(send.was_woken(), 1);
    drop(task);
    send.ends().0.unwrap();
}

#[test]
fn block_that_comes_back_wakes_the_task_and_is_posted_again() {
    let bench = Bench::new();
    let (shared, mut messages) = Shared::new(&bench, 2);
    let fill = |messages: &mut SharedMessages| {
        let first = posted().len() - 2;
        [0, 1].map(|number| {
            shared.arrives(first + number, number, b"x");
            taken(messages)
        })
    };
    let [first, second] = fill(&mut messages);
    let mut task = waits(&mut messages);
    assert_eq!((posted().len(), task.was_woken()), (2, 0));
    // No completion announces this.
    drop(first);
    assert_eq!(task.was_woken(), 1);
    assert!(task.poll().is_pending());
    assert_eq!(posted().len(), 3, "it waits for the other one now");
    drop(second);
    assert_eq!(task.was_woken(), 2);
    assert!(task.poll().is_pending());
    assert_eq!((posted().len(), shared.pool.available()), (4, 0));
    drop(task);
    // A future that is dropped while it waits for a block, and one that was given it.
    let [first, second] = fill(&mut messages);
    drop(waits(&mut messages));
    drop(first);
    assert_eq!(shared.pool.available(), 1);
    let task = waits(&mut messages);
    drop(second);
    assert_eq!((task.was_woken(), shared.pool.available()), (1, 0));
    drop(task);
    assert_eq!(shared.pool.available(), 1);
    drop(waits(&mut messages));
    assert_eq!((posted().len(), shared.pool.available()), (6, 0));
}

#[test]
fn block_goes_to_the_task_that_waited_first() {
    let bench = Bench::new();
    let (shared, mut messages) = Shared::new(&bench, 1);
    shared.arrives(0, 0, b"x");
    let message = taken(&mut messages);
    let mut sender = Task::new(shared.pool.take_when_free()).waits();
    let mut task = waits(&mut messages);
    drop(message);
    assert_eq!((sender.was_woken(), task.was_woken()), (1, 0));
    drop(sender.ends());
    assert_eq!(task.was_woken(), 1);
    assert!(task.poll().is_pending());
    assert_eq!(posted().len(), 2);
    drop(task);
    // The messages wait first: the block is posted, and not handed on.
    shared.arrives(1, 0, b"y");
    let message = taken(&mut messages);
    let mut task = waits(&mut messages);
    let sender = Task::new(shared.pool.take_when_free()).waits();
    drop(message);
    assert_eq!((task.was_woken(), sender.was_woken()), (1, 0));
    assert!(task.poll().is_pending());
    assert_eq!((posted().len(), sender.was_woken()), (3, 0));
}

#[test]
fn channel_that_a_receive_takes_down_ends_what_waits_on_it() {
    for is_closed in [false, true] {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let pool = BufferPool::new(&pd, 64, 16).unwrap();
        let builder = Channel::builder(&pd).max_send_wr(8).in_flight(6);
        let receives = builder.shared_receives(&pool, 1);
        let shared = AsyncGroup::with_shared_receives(&receives, 2, &bench.events);
        let (group, _messages) = shared.unwrap();
        let [left, right] = [(); 2].map(|()| join(&group));
        let buffer = || pd.reg_mr(vec![0_u8; 8]).unwrap();
        let mut sends = Vec::new();
        while left.credits(Queue::Send) > 0 {
            sends.push(left.send(buffer()));
        }
        // It needs more room than its channel's own, and the channel has nothing in flight.
        let requests = [(); 2].map(|()| Outgoing::send(buffer()).into());
        let mut waiting = Task::new(right.batch(requests.into())).waits();
        let mut close = is_closed.then(|| Task::new(right.close()).waits());
        // A message is longer than its block.
        let too_long = ibv_wc {
            wr_id: posted()[0],
            qp_num: right.endpoint().unwrap().qp_num(),
            status: IBV_WC_LOC_LEN_ERR,
            ..Default::default()
        };
        with(|library| library.done.push_back(too_long));
        announce(&bench);
        assert!(right.is_down());
        assert_eq!(waiting.was_woken(), 1);
        assert!(waiting.ends().0.is_err());
        if let Some(close) = &mut close {
            close.ends_when_woken().unwrap_err();
        }
    }
}

#[test]
fn queue_is_not_armed_for_messages_that_no_task_will_take() {
    let bench = Bench::new();
    let (shared, mut messages) = Shared::new(&bench, 2);
    drop(waits(&mut messages));
    let armed = system_calls().0;
    drop(messages);
    announce(&bench);
    assert_eq!(system_calls().0, armed);
    drop(shared);
}

#[test]
fn wait_for_a_message_ends_with_a_group_that_fails() {
    let ways: [fn(&Bench, &AsyncGroup); 3] = [
        |bench, _| bench.hand.over(),
        |_, group| group.abort_all(DownReason::Event(EventType::DEVICE_FATAL)),
        |_, group| group.abort_all(DownReason::ReceivesLost),
    ];
    for (way, fail) in ways.iter().enumerate() {
        for with_channels in [false, true] {
            let bench = Bench::new();
            let (shared, mut messages) = Shared::new(&bench, 4);
            let Shared {
                group, channels, ..
            } = shared;
            let channels = with_channels.then_some(channels);
            later(group.closed()).unwrap();
            let mut task = waits(&mut messages);
            fail(&bench, &group);
            let reason = group.failure();
            assert!(reason.is_some());
            assert!(task.was_woken() > 0, "{way} {with_channels}");
            let mut ended = task.ends();
            drop(task);
            for channel in channels.iter().flatten() {
                let end = ended.unwrap();
                assert_eq!((end.channel, end.end()), (channel.id(), reason));
                ended = now(messages.next());
            }
            assert!(ended.is_none() && now(messages.next()).is_none());
        }
    }
}

#[test]
fn channel_that_joins_after_a_failed_arming_announces_its_messages() {
    let bench = Bench::new();
    let (shared, mut messages) = Shared::new(&bench, 4);
    drop(shared.channels);
    later(shared.group.closed()).unwrap();
    with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
    let mut task = waits(&mut messages);
    let before = system_calls().0;
    let channel = join(&shared.group);
    assert_eq!(system_calls().0, before + 1, "it is armed");
    arrives(0, &channel, b"new");
    announce(&bench);
    assert_eq!(task.was_woken(), 1);
    assert_eq!(task.ends().unwrap().channel, channel.id());
}
