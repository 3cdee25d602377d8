//! Channels of a group, blocking or async, that share their receives: each message comes out once, in the order of its channel, before the
//! channel's end.

use std::time::Duration;

use verbs_async::{AsyncChannel, AsyncGroup, SharedMessages};
use verbs_channel::error::Rejected;
use verbs_channel::group::SharedReceivesConfig;
use verbs_channel::verbs_core::{ProtectionDomain, QueuePairEndpoint};
use verbs_channel::{BufferPool, Channel, ChannelGroup, ChannelId, Message, Ticket};

use crate::alone::alone;
use crate::messages::domains;
use crate::world::{World, bytes};

const BLOCK: usize = 32;
const BLOCKS: usize = 12;
const CHANNELS: u32 = 3;
const SHORT: Duration = Duration::from_millis(1);

/// A channel of the other host's, and what came of its messages.
#[derive(Debug)]
struct Sender {
    /// In the group.
    id: ChannelId,
    channel: Channel,
    posted: usize,
    succeeded: usize,
    received: usize,
    /// Receives for what the group sends.
    receives: Vec<Ticket>,
    has_ended: bool,
}

/// The group that receives.
enum Group {
    Blocking(Box<ChannelGroup>),
    Async {
        messages: SharedMessages,
        channels: Vec<AsyncChannel>,
        group: AsyncGroup,
    },
}

impl Group {
    fn new(
        world: &mut World,
        pd: &ProtectionDomain,
        receives: &SharedReceivesConfig,
    ) -> Option<Self> {
        if world.random.one_in(2) {
            return Some(Self::Blocking(Box::new(receives.group(CHANNELS).ok()?)));
        }
        let events = world.events(pd)?;
        let made = AsyncGroup::with_shared_receives(receives, CHANNELS, &events);
        let (group, messages) = made.ok()?;
        Some(Self::Async {
            messages,
            channels: Vec::new(),
            group,
        })
    }

    fn join(
        &mut self,
        left: &QueuePairEndpoint,
    ) -> verbs_async::Result<(ChannelId, QueuePairEndpoint)> {
        match self {
            Self::Blocking(group) => {
                let right = group.prepare()?;
                let to_right = right.endpoint();
                let joined = group.join(right.handshake(left)?);
                Ok((
                    joined.map_err(|rejected| Rejected::into_parts(rejected).0)?,
                    to_right,
                ))
            }
            Self::Async {
                channels, group, ..
            } => {
                let right = group.prepare()?;
                let to_right = right.endpoint();
                let joined = group.join(right.handshake(left)?);
                let channel = joined.map_err(|rejected| Rejected::into_parts(rejected).0)?;
                let id = channel.id();
                channels.push(channel);
                Ok((id, to_right))
            }
        }
    }

    fn receive(&mut self, world: &mut World) -> Option<Message> {
        let waits = world.random.one_in(2);
        match self {
            Self::Blocking(group) if waits => group.wait_message(Some(SHORT)),
            Self::Blocking(group) => group.next_message(),
            Self::Async { messages, .. } => {
                let time = if waits { SHORT } else { Duration::ZERO };
                world.fabric.block_on(time, messages.next()).flatten()
            }
        }
    }
}

pub(crate) fn run(world: &mut World) {
    alone(|| run_alone(world));
}

fn run_alone(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let pools = pds.each_ref().map(|pd| BufferPool::new(pd, BLOCK, BLOCKS));
    let [Ok(from), Ok(into)] = pools else {
        assert!(!world.is_gentle);
        return;
    };
    let receives = world.builder(&pds[1]).shared_receives(&into, 6);
    let Some(mut group) = Group::new(world, &pds[1], &receives) else {
        assert!(!world.is_gentle);
        return;
    };
    let (mut senders, mut kept) = (Vec::new(), Vec::new());
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
            8..12 => kept.extend(receive(world, &mut group, &mut senders)),
            13 if !kept.is_empty() => drop(kept.swap_remove(world.random.below(kept.len()))),
            14 => answer(world, &pds, &mut group, sender),
            12 => {
                let own = sender.channel.endpoint().map(QueuePairEndpoint::qp_num);
                world.trouble(false, [own, None]);
            }
            _ => world.pass(),
        }
    }
    drop(kept);
    // All that were acknowledged come out, for the group's host has lost nothing.
    let start = world.fabric.now();
    let wait = Duration::from_secs(if world.is_gentle { 100 } else { 1 });
    while world.fabric.now() - start < wait && senders.iter().any(is_behind) {
        senders.iter_mut().for_each(settle);
        (0..4).for_each(|_| drop(receive(world, &mut group, &mut senders)));
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
    group: &mut Group,
) -> verbs_async::Result<Sender> {
    let left = world.builder(pd).build()?;
    let (id, to_right) = group.join(&left.endpoint())?;
    let channel = left.handshake(&to_right)?;
    Ok(Sender {
        id,
        channel,
        posted: 0,
        succeeded: 0,
        received: 0,
        receives: Vec::new(),
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
        let is_send = !sender.receives.contains(&completed.ticket);
        sender.succeeded += usize::from(is_send && completed.result.is_ok());
    }
}

/// A blocking group sends something on a channel: the polls of its wait find messages of all channels.
fn answer(world: &World, pds: &[ProtectionDomain; 2], group: &mut Group, sender: &mut Sender) {
    let Group::Blocking(group) = group else {
        return;
    };
    let [Ok(into), Ok(from)] = pds.each_ref().map(|pd| pd.reg_mr(vec![0; 8])) else {
        return;
    };
    let Ok(receive) = sender.channel.start_receive(into) else {
        return;
    };
    sender.receives.push(receive);
    let Ok(mut channel) = group.channel(sender.id) else {
        return;
    };
    if let Ok(sent) = channel.start_send(from) {
        let sent = channel.wait(sent, Some(SHORT)).expect("it was not taken");
        let has_failed = sent.is_some_and(|sent| sent.result.is_err());
        assert!(!has_failed || !world.is_gentle);
    }
}

/// Takes a message, which has a block until it is dropped.
fn receive(world: &mut World, group: &mut Group, senders: &mut [Sender]) -> Option<Message> {
    let message = group.receive(world)?;
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
    Some(message)
}
