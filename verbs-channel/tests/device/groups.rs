//! Groups: many channels on one completion queue.

use std::thread;

use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{
    Channel, ChannelGroup, ChannelId, Outgoing, OwnedBuffer, PollStrategy, PreparedChannel, Ticket,
};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, begin};

use super::ends::{Sleeper, here, impatient, meet};

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
fn group_sleeps_until_any_channel_has_a_completion() {
    let _test = begin!();
    let pd = here();
    let builder = Channel::builder(&pd).strategy(PollStrategy::Notify { after: 10 });
    // It grows while the others have receives in flight, but for drivers of iWARP.
    let room = if is_iwarp() { 8 } else { 1 };
    let mut group = builder.max_send_wr(4).max_recv_wr(4).group(room).unwrap();
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
