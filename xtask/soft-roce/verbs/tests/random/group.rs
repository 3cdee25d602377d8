//! Channels of a group that share their receives: each message comes out once, in the order of its channel, before the
//! channel's end.

use std::time::Duration;

use verbs_channel::verbs_core::{ProtectionDomain, QueuePairEndpoint};
use verbs_channel::{BufferPool, Channel, ChannelGroup, ChannelId, Message};

use crate::messages::domains;
use crate::world::{World, bytes};

const BLOCK: usize = 32;
const BLOCKS: usize = 12;
const CHANNELS: u32 = 3;
const SHORT: Option<Duration> = Some(Duration::from_millis(1));

/// A channel of the other host's, and what came of its messages.
#[derive(Debug)]
struct Sender {
    /// In the group.
    id: ChannelId,
    channel: Channel,
    posted: usize,
    succeeded: usize,
    received: usize,
    has_ended: bool,
}

pub(crate) fn run(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let pools = pds.each_ref().map(|pd| BufferPool::new(pd, BLOCK, BLOCKS));
    let [Ok(from), Ok(into)] = pools else {
        assert!(!world.is_gentle);
        return;
    };
    let receives = world.builder(&pds[1]).shared_receives(&into, 6);
    let Ok(mut group) = receives.group(CHANNELS) else {
        assert!(!world.is_gentle);
        return;
    };
    let mut senders = Vec::new();
    for _ in 0..CHANNELS {
        let joined = join(world, &pds[0], &mut group);
        assert!(joined.is_ok() || !world.is_gentle, "{joined:?}");
        senders.extend(joined.ok());
    }
    for _ in 0..world.random.below(150) {
        if senders.is_empty() {
            return;
        }
        let at = world.random.below(senders.len());
        let sender: &mut Sender = &mut senders[at];
        match world.random.below(16) {
            0..6 => send(sender, &from),
            6..8 => settle(sender),
            8..12 => receive(world, &mut group, &mut senders),
            12 => {
                let own = sender.channel.endpoint().map(QueuePairEndpoint::qp_num);
                world.trouble(false, [own, None]);
            }
            _ => world.pass(),
        }
    }
    // All that were acknowledged come out, for the group's host has lost nothing.
    let start = world.fabric.now();
    let wait = Duration::from_secs(if world.is_gentle { 100 } else { 1 });
    while world.fabric.now() - start < wait && senders.iter().any(is_behind) {
        senders.iter_mut().for_each(settle);
        (0..4).for_each(|_| receive(world, &mut group, &mut senders));
        world.fabric.run_for(Duration::from_millis(10));
    }
    for sender in &senders {
        let expected = if world.is_gentle {
            sender.posted
        } else {
            sender.succeeded
        };
        let is_lost = sender.received < expected && !world.is_hurt[1];
        assert!(!is_lost, "{} of {expected} have come", sender.received);
    }
    drop((senders, group));
    let free = [from.available(), into.available()];
    assert!(
        free == [BLOCKS; 2] || world.leaks,
        "blocks are lost: {free:?}"
    );
}

fn join(
    world: &mut World,
    pd: &ProtectionDomain,
    group: &mut ChannelGroup,
) -> verbs_channel::Result<Sender> {
    let (left, right) = (world.builder(pd).build()?, group.prepare()?);
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let channel = left.handshake(&to_right)?;
    let id = group.join(right.handshake(&to_left)?).map_err(|rejected| {
        let (error, _) = rejected.into_parts();
        error
    })?;
    Ok(Sender {
        id,
        channel,
        posted: 0,
        succeeded: 0,
        received: 0,
        has_ended: false,
    })
}

const fn is_behind(sender: &Sender) -> bool {
    sender.received < sender.posted
}

fn send(sender: &mut Sender, pool: &BufferPool) {
    let message = bytes(sender.posted, BLOCK);
    if let Ok(Some(block)) = pool.take_with(&message)
        && sender.channel.start_send(block).is_ok()
    {
        sender.posted += 1;
    }
}

/// Takes the outcomes that there are.
fn settle(sender: &mut Sender) {
    sender.channel.engine_mut().drive();
    while let Some(completed) = sender.channel.next_completed() {
        sender.succeeded += usize::from(completed.result.is_ok());
    }
}

fn receive(world: &mut World, group: &mut ChannelGroup, senders: &mut [Sender]) {
    let message: Option<Message> = match world.random.one_in(2) {
        true => group.wait_message(SHORT),
        false => group.next_message(),
    };
    let Some(message) = message else { return };
    let mut senders = senders.iter_mut();
    let sender = senders.find(|sender| sender.id == message.channel);
    let sender = sender.expect("it was joined");
    assert!(!sender.has_ended, "nothing comes after the end");
    match message.bytes() {
        Some(found) => {
            assert_eq!(
                *found,
                bytes(sender.received, BLOCK),
                "it is another message"
            );
            sender.received += 1;
            assert!(sender.received <= sender.posted, "nobody has sent it");
        }
        None => {
            assert!(!world.is_gentle, "{:?}", message.end());
            sender.has_ended = true;
        }
    }
}
