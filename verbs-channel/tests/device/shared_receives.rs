//! Groups whose channels share their receives: routing, slow consumers, and channels that end.

use std::thread;
use std::time::Duration;

use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{BufferPool, Channel, ChannelGroup, ChannelId, DownReason, Message};
use verbs_harness::allocations::allocations;
use verbs_harness::{PATIENCE, begin};

use super::ends::{bounded, here, meet, pattern};

const LEN: usize = 64;

fn group(pd: &ProtectionDomain, pool: &BufferPool, count: u32) -> ChannelGroup {
    let builder = Channel::builder(pd).max_send_wr(4).timeout(PATIENCE);
    builder.shared_receives(pool, count).group(64).unwrap()
}

/// A member of the group, and the channel at its other end.
fn join(group: &mut ChannelGroup) -> (ChannelId, Channel) {
    let peer = Channel::builder(group.pd()).timeout(PATIENCE);
    let (member, peer) = (group.prepare().unwrap(), peer.build().unwrap());
    let (member, peer) = meet(member, peer);
    (group.join(member).unwrap(), peer)
}

fn send(channel: &mut Channel, bytes: Vec<u8>) {
    let from = channel.pd().reg_mr(bytes).unwrap();
    channel.send(from.gather_element(..).unwrap()).unwrap();
}

fn next(group: &mut ChannelGroup) -> Message {
    group.wait_message(Some(PATIENCE)).expect("a message comes")
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_that_are_cut_give_their_receives_back() {
    let _test = begin!();
    const LONG: usize = 8 << 20;
    let pd = here();
    // Few are lost, if any: where the device gives one back late, since the machine is busy.
    let pool = BufferPool::new(&pd, LONG, 8).unwrap();
    let mut group = group(&pd, &pool, 4);
    let mut long = pd.reg_mr(vec![1_u8; LONG]).unwrap();
    for round in 0..40_u64 {
        let (id, mut peer) = join(&mut group);
        peer.start_send(long).unwrap();
        thread::sleep(Duration::from_micros(100 * (round % 10)));
        match round % 4 {
            // Its peer is killed in the middle of the message.
            0 => peer.engine_mut().destroy_all(DownReason::Closed),
            // It is dropped before it has joined.
            1 => {
                let other = Channel::builder(&pd).timeout(PATIENCE).build().unwrap();
                let (member, mut other) = meet(group.prepare().unwrap(), other);
                let part = pd.reg_mr(vec![1_u8; LONG / 8]).unwrap();
                other.start_send(part).unwrap();
                drop(member);
            }
            _ => {}
        }
        group.remove(id).unwrap();
        let sent = bounded(|| {
            peer.engine_mut().destroy_all(DownReason::Closed);
            peer.next_completed().unwrap()
        });
        long = sent.buffer.unwrap().into_region().unwrap();
        while group.next_message().is_some() {}
    }
    let (id, mut peer) = join(&mut group);
    for number in 0..8 {
        send(&mut peer, pattern(number, LEN));
        assert_eq!(next(&mut group).channel, id);
    }
    // All are kept, so each has a receive of its own.
    let kept: Vec<_> = (0..4)
        .map(|number| {
            send(&mut peer, pattern(number, LEN));
            next(&mut group)
        })
        .collect();
    assert!(kept.iter().all(|message| message.channel == id));
    assert!(group.stalled_receives() <= 2);
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_message_allocates() {
    let _test = begin!();
    let pd = here();
    let pool = BufferPool::new(&pd, LEN, 64).unwrap();
    let mut group = group(&pd, &pool, 32);
    let mut peers: Vec<_> = (0..4).map(|_| join(&mut group)).collect();
    let from = pd.reg_mr(vec![1_u8; LEN]).unwrap();
    let before = allocations();
    for round in 0..100 {
        let (id, peer) = &mut peers[round % 4];
        peer.send(from.gather_element(..).unwrap()).unwrap();
        assert_eq!(next(&mut group).channel, *id);
    }
    assert_eq!(allocations() - before, 0);
}
