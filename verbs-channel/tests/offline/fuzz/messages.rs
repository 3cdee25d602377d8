//! Random programs of a group whose channels share their receives: all messages are returned once, in
//! the order of arrival, whatever else polls the queue.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use fake_libibverbs::faulty::{Random, programs};
use fake_libibverbs::{assert_all_is_well, deliver, with};
use verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_RECV, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc,
};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Error, Message, ScopeError, Ticket,
};

use super::region;
use crate::fake_device::{bounded, pd};

const SHORT: Option<Duration> = Some(Duration::from_millis(1));
const BLOCKS: usize = 6;
const CHANNELS: usize = 3;

#[test]
fn messages_are_returned_once_whatever_else_polls() {
    programs(250, |seed| bounded(|| run(seed)));
}

fn run(seed: u64) {
    let mut world = World::new(Random(seed));
    for _ in 0..world.random.below(if cfg!(miri) { 40 } else { 120 }) {
        world.step();
        with(|library| assert_eq!(library.wrong, [""; 0]));
    }
    world.end();
}

struct World {
    random: Random,
    group: ChannelGroup,
    // Pools of the receives and of the sends.
    pools: [BufferPool; 2],
    // The channels that were not removed, with the numbers of their queue pairs.
    channels: Vec<(ChannelId, u32)>,
    device: Device,
    tickets: Vec<Ticket>,
    kept: Vec<Message>,
}

/// Requests posted and not completed, and the messages that have arrived and were not returned.
#[derive(Default)]
struct Device {
    receives: VecDeque<u64>,
    sends: Vec<(u64, u32)>,
    // Numbers of queue pairs that receive nothing any more.
    failed: Vec<u32>,
    arrived: VecDeque<(ChannelId, u32)>,
    count: u32,
}

impl Device {
    fn see(&mut self) {
        let posted = with(|library| mem::take(&mut library.posted));
        for posted in posted.into_iter().flatten() {
            if posted.is_send {
                self.sends.push((posted.wr_id, posted.qp_num));
            } else {
                // If it is there, it was posted to a queue that is gone.
                self.receives.retain(|wr_id| *wr_id != posted.wr_id);
                self.receives.push_back(posted.wr_id);
            }
        }
        self.receives
            .retain(|wr_id| fake_libibverbs::is_in_flight(*wr_id));
        self.sends
            .retain(|(wr_id, _)| fake_libibverbs::is_in_flight(*wr_id));
    }

    /// A message arrives on this channel, if there is a receive for it.
    fn receives(&mut self, (channel, qp_num): (ChannelId, u32)) {
        self.see();
        if self.failed.contains(&qp_num) {
            return;
        }
        let Some(wr_id) = self.receives.pop_front() else {
            return;
        };
        self.count += 1;
        let bytes = self.count.to_le_bytes();
        assert!(deliver(wr_id, &bytes));
        let done = ibv_wc {
            wr_id,
            qp_num,
            opcode: IBV_WC_RECV,
            byte_len: 4,
            status: IBV_WC_SUCCESS,
            ..Default::default()
        };
        with(|library| library.done.push_back(done));
        self.arrived.push_back((channel, self.count));
    }

    /// The first send of a queue pair completes. If it fails, the others are flushed.
    fn completes(&mut self, random: &mut Random) {
        self.see();
        if self.sends.is_empty() {
            return;
        }
        let (_, qp_num) = self.sends[random.below(self.sends.len())];
        let fails = random.one_in(24);
        let mut status = if fails {
            IBV_WC_REM_ACCESS_ERR
        } else {
            IBV_WC_SUCCESS
        };
        while let Some(at) = self.sends.iter().position(|(_, of)| *of == qp_num) {
            let (wr_id, _) = self.sends.remove(at);
            let done = ibv_wc {
                wr_id,
                qp_num,
                status,
                ..Default::default()
            };
            with(|library| library.done.push_back(done));
            if !fails {
                return;
            }
            status = IBV_WC_WR_FLUSH_ERR;
        }
        self.failed.push(qp_num);
    }
}

impl World {
    fn new(random: Random) -> Self {
        let pd = pd();
        let pools = [BLOCKS, 32].map(|count| BufferPool::new(&pd, 16, count).unwrap());
        let builder = Channel::builder(&pd).max_send_wr(3);
        let builder = builder.timeout(SHORT).drain_timeout(SHORT.unwrap());
        let receives = builder.shared_receives(&pools[0], 4);
        let group = receives.group(u32::try_from(CHANNELS).unwrap()).unwrap();
        let mut world = Self {
            random,
            group,
            pools,
            channels: Vec::new(),
            device: Device::default(),
            tickets: Vec::new(),
            kept: Vec::new(),
        };
        (0..CHANNELS).for_each(|_| world.join());
        world
    }

    fn join(&mut self) {
        let prepared = self.group.prepare().unwrap();
        let endpoint = prepared.endpoint();
        let member = prepared.handshake(&endpoint).unwrap();
        let id = self.group.join(member).unwrap();
        // The number of another may be used again.
        let qp_num = endpoint.qp_num();
        self.device.failed.retain(|failed| *failed != qp_num);
        self.channels.push((id, qp_num));
    }

    fn any(&mut self) -> (ChannelId, u32) {
        self.channels[self.random.below(self.channels.len())]
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..5 => self.start(),
            5..9 => {
                for _ in 0..=self.random.below(4) {
                    self.device.completes(&mut self.random);
                }
            }
            9..13 => {
                for _ in 0..=self.random.below(3) {
                    let channel = self.any();
                    self.device.receives(channel);
                }
            }
            13..17 => self.take(),
            17..20 => self.next(),
            20 => self.scope(),
            21 => self.block(),
            22 => self.replace(),
            _ => self.kept.truncate(self.random.below(4)),
        }
    }

    fn start(&mut self) {
        let (id, _) = self.any();
        if let Some(block) = self.pools[1].take() {
            let started = self.group.channel(id).unwrap().start_send(block);
            self.tickets.extend(started.ok());
        }
    }

    /// Polls for one operation, or for each in its turn.
    fn take(&mut self) {
        if self.tickets.is_empty() {
            return;
        }
        let all = self.random.one_in(2);
        let first = self.random.below(self.tickets.len());
        let tickets = match all {
            true => self.tickets.clone(),
            false => vec![self.tickets[first]],
        };
        for ticket in tickets {
            let engine = self.group.engine_mut();
            let is_taken = match self.random.below(3) {
                0 => engine.poll_success(ticket).is_some(),
                1 => engine.take(ticket).unwrap().is_some(),
                _ => engine.poll(ticket).unwrap().is_some(),
            };
            if is_taken {
                self.tickets.retain(|other| *other != ticket);
            }
        }
    }

    fn next(&mut self) {
        let message = match self.random.one_in(4) {
            true => self.group.wait_message(SHORT),
            false => self.group.next_message(),
        };
        match message {
            Some(message) => self.returned(message),
            None => assert!(self.device.arrived.is_empty(), "a message is lost"),
        }
    }

    /// A message, which is the oldest; or an end, after all messages of its channel.
    fn returned(&mut self, message: Message) {
        let Some(bytes) = message.bytes() else {
            let mut arrived = self.device.arrived.iter();
            assert!(message.end().is_some());
            assert!(arrived.all(|(channel, _)| *channel != message.channel));
            return;
        };
        let number = u32::from_le_bytes(bytes.try_into().unwrap());
        let expected = self.device.arrived.pop_front();
        assert_eq!(Some((message.channel, number)), expected);
        self.kept.push(message);
    }

    fn scope(&mut self) {
        let (id, _) = self.any();
        let from = region(self.group.engine_mut().pd(), 1);
        let Self {
            group,
            device,
            random,
            channels,
            ..
        } = self;
        let ended = group.channel(id).unwrap().scope(|scope| {
            let mut handles = Vec::new();
            for _ in 0..=random.below(3) {
                handles.extend(scope.post_send(from.gather_element(..)?));
                device.see();
            }
            device.receives(channels[random.below(channels.len())]);
            for _ in 0..12 {
                device.completes(random);
            }
            device.receives(channels[random.below(channels.len())]);
            for mut handle in handles {
                let _outcome = handle.poll();
            }
            Ok::<_, Error>(())
        });
        // It fails if the channel is down.
        let _failure: Option<ScopeError<Error>> = ended.err();
    }

    /// A blocking call, which completes at once, or not in time.
    fn block(&mut self) {
        let (id, qp_num) = self.any();
        let from = region(self.group.engine_mut().pd(), 1);
        let completes = !self.device.failed.contains(&qp_num) && !self.random.one_in(4);
        with(|library| library.completes_sends = completes);
        let mut channel = self.group.channel(id).unwrap();
        let ended = channel.send(from.gather_element(..).unwrap());
        with(|library| library.completes_sends = false);
        if channel.is_down() {
            self.device.failed.push(qp_num);
        } else {
            // It may be rejected for lack of room, or of slots.
            assert!(
                matches!(ended, Ok(()) | Err(Error::Rejected(_))),
                "{ended:?}"
            );
        }
    }

    /// Removes a channel, and adds another. Its messages are returned.
    fn replace(&mut self) {
        let at = self.random.below(self.channels.len());
        let (id, _) = self.channels.swap_remove(at);
        self.group.remove(id).unwrap();
        self.join();
    }

    fn end(mut self) {
        for _ in 0..8 {
            self.device.completes(&mut self.random);
        }
        while let Some(message) = self.group.next_message() {
            self.returned(message);
        }
        assert!(self.device.arrived.is_empty(), "messages are lost");
        let Self {
            group, pools, kept, ..
        } = self;
        drop(kept);
        drop(group);
        assert_eq!(pools.each_ref().map(BufferPool::available), [BLOCKS, 32]);
        drop(pools);
        assert_all_is_well();
    }
}
