//! Groups: many channels on one completion queue.

use std::collections::BTreeMap;
use std::thread;

use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Outgoing, OwnedBuffer, PollStrategy,
    PreparedChannel, Ticket,
};
use verbs_harness::{PATIENCE, begin};

use super::ends::{Sleeper, here, impatient, meet};

fn group_of(pd: &ProtectionDomain, max_channels: u32) -> ChannelGroup {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    builder.timeout(PATIENCE).group(max_channels).unwrap()
}

/// A member of the group, and the channel at its other end.
fn join(
    group: &mut ChannelGroup,
    peer: fn(&ProtectionDomain) -> PreparedChannel,
) -> (ChannelId, Channel) {
    let pd = group.pd().clone();
    let (member, peer) = (group.prepare().unwrap(), peer(&pd));
    let (member, peer) = meet(member, peer);
    (group.join(member).unwrap(), peer)
}

/// A channel whose device retries for seconds: threads of a busy machine are slow.
fn patient(pd: &ProtectionDomain) -> PreparedChannel {
    Channel::builder(pd).timeout(PATIENCE).build().unwrap()
}

/// Starts a receive on a channel of the group.
fn receive(group: &mut ChannelGroup, number: ChannelId, into: impl Into<OwnedBuffer>) -> Ticket {
    let mut channel = group.channel(number).unwrap();
    channel.start_receive(into).unwrap()
}

fn send(channel: &mut Channel, bytes: Vec<u8>) {
    let from = channel.pd().reg_mr(bytes).unwrap();
    channel
        .run(Outgoing::send(from.gather_element(..).unwrap()).timeout(PATIENCE))
        .unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_channel_starves_another() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let pd = here();
    let mut group = group_of(&pd, 8);
    let pool = BufferPool::new(&pd, 8, 8 * 4).unwrap();
    let peers: Vec<_> = (0..8).map(|_| join(&mut group, patient)).collect();
    for (number, _) in &peers {
        for _ in 0..4 {
            let _ticket = receive(&mut group, *number, pool.take().unwrap());
        }
    }
    // One peer never stops; the others have a few messages each.
    let counts = thread::scope(|threads| {
        for (number, mut peer) in peers {
            threads.spawn(move || {
                for _ in 0..if number.index() == 0 { 200 } else { 10 } {
                    send(&mut peer, vec![0_u8; 8]);
                }
            });
        }
        let mut counts = BTreeMap::new();
        for _ in 0..200 + 7 * 10 {
            let completed = group.wait_completed(Some(PATIENCE)).unwrap();
            completed.result.unwrap();
            *counts.entry(completed.channel.index()).or_insert(0) += 1;
            let mut channel = group.channel(completed.channel).unwrap();
            let _ticket = channel.start_receive(completed.buffer.unwrap()).unwrap();
        }
        counts
    });
    let expected = (0..8).map(|number| (number, if number == 0 { 200 } else { 10 }));
    assert!(counts.into_iter().eq(expected));
}

#[test]
#[ignore = "needs an RDMA device"]
fn group_sleeps_until_any_channel_has_a_completion() {
    let _test = begin!();
    let pd = here();
    let builder = Channel::builder(&pd).strategy(PollStrategy::Notify { after: 10 });
    let mut group = builder.max_send_wr(4).max_recv_wr(4).group(8).unwrap();
    let mut peers: Vec<_> = (0..8).map(|_| join(&mut group, impatient)).collect();
    for (number, _) in &peers {
        let _ticket = receive(&mut group, *number, pd.reg_mr(vec![0_u8; 8]).unwrap());
    }
    let waits = Sleeper::this_thread();
    thread::scope(|threads| {
        threads.spawn(|| {
            for (number, peer) in &mut peers {
                waits.sleeps();
                send(peer, vec![u8::try_from(number.index()).unwrap(); 8]);
            }
        });
        for number in 0..8_u8 {
            let done = group.wait_completed(Some(PATIENCE)).unwrap();
            assert_eq!(done.buffer.unwrap()[..], [number; 8]);
        }
    });
}
