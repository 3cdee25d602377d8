//! What a layer needs that drives channels by itself: it never waits here, and misses nothing.

use fake_libibverbs::with;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR};
use verbs_channel::{
    Channel, ChannelGroup, ChannelId, CreateChannel as _, DownReason, Error, PollStrategy, Queue,
    TransportError,
};

use crate::card::{
    called, channel, connected, ends, flushes, forget_the_past, pd, posted, refuse, region,
    succeeds,
};

const CLOSED: TransportError = TransportError::Aborted(DownReason::Closed);
const WHY: DownReason = DownReason::Device(libc::ENODEV);

/// A group of as many channels, with four places in each queue.
pub(crate) fn group(pd: &ProtectionDomain, channels: u32) -> ChannelGroup {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    let mut group = builder.group(channels).unwrap();
    for number in 0..channels as usize {
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        let member = member.handshake(&endpoint).unwrap();
        assert_eq!(group.join(member).unwrap().index(), number);
    }
    forget_the_past();
    group
}

/// How many polls there were.
pub(crate) fn polls() -> usize {
    with(|library| library.rooms.len())
}

#[test]
fn a_slot_is_below_what_can_be_in_flight_and_is_used_again() {
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
    // Completions that give nobody a buffer: far more than one poll takes.
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
fn a_queue_that_cannot_be_polled_is_not_an_empty_one() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    with(|library| library.poll_answer = Some(-2));
    let ended = channel.next_completed().unwrap();
    assert_eq!(ended.ticket, ticket);
    assert!(ended.result.is_err() && ended.buffer.is_some());
}

#[test]
fn credits_are_the_places_that_are_free() {
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
    // They are free when it is done, not when its result is taken.
    assert!(channel.next_completed().is_some());
    assert_eq!(credits(&channel), [3, 3]);
    channel.destroy(WHY);
    assert_eq!((credits(&channel), channel.is_idle()), ([4, 4], true));
}

#[test]
fn shutting_down_waits_for_nothing_and_results_come_as_usual() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_send(region(&channel)).unwrap(),
    ];
    channel.shut_down();
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
        "the card has them still"
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
fn what_cannot_be_flushed_has_ended_when_shutting_down_returns() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    refuse("ibv_modify_qp", 1);
    channel.shut_down();
    assert!(called("ibv_destroy_qp") && channel.is_idle());
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert_eq!(ended.result.unwrap_err(), CLOSED);
    // Twice is as good as once.
    channel.shut_down();
    channel.destroy(WHY);
    assert_eq!(channel.down_reason(), Some(DownReason::Closed));
}

#[test]
fn giving_up_ends_everything_at_once() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_send(region(&channel)).unwrap(),
    ];
    channel.destroy(WHY);
    assert!(called("ibv_destroy_qp") && !called("ibv_modify_qp"));
    assert_eq!(channel.down_reason(), Some(WHY));
    for ticket in tickets {
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert_eq!(ended.result.unwrap_err(), TransportError::Aborted(WHY));
        assert!(ended.buffer.is_some());
    }
}

#[test]
fn a_group_is_given_up_with_all_its_channels() {
    let pd = pd();
    let mut group = group(&pd, 3);
    let ids: Vec<ChannelId> = group.channels().collect();
    for id in &ids {
        let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut member = group.channel(*id).unwrap();
        let _ticket = member.start_receive(buffer).unwrap();
    }
    // One is down already, and knows why.
    ends(posted()[1], IBV_WC_REM_ACCESS_ERR);
    assert_eq!(group.next_completed().unwrap().channel, ids[1]);
    let work = group.channel(ids[1]).unwrap().down_reason().unwrap();
    group.destroy_all(WHY);
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
fn one_channel_of_a_group_is_given_up_alone() {
    let mut group = group(&pd(), 2);
    let ids: Vec<ChannelId> = group.channels().collect();
    group.channel(ids[0]).unwrap().destroy(WHY);
    assert_eq!(group.channel(ids[0]).unwrap().down_reason(), Some(WHY));
    assert!(!group.channel(ids[1]).unwrap().is_down());
}

#[test]
fn an_open_channel_is_found_by_its_queue_pair_s_number() {
    let mut group = group(&pd(), 3);
    let ids: Vec<ChannelId> = group.channels().collect();
    let numbers = [0, 1, 2].map(|number| {
        let member = group.channel(ids[number]).unwrap();
        member.endpoint().unwrap().qp_num()
    });
    for (number, qp_num) in numbers.into_iter().enumerate() {
        assert_eq!(group.channel_of(qp_num), Some(ids[number]));
    }
    assert_eq!(group.channel_of(0), None);
    group.remove(ids[1]).unwrap();
    assert_eq!(group.channel_of(numbers[1]), None);
    assert_eq!(group.channel_of(numbers[2]), Some(ids[2]));
}

#[test]
fn what_is_prepared_apart_from_its_group_joins_it_and_no_other() {
    let pd = pd();
    let (mut ours, mut other) = (group(&pd, 1), group(&pd, 1));
    for group in [&mut ours, &mut other] {
        let only = group.channels().next().unwrap();
        group.remove(only).unwrap();
    }
    let preparer = ours.preparer();
    let prepare = || {
        let member = preparer.prepare().unwrap();
        let endpoint = member.endpoint();
        member.handshake(&endpoint).unwrap()
    };
    let refused = other.join(prepare()).unwrap_err();
    assert!(matches!(refused.error(), Error::ForeignMember));
    let at = ours.join(refused.into_given()).unwrap();
    assert!(!ours.channel(at).unwrap().is_down());
    // It needs the group no more, and keeps the queue.
    drop(ours);
    assert!(other.join(prepare()).is_err());
}

#[test]
fn what_announces_completions_is_there_when_it_is_asked_for() {
    let pd = pd();
    let quiet = channel();
    assert!(quiet.completion_channel().is_none());
    assert!(group(&pd, 1).completion_channel().is_none());
    let builder = || {
        pd.create_channel()
            .strategy(PollStrategy::Notify { after: 0 })
    };
    let channel = connected(builder().build().unwrap());
    let announcer = channel.completion_channel().unwrap();
    // SAFETY: it is only looked at.
    let cq = unsafe { channel.cq() };
    assert_eq!(announcer.as_ptr(), cq.channel().unwrap().as_ptr());
    let group = builder().group(1).unwrap();
    let announcer = group.completion_channel().unwrap();
    // SAFETY: it is only looked at.
    let cq = unsafe { group.cq() };
    assert_eq!(announcer.as_ptr(), cq.channel().unwrap().as_ptr());
}

#[test]
fn a_device_that_dies_ends_all_channels_in_one_go() {
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
    // It sleeps most of the time until it finds out, and does not look once for each.
    assert!(polls() - before < 100);
}

#[test]
fn the_end_of_all_channels_takes_no_longer_for_each() {
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
    group.channel(ids[7]).unwrap().shut_down();
    group.remove(ids[9]).unwrap();
    let before = polls();
    group.destroy_all(WHY);
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
fn a_number_is_given_to_another_channel_only_when_it_was_given_back() {
    let mut group = group(&pd(), 2);
    let ids: Vec<ChannelId> = group.channels().collect();
    group.destroy_all(WHY);
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
    // What it was called before names it no more.
    assert!(matches!(
        group.channel(ids[0]),
        Err(Error::UnknownChannel(_))
    ));
}
