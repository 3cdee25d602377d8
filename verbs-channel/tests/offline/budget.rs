//! The budget of a group: what its channels have in flight together.

use std::iter;
use std::sync::Arc;

use fake_libibverbs::with;
use verbs_channel::error::{Queue, Rejected};
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, DownReason, Error, Outgoing, OwnedRequest,
    RejectReason, Ticket, TransportError,
};

use crate::fake_device::{DRAIN, bounded, forget_the_past, pd, posted, refuse, succeeds};

/// The most channels of these groups.
const MAX: u32 = 4;

struct World {
    group: ChannelGroup,
    pool: BufferPool,
}

impl World {
    /// A group of this many channels, whose queues have room for 8 each.
    fn new(channels: u32, in_flight: u32) -> (Self, Vec<ChannelId>) {
        let pd = pd();
        let group = group_of(&pd, in_flight);
        let pool = BufferPool::new(&pd, 8, 64).unwrap();
        let mut world = Self { group, pool };
        let ids = (0..channels).map(|_| world.join().unwrap()).collect();
        forget_the_past();
        (world, ids)
    }

    fn join(&mut self) -> Result<ChannelId, Error> {
        let member = self.group.prepare()?;
        let endpoint = member.endpoint();
        let member = member.handshake(&endpoint)?;
        self.group.join(member).map_err(Rejected::into_error)
    }

    fn send(&mut self, id: ChannelId) -> Result<Ticket, RejectReason> {
        let block = self.pool.take().expect("there are enough");
        let mut channel = self.group.channel(id).unwrap();
        channel.start_send(block).map_err(|sent| *sent.error())
    }

    fn receive(&mut self, id: ChannelId) -> Result<Ticket, RejectReason> {
        let block = self.pool.take().expect("there are enough");
        let mut channel = self.group.channel(id).unwrap();
        channel.start_receive(block).map_err(|sent| *sent.error())
    }

    fn batch(&mut self, id: ChannelId, count: usize) -> Result<Ticket, RejectReason> {
        let blocks = iter::from_fn(|| self.pool.take()).take(count);
        let requests = blocks.map(|block| Outgoing::send(block).into());
        let requests: Vec<OwnedRequest> = requests.collect();
        let mut channel = self.group.channel(id).unwrap();
        channel.start_batch(requests).map_err(|sent| *sent.error())
    }

    /// Sends until there is no room. Returns how often.
    fn fill(&mut self, id: ChannelId) -> usize {
        let why = loop {
            match self.send(id) {
                Ok(_) => {}
                Err(why) => break why,
            }
        };
        assert!(why.is_backpressure(), "{why:?}");
        posted().len()
    }

    fn common(&mut self) -> u32 {
        self.group.engine_mut().common_room()
    }
}

fn group_of(pd: &ProtectionDomain, in_flight: u32) -> ChannelGroup {
    let builder = Channel::builder(pd).max_send_wr(8).max_recv_wr(8);
    let builder = builder.in_flight(in_flight).drain_timeout(DRAIN);
    builder.group(MAX).unwrap()
}

#[test]
fn the_completion_queue_has_room_for_the_budget_only() {
    let pd = pd();
    for (in_flight, entries) in [(32, 32), (0, 8), (8, 8), (63, 63), (64, 64), (1000, 64)] {
        let mut group = group_of(&pd, in_flight);
        // SAFETY: the queue is only asked for its capacity.
        let cq = unsafe { group.engine_mut().cq() };
        assert_eq!(cq.min_capacity(), entries, "{in_flight}");
    }
}

#[test]
fn a_busy_channel_leaves_the_others_their_shares() {
    // 2 for each of 8 queues, and 16 in common.
    let (mut world, ids) = World::new(MAX, 32);
    assert_eq!(world.common(), 16);
    // Up to the depth of its queue.
    assert_eq!(world.fill(ids[0]), 8);
    assert_eq!(world.common(), 10);
    assert_eq!(
        world.send(ids[0]).unwrap_err(),
        RejectReason::Backpressure(Queue::Send)
    );
    assert_eq!(world.fill(ids[1]), 16);
    assert_eq!(world.fill(ids[2]), 16 + 6);
    let why = world.send(ids[2]).unwrap_err();
    assert_eq!(why, RejectReason::Budget(Queue::Send));
    assert!(why.is_backpressure());
    // Nothing is left in common: each queue has its share.
    assert_eq!(world.common(), 0);
    for _ in 0..2 {
        world.send(ids[3]).unwrap();
        for id in &ids {
            world.receive(*id).unwrap();
        }
    }
    assert_eq!(
        world.send(ids[3]).unwrap_err(),
        RejectReason::Budget(Queue::Send)
    );
    assert_eq!(
        world.receive(ids[3]).unwrap_err(),
        RejectReason::Budget(Queue::Receive)
    );
    assert_eq!(posted().len(), 32);
    let channel = world.group.channel(ids[0]).unwrap();
    assert_eq!(
        (channel.credits(Queue::Send), channel.in_flight(Queue::Send)),
        (0, 8)
    );
}

#[test]
fn untaken_outcomes_have_slots_and_no_room() {
    let (mut world, ids) = World::new(MAX, 32);
    for _ in 0..4 {
        // More than the group can have in flight.
        for id in &ids[..2] {
            for _ in 0..4 {
                world.send(*id).unwrap();
            }
        }
        posted().into_iter().for_each(succeeds);
        forget_the_past();
        world.group.engine_mut().drive();
        assert_eq!(world.common(), 16);
    }
    // Each may have the slots that its queues hold, which are its own.
    assert_eq!(world.send(ids[0]).unwrap_err(), RejectReason::Untaken);
    assert_eq!(world.fill(ids[2]), 8);
    world.group.engine_mut().reserve(ids[0], 1).unwrap();
    world.send(ids[0]).unwrap();
    assert_eq!(world.send(ids[0]).unwrap_err(), RejectReason::Untaken);
    let taken = iter::from_fn(|| world.group.next_completed()).count();
    assert_eq!(taken, 32);
    world.send(ids[0]).unwrap();
}

#[test]
fn a_batch_has_its_share_and_the_common_room() {
    let (mut world, ids) = World::new(MAX, 32);
    world.batch(ids[0], 8).unwrap();
    assert_eq!(world.common(), 10);
    assert_eq!(
        world.batch(ids[1], 9).unwrap_err(),
        RejectReason::BatchTooLong { asked: 9, max: 8 }
    );
    world.batch(ids[1], 8).unwrap();
    assert_eq!(
        world.batch(ids[2], 8).unwrap_err(),
        RejectReason::Budget(Queue::Send)
    );
    let chain = world
        .group
        .channel(ids[2])
        .unwrap()
        .start_chain(OwnedChain::blank(8));
    assert_eq!(
        *chain.unwrap_err().error(),
        RejectReason::Budget(Queue::Send)
    );
    world.batch(ids[2], 6).unwrap();
    // It is one operation, which has its places until its last request completes.
    let all = posted();
    succeeds(all[7]);
    let ended = world.group.next_completed().unwrap();
    assert_eq!(ended.batch.unwrap().len(), 8);
    assert_eq!(world.common(), 6);
    // With two places in common at most, one of eight cannot be posted at any time.
    let (mut world, ids) = World::new(1, 10);
    assert_eq!(world.common(), 2);
    assert_eq!(
        world.batch(ids[0], 4).unwrap_err(),
        RejectReason::BatchTooLong { asked: 4, max: 3 }
    );
    world.batch(ids[0], 3).unwrap();
}

#[test]
fn a_channel_that_is_closed_returns_its_room() {
    let (mut world, ids) = World::new(MAX, 32);
    world.fill(ids[0]);
    assert_eq!(world.common(), 10);
    for _ in 0..8 {
        world.send(ids[1]).unwrap();
    }
    assert_eq!(world.common(), 4);
    world.group.remove(ids[0]).unwrap();
    world.group.remove(ids[1]).unwrap();
    let channel = world.group.channel(ids[2]).unwrap();
    assert_eq!(channel.credits(Queue::Send), 8);
    assert_eq!(world.common(), 16);
    // Its outcomes are taken as usual.
    let ended: Vec<_> = iter::from_fn(|| world.group.next_completed()).collect();
    assert_eq!(ended.len(), 8 + 8);
    assert!(ended.iter().all(|ended| ended.result.is_err()));
}

#[test]
fn room_of_channels_that_were_closed_is_polled_before_another_joins() {
    let (mut world, ids) = World::new(MAX, 32);
    world.fill(ids[0]);
    // The device leaves a completion of it, and the queue cannot be polled.
    succeeds(posted()[5]);
    with(|library| {
        library.before = Some(Arc::new(|verb, _| {
            if verb == "ibv_destroy_qp" {
                with(|library| library.poll_answer = Some(-1));
            }
        }));
    });
    let engine = world.group.engine_mut();
    engine.destroy(ids[0], DownReason::Closed).unwrap();
    assert!(world.group.is_empty(), "that takes all of them down");
    with(|library| library.before = None);
    assert!(with(|library| !library.done.is_empty()));
    let id = world.join().unwrap();
    assert!(with(|library| library.done.is_empty()));
    let channel = world.group.channel(id).unwrap();
    assert_eq!(channel.credits(Queue::Send), 8);
}

#[test]
fn a_channel_that_is_stuck_keeps_its_room() {
    let (mut world, ids) = World::new(MAX, 32);
    world.fill(ids[0]);
    refuse("ibv_destroy_qp", 1);
    world.group.remove(ids[0]).unwrap();
    assert_eq!(world.common(), 10);
    let ended: Vec<_> = iter::from_fn(|| world.group.next_completed()).collect();
    assert_eq!(ended.len(), 8);
    assert!(
        ended
            .iter()
            .all(|ended| matches!(ended.result, Err(TransportError::Stuck)))
    );
    assert_eq!(world.common(), 10);
    // Room that will never be free again is not waited for.
    assert!(world.join().is_err(), "its share is not another's either");
    let (mut world, ids) = World::new(1, 10);
    world.batch(ids[0], 3).unwrap();
    refuse("ibv_destroy_qp", 1);
    world.group.remove(ids[0]).unwrap();
    let id = world.join().unwrap();
    assert_eq!(
        world.batch(id, 2).unwrap_err(),
        RejectReason::BatchTooLong { asked: 2, max: 1 }
    );
}

#[test]
fn a_post_that_fails_returns_its_room() {
    let (mut world, ids) = World::new(MAX, 32);
    for _ in 0..3 {
        world.send(ids[0]).unwrap();
    }
    assert_eq!(world.common(), 15);
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    assert!(matches!(world.send(ids[0]), Err(RejectReason::Post(_))));
    assert_eq!(world.common(), 15);
    assert_eq!(
        world.group.channel(ids[0]).unwrap().in_flight(Queue::Send),
        3
    );
}

#[test]
fn room_that_is_held_is_for_those_that_wait() {
    let (mut world, ids) = World::new(MAX, 32);
    let engine = world.group.engine_mut();
    engine.hold_room(true);
    assert_eq!(engine.credits(ids[0], Queue::Send), 2);
    assert_eq!(engine.capacity(ids[0], Queue::Send), 8);
    for _ in 0..2 {
        world.send(ids[0]).unwrap();
    }
    assert_eq!(
        world.send(ids[0]).unwrap_err(),
        RejectReason::Budget(Queue::Send)
    );
    world.group.engine_mut().hold_room(false);
    world.send(ids[0]).unwrap();
}

#[test]
fn borrowed_operations_take_common_room_and_return_it() {
    let (mut world, ids) = World::new(MAX, 32);
    let pd = world.group.pd().clone();
    let region = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let element = region.gather_element(..8).unwrap();
    // Handles that are polled, dropped while they are in flight, dropped later, and leaked.
    for round in 0..4 {
        forget_the_past();
        let mut channel = world.group.channel(ids[0]).unwrap();
        let done: Result<(), verbs_channel::ScopeError<RejectReason>> = channel.scope(|scope| {
            let mut handles = Vec::new();
            for _ in 0..8 {
                handles.push(scope.post_send(element)?);
            }
            assert_eq!(
                scope.post_send(element).unwrap_err(),
                RejectReason::Backpressure(Queue::Send)
            );
            match round {
                0 => {
                    assert!(handles[7].poll().is_none());
                    posted().into_iter().for_each(succeeds);
                    for handle in &mut handles {
                        assert!(matches!(handle.poll(), Some(Ok(_))));
                        assert!(handle.poll().is_none(), "it was taken");
                    }
                }
                1 => {
                    handles.clear();
                    posted().into_iter().for_each(succeeds);
                }
                2 => {
                    posted().into_iter().for_each(succeeds);
                    scope.poll();
                    handles.clear();
                }
                _ => {
                    posted().into_iter().for_each(succeeds);
                    handles.into_iter().for_each(std::mem::forget);
                }
            }
            Ok(())
        });
        done.unwrap();
        assert!(channel.is_idle());
        assert_eq!(world.common(), 16);
    }
    // A blocking call, whose completion comes with its post.
    let mut channel = world.group.channel(ids[0]).unwrap();
    let _both = channel.start_send(world.pool.take().unwrap()).unwrap();
    let _both = channel.start_send(world.pool.take().unwrap()).unwrap();
    forget_the_past();
    let failed = channel.run(Outgoing::send(element).timeout(DRAIN));
    assert!(failed.is_err(), "nothing completes it");
    assert_eq!(world.common(), 16);
}

#[test]
fn blocking_request_takes_common_room_and_returns_it() {
    let (mut world, ids) = World::new(1, 16);
    let common = world.common();
    let from = world.pool.take().unwrap();
    // The share of the channel is taken.
    let ticket = world.send(ids[0]).unwrap();
    with(|library| library.completes_sends = true);
    for _ in 0..20 {
        let mut channel = world.group.channel(ids[0]).unwrap();
        bounded(|| channel.send(from.gather_element(..).unwrap())).unwrap();
        assert_eq!(channel.in_flight(Queue::Send), 1);
        assert_eq!(world.common(), common);
    }
    succeeds(posted()[0]);
    assert!(world.group.poll(ticket).unwrap().is_some());
}
