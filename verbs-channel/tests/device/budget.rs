//! The budget of a group: many channels on one completion queue.

use std::time::Instant;

use verbs_channel::error::Queue;
use verbs_channel::{BufferPool, Channel, ChannelGroup, ChannelId, PoolBuffer, Ticket};
use verbs_harness::{PATIENCE, begin};

use super::ends::{here, meet};

fn receive(group: &mut ChannelGroup, id: ChannelId, into: PoolBuffer) -> Ticket {
    let mut channel = group.channel(id).unwrap();
    channel.start_receive(into).unwrap()
}

/// Their queues have room for 64 + 64 each: without a budget, the completion queue of 510 channels
/// would exceed soft-RoCE's limit.
#[test]
#[ignore = "needs an RDMA device"]
fn many_channels_share_a_budget() {
    const PAIRS: u16 = 300;
    let _test = begin!();
    let pd = here();
    let builder = Channel::builder(&pd).peer_timeout(None);
    let mut group = builder
        .in_flight(8 * 1024)
        .group(2 * u32::from(PAIRS))
        .unwrap();
    let pool = BufferPool::new(&pd, 8, 8 * usize::from(PAIRS) + 64).unwrap();
    let begin = Instant::now();
    let mut ids = Vec::new();
    for _ in 0..PAIRS {
        let (left, right) = (group.prepare().unwrap(), group.prepare().unwrap());
        let (left, right) = meet(left, right);
        ids.push((group.join(left).unwrap(), group.join(right).unwrap()));
    }
    println!("{} channels joined in {:?}", 2 * PAIRS, begin.elapsed());
    // One of them fills its queue, and all others have their share.
    let busy = ids[0].1;
    for _ in 0..64 {
        let _ticket = receive(&mut group, busy, pool.take().unwrap());
    }
    for (left, right) in &ids[1..] {
        for id in [left, right] {
            let _ticket = receive(&mut group, *id, pool.take().unwrap());
        }
    }
    let mut started = 64;
    for _ in 0..64 {
        let block = pool.take().unwrap();
        let _ticket = group.channel(ids[0].0).unwrap().start_send(block).unwrap();
    }
    for (left, right) in &ids[1..] {
        for id in [left, right] {
            let block = pool.take().unwrap();
            let _ticket = group.channel(*id).unwrap().start_send(block).unwrap();
            started += 1;
        }
    }
    // Sends and receives.
    for _ in 0..2 * started {
        let completed = group.wait_completed(Some(PATIENCE)).unwrap();
        completed.result.unwrap();
    }
    let begin = Instant::now();
    for (left, right) in ids {
        group.remove(left).unwrap();
        group.remove(right).unwrap();
    }
    println!("and removed in {:?}", begin.elapsed());
    assert!(group.is_empty());
    // The next one finds all of the room.
    let (left, right) = (group.prepare().unwrap(), group.prepare().unwrap());
    let (left, right) = meet(left, right);
    let id = group.join(left).unwrap();
    drop(right);
    let channel = group.channel(id).unwrap();
    assert_eq!(channel.credits(Queue::Receive), 64);
}
