//! Channels driven by a layer that waits in its own way: no call waits, and no result is missed.

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR};
use verbs_channel::{
    Channel, ChannelConfig, ChannelGroup, ChannelId, CreateChannel as _, DownReason, Error,
    PollStrategy, TransportError,
};

use crate::fake_device::{
    called, channel, connected, ends, flushes, forget_the_past, pd, posted, refuse, region,
    shut_down, succeeds,
};

const CLOSED: TransportError = TransportError::Aborted(DownReason::Closed);
const WHY: DownReason = DownReason::Device(libc::ENODEV);

/// A group of this many channels, with room for four requests in each queue.
pub(crate) fn group(pd: &ProtectionDomain, channels: u32) -> ChannelGroup {
    group_of(Channel::builder(pd).max_send_wr(4).max_recv_wr(4), channels)
}

pub(crate) fn group_of(config: impl Into<ChannelConfig>, channels: u32) -> ChannelGroup {
    let mut group = config.into().group(channels).unwrap();
    for number in 0..channels as usize {
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        let member = member.handshake(&endpoint).unwrap();
        assert_eq!(group.join(member).unwrap().index(), number);
    }
    forget_the_past();
    group
}

/// The number of polls so far.
pub(crate) fn polls() -> usize {
    with(|library| library.rooms.len())
}

#[test]
fn slot_numbers_are_small_and_reused() {
    let mut channel = channel();
    for _ in 0..3 {
        let mut seen = [false; 8];
        for index in 0..8 {
            let buffer = region(&channel);
            let ticket = match index % 2 {
                0 => channel.start_send(buffer),
                _ => channel.start_receive(buffer),
            };
            let slot = ticket.unwrap().slot();
            assert!(!seen[slot], "slot {slot} twice");
            seen[slot] = true;
        }
        posted().into_iter().for_each(succeeds);
        forget_the_past();
        while channel.next_completed().is_some() {}
    }
}

#[test]
fn nothing_completed_means_that_the_queue_is_empty() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    // Completions of no operation: far more than one poll takes.
    for _ in 0..100 {
        succeeds(0xdead_beef);
    }
    succeeds(posted()[0]);
    assert_eq!(channel.next_completed().unwrap().ticket, ticket);
    for _ in 0..100 {
        succeeds(0xdead_beef);
    }
    assert!(channel.next_completed().is_none());
    let before = polls();
    assert!(channel.next_completed().is_none());
    assert_eq!(polls(), before + 1, "an empty queue is polled once");
}

#[test]
fn failed_poll_is_not_an_empty_queue() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    with(|library| library.poll_answer = Some(-2));
    let ended = channel.next_completed().unwrap();
    assert_eq!(ended.ticket, ticket);
    assert!(ended.result.is_err() && ended.buffer.is_some());
}

#[test]
fn credits_are_the_room_in_the_queue() {
    let mut channel = channel();
    let credits = |channel: &Channel| [Queue::Send, Queue::Receive].map(|q| channel.credits(q));
    assert_eq!((credits(&channel), channel.is_idle()), ([4, 4], true));
    for left in (0..4).rev() {
        let _ticket = channel.start_send(region(&channel)).unwrap();
        assert_eq!((credits(&channel), channel.is_idle()), ([left, 4], false));
    }
    let _ticket = channel.start_receive(region(&channel)).unwrap();
    assert_eq!(credits(&channel), [0, 3]);
    let posted = posted();
    posted[..3].iter().copied().for_each(succeeds);
    // Credits are returned by the completion, not when the result is taken.
    assert!(channel.next_completed().is_some());
    assert_eq!(credits(&channel), [3, 3]);
    channel.engine_mut().destroy_all(WHY);
    assert_eq!((credits(&channel), channel.is_idle()), ([4, 4], true));
}

#[test]
fn shut_down_does_not_wait_and_results_are_flushed() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_send(region(&channel)).unwrap(),
    ];
    shut_down(&mut channel);
    assert_eq!(channel.down_reason(), Some(DownReason::Closed));
    let states = with(|library| {
        let states = library.modified.iter().map(|(attr, _)| attr.qp_state);
        states.collect::<Vec<_>>()
    });
    assert_eq!(states, [IBV_QPS_ERR]);
    assert_eq!(polls(), 0);
    assert!(!called("ibv_destroy_qp"));
    assert!(
        channel.next_completed().is_none(),
        "they are still in flight"
    );
    assert!(!channel.is_idle());
    assert!(channel.start_send(region(&channel)).is_err());
    posted().into_iter().for_each(flushes);
    for ticket in tickets {
        let ended = channel.next_completed().unwrap();
        assert_eq!((ended.ticket, ended.result.unwrap_err()), (ticket, CLOSED));
        assert!(ended.buffer.is_some());
    }
    assert!(channel.is_idle());
    assert!(!called("ibv_destroy_qp"));
}

#[test]
fn shut_down_destroys_a_queue_pair_that_cannot_flush() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    refuse("ibv_modify_qp", 1);
    shut_down(&mut channel);
    assert!(called("ibv_destroy_qp") && channel.is_idle());
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert_eq!(ended.result.unwrap_err(), CLOSED);
    // Doing it twice changes nothing.
    shut_down(&mut channel);
    channel.engine_mut().destroy_all(WHY);
    assert_eq!(channel.down_reason(), Some(DownReason::Closed));
}

#[test]
fn destroy_ends_all_operations_at_once() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_send(region(&channel)).unwrap(),
    ];
    channel.engine_mut().destroy_all(WHY);
    assert!(called("ibv_destroy_qp") && !called("ibv_modify_qp"));
    assert_eq!(channel.down_reason(), Some(WHY));
    for ticket in tickets {
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert_eq!(ended.result.unwrap_err(), TransportError::Aborted(WHY));
        assert!(ended.buffer.is_some());
    }
}

#[test]
fn destroy_all_takes_every_channel_down() {
    let pd = pd();
    let mut group = group(&pd, 3);
    let ids: Vec<ChannelId> = group.channels().collect();
    for id in &ids {
        let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut member = group.channel(*id).unwrap();
        let _ticket = member.start_receive(buffer).unwrap();
    }
    // One is down already, for another reason.
    ends(posted()[1], IBV_WC_REM_ACCESS_ERR);
    assert_eq!(group.next_completed().unwrap().channel, ids[1]);
    let work = group.channel(ids[1]).unwrap().down_reason().unwrap();
    group.engine_mut().destroy_all(WHY);
    for (number, reason) in [(0, WHY), (1, work), (2, WHY)] {
        let member = group.channel(ids[number]).unwrap();
        assert_eq!(member.down_reason(), Some(reason));
        assert!(member.is_idle());
    }
    for number in [0, 2] {
        let ended = group.next_completed().unwrap();
        assert_eq!(ended.channel, ids[number]);
        assert_eq!(ended.result.unwrap_err(), TransportError::Aborted(WHY));
        assert!(ended.buffer.is_some());
    }
    assert!(group.next_completed().is_none() && group.is_empty());
}

#[test]
fn destroying_one_channel_affects_no_other() {
    let mut group = group(&pd(), 2);
    let ids: Vec<ChannelId> = group.channels().collect();
    group.engine_mut().destroy(ids[0], WHY).unwrap();
    assert_eq!(group.channel(ids[0]).unwrap().down_reason(), Some(WHY));
    assert!(!group.channel(ids[1]).unwrap().is_down());
}

#[test]
fn open_channel_is_found_by_its_queue_pair_number() {
    let mut group = group(&pd(), 3);
    let ids: Vec<ChannelId> = group.channels().collect();
    let numbers = [0, 1, 2].map(|number| {
        let member = group.channel(ids[number]).unwrap();
        member.endpoint().unwrap().qp_num()
    });
    for (number, qp_num) in numbers.into_iter().enumerate() {
        assert_eq!(group.engine_mut().channel_of(qp_num), Some(ids[number]));
    }
    assert_eq!(group.engine_mut().channel_of(0), None);
    group.remove(ids[1]).unwrap();
    assert_eq!(group.engine_mut().channel_of(numbers[1]), None);
    assert_eq!(group.engine_mut().channel_of(numbers[2]), Some(ids[2]));
}

#[test]
fn prepared_channel_joins_its_own_group_only() {
    let pd = pd();
    let (mut ours, mut other) = (group(&pd, 1), group(&pd, 1));
    for group in [&mut ours, &mut other] {
        let only = group.channels().next().unwrap();
        group.remove(only).unwrap();
    }
    let factory = ours.factory();
    let prepare = || {
        let member = factory.prepare().unwrap();
        let endpoint = member.endpoint();
        member.handshake(&endpoint).unwrap()
    };
    let refused = other.join(prepare()).unwrap_err();
    assert!(matches!(refused.error(), Error::ForeignMember));
    let at = ours.join(refused.into_given()).unwrap();
    assert!(!ours.channel(at).unwrap().is_down());
    // The factory outlives the group, and keeps the queue alive.
    drop(ours);
    assert!(other.join(prepare()).is_err());
}

#[test]
fn completion_channel_is_there_with_the_notify_strategy() {
    let pd = pd();
    let quiet = channel();
    assert!(quiet.completion_channel().is_none());
    assert!(group(&pd, 1).completion_channel().is_none());
    let builder = || {
        pd.create_channel()
            .strategy(PollStrategy::Notify { after: 0 })
    };
    let mut channel = connected(builder().build().unwrap());
    let events = channel.completion_channel().unwrap().as_ptr();
    // SAFETY: the queue is neither polled nor changed.
    let cq = unsafe { channel.engine_mut().cq() };
    assert_eq!(events, cq.channel().unwrap().as_ptr());
    let mut group = builder().group(1).unwrap();
    let events = group.completion_channel().unwrap().as_ptr();
    // SAFETY: the queue is neither polled nor changed.
    let cq = unsafe { group.engine_mut().cq() };
    assert_eq!(events, cq.channel().unwrap().as_ptr());
}

#[test]
fn dead_device_ends_all_channels_at_once() {
    let count = if cfg!(miri) { 10 } else { 200 };
    let pd = pd();
    let strategy = PollStrategy::Notify { after: 0 };
    let builder = Channel::builder(&pd).max_send_wr(1).max_recv_wr(1);
    let mut group = builder.strategy(strategy).group(count).unwrap();
    for number in 0..count as usize {
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        let member = member.handshake(&endpoint).unwrap();
        assert_eq!(group.join(member).unwrap().index(), number);
        let region = pd.reg_mr(vec![0_u8; 8]).unwrap();
        let at = group.channels().last().unwrap();
        let mut channel = group.channel(at).unwrap();
        let _ticket = channel.start_receive(region).unwrap();
    }
    refuse("ibv_query_qp", count as usize);
    let before = polls();
    let ended = std::iter::from_fn(|| group.wait_completed(None));
    assert_eq!(
        ended.filter(|ended| ended.result.is_err()).count(),
        count as usize
    );
    // It sleeps most of the time before it notices, and does not poll once for each channel.
    assert!(polls() - before < 100);
}

#[test]
fn destroying_all_channels_polls_the_queue_once() {
    let pd = pd();
    let mut group = group(&pd, if cfg!(miri) { 12 } else { 100 });
    let ids: Vec<ChannelId> = group.channels().collect();
    for id in &ids {
        for _ in 0..4 {
            let region = pd.reg_mr(vec![0_u8; 8]).unwrap();
            let mut channel = group.channel(*id).unwrap();
            let _ticket = channel.start_receive(region).unwrap();
        }
    }
    group
        .engine_mut()
        .flush(ids[7], DownReason::Closed)
        .unwrap();
    group.remove(ids[9]).unwrap();
    let before = polls();
    group.engine_mut().destroy_all(WHY);
    assert_eq!(polls() - before, 1, "they share a queue, which is empty");
    let mut ended = vec![0; ids.len()];
    while let Some(completed) = group.next_completed() {
        let why = match completed.channel.index() {
            7 | 9 => CLOSED,
            _ => TransportError::Aborted(WHY),
        };
        assert_eq!(completed.result.unwrap_err(), why);
        assert!(completed.buffer.is_some());
        ended[completed.channel.index()] += 1;
    }
    assert_eq!(ended, vec![4; ids.len()]);
}

#[test]
fn index_is_reused_only_after_its_channel_was_removed() {
    let mut group = group(&pd(), 2);
    let ids: Vec<ChannelId> = group.channels().collect();
    group.engine_mut().destroy_all(WHY);
    let join = |group: &mut ChannelGroup| {
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        group.join(member.handshake(&endpoint).unwrap()).unwrap()
    };
    assert_eq!(join(&mut group).index(), 2);
    assert_eq!(group.channel(ids[0]).unwrap().down_reason(), Some(WHY));
    group.remove(ids[0]).unwrap();
    let next = join(&mut group);
    assert_eq!((next.index(), next == ids[0]), (0, false));
    // The previous id is unknown.
    assert!(matches!(
        group.channel(ids[0]),
        Err(Error::UnknownChannel(_))
    ));
}
