//! Sends and receives on owned buffers, and blocking ones.

use std::time::Duration;

use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{BufferPool, Channel, Completed, Ticket};

use crate::world::{World, bytes};

const BLOCK: usize = 48;
const BLOCKS: usize = 40;
/// A wait that ends before most things have happened.
const SHORT: Duration = Duration::from_millis(1);
/// A wait that ends after everything has failed that can.
const LONG: Duration = Duration::from_secs(5);

/// One end of a connection.
struct End {
    channel: Channel,
    /// Lengths of the messages that were posted to be sent.
    posted: Vec<usize>,
    /// Sends and receives, in the order of their posts, with their results when they are taken.
    sends: Vec<(usize, Ticket)>,
    receives: Vec<Ticket>,
    /// Messages whose send has succeeded.
    succeeded: Vec<usize>,
    /// Receives that failed.
    failed: Vec<usize>,
    /// Those that were not taken.
    open: Vec<(Kind, usize)>,
    was_aborted: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Send,
    Receive,
}

impl End {
    fn new(channel: Channel) -> Self {
        Self {
            channel,
            posted: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            succeeded: Vec::new(),
            failed: Vec::new(),
            open: Vec::new(),
            was_aborted: false,
        }
    }
}

pub(crate) fn run(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let Some(pools) = pools(world, &pds) else {
        return;
    };
    for _ in 0..=world.random.below(2) {
        let Some(channels) = world.channels(pds.each_ref()) else {
            continue;
        };
        let mut ends = channels.map(End::new);
        for _ in 0..world.random.below(120) {
            step(world, &pds, &pools, &mut ends);
        }
        finish(world, &pools, &mut ends);
    }
    if !world.leaks {
        let free = pools.each_ref().map(BufferPool::available);
        assert_eq!(free, [BLOCKS; 2], "blocks are lost");
    }
}

pub(crate) fn domains(world: &World) -> Option<[ProtectionDomain; 2]> {
    Some([world.domain(0)?, world.domain(1)?])
}

fn pools(world: &World, pds: &[ProtectionDomain; 2]) -> Option<[BufferPool; 2]> {
    let [a, b] = pds.each_ref().map(|pd| BufferPool::new(pd, BLOCK, BLOCKS));
    assert!(!world.is_gentle || a.is_ok() && b.is_ok());
    Some([a.ok()?, b.ok()?])
}

fn step(
    world: &mut World,
    pds: &[ProtectionDomain; 2],
    pools: &[BufferPool; 2],
    ends: &mut [End; 2],
) {
    let which = world.random.below(2);
    match world.random.below(20) {
        0..4 => receive(&pools[which], &mut ends[which]),
        4..8 => {
            let length = world.random.below(BLOCK + 1);
            send(&pools[which], &mut ends[which], length);
        }
        8..13 => take(world, ends, which),
        13 => block(world, pds, pools, ends, which),
        14 if !world.is_gentle && world.random.one_in(8) => {
            ends[which].was_aborted = true;
            ends[which].channel.abort();
        }
        15 | 16 => {
            let qp_nums = ends
                .each_ref()
                .map(|end| Some(end.channel.endpoint()?.qp_num()));
            world.trouble(false, qp_nums);
        }
        _ => world.pass(),
    }
}

fn receive(pool: &BufferPool, end: &mut End) {
    let Some(block) = pool.take() else { return };
    // It is rejected if the queue is full or the channel is down; the block goes back to the pool.
    if let Ok(ticket) = end.channel.start_receive(block) {
        end.open.push((Kind::Receive, end.receives.len()));
        end.receives.push(ticket);
    }
}

fn send(pool: &BufferPool, end: &mut End, length: usize) {
    let number = end.posted.len();
    let Some(block) = pool.take() else { return };
    let buffer = block.filled(&bytes(number, length)).expect("it fits");
    if let Ok(ticket) = end.channel.start_send(buffer) {
        end.open.push((Kind::Send, end.sends.len()));
        end.sends.push((number, ticket));
        end.posted.push(length);
    }
}

/// Takes the outcome of an operation, if it has one.
fn take(world: &mut World, ends: &mut [End; 2], which: usize) {
    let end = &mut ends[which];
    if end.open.is_empty() {
        return;
    }
    let at = world.random.below(end.open.len());
    let (kind, index) = end.open[at];
    let ticket = match kind {
        Kind::Send => end.sends[index].1,
        Kind::Receive => end.receives[index],
    };
    let taken = match world.random.below(3) {
        0 => end.channel.wait(ticket, Some(SHORT)),
        _ => end.channel.poll(ticket),
    };
    if let Some(completed) = taken.expect("it was not taken before") {
        end.open.swap_remove(at);
        check(world, ends, which, kind, index, completed);
    }
}

fn check(
    world: &World,
    ends: &mut [End; 2],
    which: usize,
    kind: Kind,
    index: usize,
    completed: Completed,
) {
    let is_ok = completed.result.is_ok();
    assert!(is_ok || !world.is_gentle, "{:?}", completed.result);
    let is_back = completed.buffer.is_some() || world.leaks;
    assert!(is_back, "a buffer is lost: {:?}", completed.result);
    let end = &mut ends[which];
    match kind {
        Kind::Send => {
            let number = end.sends[index].0;
            if let Some(buffer) = &completed.buffer {
                assert_eq!(
                    **buffer,
                    bytes(number, end.posted[number]),
                    "it has other bytes"
                );
            }
            if is_ok {
                end.succeeded.push(number);
            }
        }
        Kind::Receive if is_ok => {
            let message = completed.message().expect("it has come");
            let length = *ends[1 - which].posted.get(index).expect("it was sent");
            assert_eq!(message, bytes(index, length), "it is another message");
        }
        Kind::Receive => end.failed.push(index),
    }
}

/// A blocking send, for which there is a receive.
fn block(
    world: &mut World,
    pds: &[ProtectionDomain; 2],
    pools: &[BufferPool; 2],
    ends: &mut [End; 2],
    which: usize,
) {
    if world.leaks {
        // A driver that keeps borrowed memory ends the process.
        return;
    }
    while ends[1 - which].receives.len() <= ends[which].posted.len() {
        let before = ends[1 - which].receives.len();
        receive(&pools[1 - which], &mut ends[1 - which]);
        if ends[1 - which].receives.len() == before {
            return;
        }
    }
    let (number, length) = (ends[which].posted.len(), world.random.below(BLOCK + 1));
    let Ok(memory) = pds[which].reg_mr(bytes(number, length.max(1))) else {
        return;
    };
    let list = memory.gather_element(..length).expect("within the memory");
    let sent = ends[which].channel.send(list);
    assert!(
        sent.is_ok() || !world.is_gentle || is_rejected(&sent),
        "{sent:?}"
    );
    if !is_rejected(&sent) {
        ends[which].posted.push(length);
    }
    if sent.is_ok() {
        ends[which].succeeded.push(number);
    }
    let expected = bytes(number, length.max(1));
    assert_eq!(memory[..], expected, "it has other bytes");
}

fn is_rejected(sent: &verbs_channel::Result<()>) -> bool {
    matches!(sent, Err(verbs_channel::Error::Rejected(_)))
}

/// All operations end, and what the two ends have seen goes together.
fn finish(world: &mut World, pools: &[BufferPool; 2], ends: &mut [End; 2]) {
    while world.is_gentle && (0..2).any(|which| lacks_receives(ends, which)) {
        for which in 0..2 {
            if lacks_receives(ends, which) {
                receive(&pools[which], &mut ends[which]);
            }
            take(world, ends, which);
            take(world, ends, 1 - which);
        }
    }
    // Those that no message comes for.
    for which in 0..2 {
        let expected = ends[1 - which].posted.len();
        while let Some(at) = last(&ends[which].open, |(kind, index)| {
            !world.is_gentle || kind == Kind::Send || index < expected
        }) {
            let (kind, index) = ends[which].open.swap_remove(at);
            let end = &mut ends[which];
            let ticket = match kind {
                Kind::Send => end.sends[index].1,
                Kind::Receive => end.receives[index],
            };
            let mut taken = end
                .channel
                .wait(ticket, Some(LONG))
                .expect("not taken before");
            if taken.is_none() {
                assert!(!world.is_gentle, "it never ends");
                end.was_aborted = true;
                end.channel.abort();
                taken = end.channel.poll(ticket).expect("it was not taken before");
            }
            let completed = taken.expect("nothing is in flight after an abort");
            check(world, ends, which, kind, index, completed);
        }
    }
    for which in 0..2 {
        let (from, to) = (&ends[which], &ends[1 - which]);
        if world.is_hurt[1 - which] || to.was_aborted {
            continue;
        }
        let lost = from
            .succeeded
            .iter()
            .find(|number| to.failed.contains(number));
        assert_eq!(lost, None, "it was acknowledged, and not received");
    }
}

fn lacks_receives(ends: &[End; 2], which: usize) -> bool {
    ends[which].receives.len() < ends[1 - which].posted.len()
}

fn last(open: &[(Kind, usize)], is_wanted: impl Fn((Kind, usize)) -> bool) -> Option<usize> {
    open.iter().rposition(|entry| is_wanted(*entry))
}
