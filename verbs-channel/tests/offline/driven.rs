//! Channels driven by a layer that waits in its own way: no call waits, and no result is missed.

use fake_libibverbs::with;
use verbs_channel::{ChannelId, DownReason, Error, TransportError};

use crate::fake_device::{channel, group, pd, posted, region, succeeds};

const CLOSED: TransportError = TransportError::Aborted(DownReason::Closed);
const WHY: DownReason = DownReason::Device(libc::ENODEV);

/// The number of polls so far.
pub(crate) fn polls() -> usize {
    with(|library| library.rooms.len())
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
fn open_channel_is_found_by_its_queue_pair_number() {
    let (mut group, ids) = group(&pd(), 3);
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
    let (mut ours, mut other) = (group(&pd, 1).0, group(&pd, 1).0);
    for group in [&mut ours, &mut other] {
        let only = group.channels().next().unwrap();
        group.remove(only).unwrap();
    }
    let factory = ours.factory();
    let prepare = || {
        let prepared = factory.prepare().unwrap();
        let endpoint = prepared.endpoint();
        prepared.handshake(&endpoint).unwrap()
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
fn destroying_all_channels_polls_the_queue_once() {
    let pd = pd();
    let mut group = group(&pd, if cfg!(miri) { 12 } else { 100 }).0;
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
