//! Sixty-four channels of four processes on one shared receive queue, which end in every way while
//! messages are in flight: no receive is lost, and each message is delivered whole or its channel ends.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};

use verbs_channel::connect::Met;
use verbs_channel::verbs_core::{AckTimeout, ProtectionDomain};
use verbs_channel::{
    BufferPool, Channel, ChannelConfig, ChannelGroup, ChannelId, Connect, DownReason, Message,
};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::{PATIENCE, begin};

use super::ends::{here, meet, pattern};

/// Processes, of which the first two are killed, and the channels of each.
const PARTS: usize = 4;
const KILLED: usize = 2;
const CHANNELS: usize = 16;

/// Blocks for all channels: fewer than there are messages in flight.
const BLOCKS: usize = 48;

/// The length of a block, in bytes.
const LONGEST: usize = 9000;

/// Messages on each channel of a process that is not killed.
const ROUNDS: u32 = 12;

/// Numbers that look random.
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// A channel whose requests are sent again for seconds while the shared queue is empty. Soft-RoCE counts
/// that as retries.
fn builder(pd: &ProtectionDomain) -> ChannelConfig {
    let builder = Channel::builder(pd).max_send_wr(2).max_recv_wr(1);
    let ack_timeout = AckTimeout::new(18).unwrap();
    builder.timeout(PATIENCE).ack_timeout(ack_timeout).config()
}

/// The message of this index on a channel of this number: of one packet or of several.
fn message(number: usize, index: u32) -> Vec<u8> {
    let len = if number.is_multiple_of(2) {
        LONGEST
    } else {
        64
    };
    let index = usize::try_from(index).unwrap();
    let seed = number * 1000 + index;
    [
        &u32::try_from(number).unwrap().to_le_bytes()[..],
        &u32::try_from(index).unwrap().to_le_bytes(),
        &pattern(seed, len - 8),
    ]
    .concat()
}

/// A process: one message on each of its channels in turn. Now and then it drops a channel.
fn be_a_part(role: &str, mut line: Line) {
    let mut numbers = role
        .split(' ')
        .map(|number| number.parse::<usize>().unwrap());
    let [port, part] = [(); 2].map(|()| numbers.next().unwrap());
    let address = (Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap());
    let pd = here();
    let pool = BufferPool::new(&pd, LONGEST, CHANNELS).unwrap();
    let mut group = builder(&pd)
        .group(u32::try_from(CHANNELS).unwrap())
        .unwrap();
    let mut open = BTreeMap::new();
    for number in part * CHANNELS..(part + 1) * CHANNELS {
        let member = group.prepare().unwrap();
        let name = number.to_string();
        let connected = member.connect(
            address,
            Connect::within(PATIENCE).private_data(name.as_bytes()),
        );
        open.insert(group.join(connected.unwrap().channel).unwrap(), number);
    }
    line.is_slow();
    line.read();
    let mut acknowledged = BTreeMap::new();
    let mut random = Random(part as u64);
    let rounds = if part < KILLED { u32::MAX } else { ROUNDS };
    for index in 0..rounds {
        let mut sent = 0;
        open.retain(|id, number| {
            let bytes = message(*number, index);
            let block = pool.take_with(&bytes).unwrap().unwrap();
            let started = group.channel(*id).unwrap().start_send(block);
            sent += usize::from(started.is_ok());
            started.is_ok()
        });
        for _ in 0..sent {
            let completed = group.wait_completed(Some(PATIENCE)).expect("it completes");
            if completed.result.is_ok() {
                *acknowledged.entry(open[&completed.channel]).or_insert(0) += 1;
            }
        }
        open.retain(|id, _| {
            let stays = !group.channel(*id).unwrap().is_down() && random.below(100) > 0;
            if !stays {
                group.remove(*id).unwrap();
            }
            stays
        });
    }
    drop(group);
    let counts: Vec<_> = acknowledged
        .iter()
        .map(|(number, count)| format!("{number}:{count}"))
        .collect();
    line.write(&counts.join(" "));
    line.read();
}

/// The channels of the group, and what arrived on them.
struct Crowd {
    group: ChannelGroup,
    // The number of a channel, by its id.
    numbers: BTreeMap<ChannelId, usize>,
    // How many messages arrived, by the channel's number.
    arrived: BTreeMap<usize, u32>,
    // Channels that this side has ended.
    ended_here: Vec<usize>,
    kept: Vec<Message>,
}

impl Crowd {
    fn take(&mut self, came: Message) {
        let number = self.numbers[&came.channel];
        if came.end().is_some() {
            self.group.remove(came.channel).unwrap();
            return;
        }
        let next = self.arrived.entry(number).or_default();
        let expected = message(number, *next);
        assert!(
            came.bytes() == Some(&expected[..]),
            "message {next} of channel {number}"
        );
        *next += 1;
        self.kept.push(came);
    }

    /// Ends an open channel of a process that is not killed, in one of the ways that there are.
    fn end_one(&mut self, random: &mut Random) {
        let of_others = |id: &ChannelId| self.numbers[id] >= KILLED * CHANNELS;
        let open: Vec<_> = self.group.channels().filter(of_others).collect();
        if open.is_empty() {
            return;
        }
        let id = open[random.below(open.len())];
        self.ended_here.push(self.numbers[&id]);
        match random.below(3) {
            0 => self.group.remove(id).unwrap(),
            1 => self.group.channel(id).unwrap().abort(),
            _ => {
                let engine = self.group.engine_mut();
                engine.shut_down(id, DownReason::Abandoned).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn channels_that_end_in_every_way_lose_no_receive() {
    if let Some((role, line)) = role() {
        return be_a_part(&role, line);
    }
    let test = begin!(iwarp lacks "connecting over TCP");
    let pd = here();
    let pool = BufferPool::new(&pd, LONGEST, BLOCKS).unwrap();
    let blocks = u32::try_from(BLOCKS).unwrap();
    let shared = builder(&pd).shared_receives(&pool, blocks);
    let max_channels = u32::try_from(PARTS * CHANNELS).unwrap();
    let mut crowd = Crowd {
        group: shared.group(max_channels).unwrap(),
        numbers: BTreeMap::new(),
        arrived: BTreeMap::new(),
        ended_here: Vec::new(),
        kept: Vec::new(),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let part = |number| Child::start(&test, &format!("{port} {number}"));
    let mut parts: Vec<_> = (0..PARTS).map(part).collect();
    for _ in 0..PARTS * CHANNELS {
        let member = crowd.group.prepare().unwrap();
        let Met {
            channel: member,
            private_data: name,
            ..
        } = member.accept(&listener, PATIENCE).unwrap();
        let id = crowd.group.join(member).unwrap();
        let number = String::from_utf8(name).unwrap().parse().unwrap();
        crowd.numbers.insert(id, number);
    }
    assert_eq!(crowd.group.len(), PARTS * CHANNELS);
    for part in &mut parts {
        part.line.write("go");
    }
    let mut random = Random(1);
    let mut kills = [60 + random.below(60), 160 + random.below(60)];
    let mut count = 0;
    while !crowd.group.is_empty() {
        let came = crowd
            .group
            .wait_message(Some(PATIENCE))
            .expect("a message or an end");
        crowd.take(came);
        count += 1;
        for (part, at) in parts.iter_mut().zip(&mut kills) {
            if count == *at {
                part.kill();
            }
        }
        if random.below(30) == 0 {
            crowd.end_one(&mut random);
        }
        // A slow consumer.
        if crowd.kept.len() > random.below(BLOCKS) {
            crowd.kept.clear();
        }
    }
    // Messages that arrived before the last channel was removed.
    while let Some(came) = crowd.group.next_message() {
        crowd.take(came);
    }
    crowd.kept.clear();
    for part in &mut parts[KILLED..] {
        for channel in part.line.read().split_whitespace() {
            let (number, acknowledged) = channel.split_once(':').unwrap();
            let number = number.parse().unwrap();
            let acknowledged: u32 = acknowledged.parse().unwrap();
            let arrived = crowd.arrived.get(&number).copied().unwrap_or_default();
            let is_whole = arrived == acknowledged || crowd.ended_here.contains(&number);
            assert!(
                is_whole,
                "{arrived} of {acknowledged} messages of channel {number}"
            );
        }
        part.line.write("done");
    }
    all_receives_are_there(&mut crowd.group, &pd);
    drop(crowd);
    assert_eq!(pool.available(), BLOCKS);
}

/// All blocks are in the queue: a message arrives for each of them, while none is taken.
fn all_receives_are_there(group: &mut ChannelGroup, pd: &ProtectionDomain) {
    let (member, peer) = (group.prepare().unwrap(), builder(pd).build().unwrap());
    let (member, mut peer) = meet(member, peer);
    let id = group.join(member).unwrap();
    group.engine_mut().refill();
    let bytes = pd.reg_mr(pattern(7, LONGEST)).unwrap();
    for number in 0..BLOCKS {
        let sent = peer.send(bytes.gather_element(..).unwrap());
        assert!(
            sent.is_ok(),
            "{number} of {BLOCKS} receives are there: {sent:?}"
        );
    }
    for _ in 0..BLOCKS {
        let came = group.wait_message(Some(PATIENCE)).unwrap();
        assert!(came.channel == id && came.bytes() == Some(&bytes[..]));
    }
}
