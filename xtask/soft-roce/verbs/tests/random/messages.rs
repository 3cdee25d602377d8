//! Sends and receives on owned buffers, alone, in batches and in chains, on memory that the program keeps, and on borrowed
//! buffers of blocking calls, scopes and transfers, all on the same channels.
#![expect(
    clippy::mem_forget,
    reason = "memory stays that a device may still access"
)]
#![expect(unsafe_code, reason = "posts requests whose memory the program keeps")]

use std::mem;
use std::time::Duration;

use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::{MemoryRegion, ProtectionDomain, WorkSuccess};
use verbs_channel::{
    BufferPool, Channel, Completed, Outgoing, OwnedBuffer, OwnedRequest, ScopeError, Ticket,
    Transfer, TransportError,
};

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
    pd: ProtectionDomain,
    /// Lengths of the messages that were posted to be sent.
    posted: Vec<usize>,
    /// Receives that were posted.
    receives: usize,
    /// Messages whose send has succeeded.
    succeeded: Vec<usize>,
    /// Receives that failed.
    failed: Vec<usize>,
    /// Operations whose outcome was not taken.
    open: Vec<Operation>,
    was_aborted: bool,
}

/// One message, a receive, or several messages.
struct Operation {
    ticket: Ticket,
    kind: Kind,
    /// The number of the first message, or of the receive.
    number: usize,
    count: usize,
    /// Its memory, if that is not the channel's.
    memory: Option<MemoryRegion<Vec<u8>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Send,
    Receive,
}

type Result<T, E = TransportError> = std::result::Result<T, E>;

impl End {
    const fn new(channel: Channel, pd: ProtectionDomain) -> Self {
        Self {
            channel,
            pd,
            posted: Vec::new(),
            receives: 0,
            succeeded: Vec::new(),
            failed: Vec::new(),
            open: Vec::new(),
            was_aborted: false,
        }
    }

    /// A buffer of the pool with the bytes of a message.
    fn message(&self, pool: &BufferPool, at: usize, length: usize) -> Option<OwnedBuffer> {
        let message = bytes(self.posted.len() + at, length);
        Some(pool.take()?.filled(&message).expect("it fits"))
    }

    /// Takes an operation out of the open ones.
    fn operation(&mut self, ticket: Ticket) -> Operation {
        let mut open = self.open.iter();
        let at = open.position(|operation| operation.ticket == ticket);
        self.open.swap_remove(at.expect("it ends once"))
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
        let [left, right] = channels;
        let mut ends = [
            End::new(left, pds[0].clone()),
            End::new(right, pds[1].clone()),
        ];
        for _ in 0..world.random.below(120) {
            step(world, &pools, &mut ends);
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

fn step(world: &mut World, pools: &[BufferPool; 2], ends: &mut [End; 2]) {
    let which = world.random.below(2);
    match world.random.below(20) {
        0..4 => receive(world, &pools[which], &mut ends[which]),
        4..8 => send(world, &pools[which], &mut ends[which]),
        8..13 => take(world, ends, which),
        13 => block(world, pools, ends, which),
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

fn receive(world: &mut World, pool: &BufferPool, end: &mut End) {
    // It is rejected if the queue is full or the channel is down; the block goes back to the pool.
    let (ticket, memory) = if world.random.one_in(6) {
        let Ok(mut memory) = end.pd.reg_mr(vec![0; BLOCK]) else {
            return;
        };
        let into = memory.scatter_element(..).expect("all of it");
        // SAFETY: the memory is kept with the operation until its outcome is taken, or for ever.
        let posted = unsafe { end.channel.post_receive_unpolled(into) };
        (posted.ok(), Some(memory))
    } else {
        let Some(block) = pool.take() else { return };
        (end.channel.start_receive(block).ok(), None)
    };
    let Some(ticket) = ticket else { return };
    end.open.push(Operation {
        ticket,
        kind: Kind::Receive,
        number: end.receives,
        count: 1,
        memory,
    });
    end.receives += 1;
}

/// Sends a message, or several as a batch or a chain.
fn send(world: &mut World, pool: &BufferPool, end: &mut End) {
    let how = world.random.below(6);
    let count = match how {
        0 | 1 => 1 + world.random.below(3),
        _ => 1,
    };
    let lengths: Vec<usize> = (0..count).map(|_| world.random.below(BLOCK + 1)).collect();
    let numbered = lengths.iter().enumerate();
    let blocks = numbered.map(|(at, length)| end.message(pool, at, *length));
    let Some(mut blocks) = blocks.collect::<Option<Vec<_>>>() else {
        return;
    };
    let number = end.posted.len();
    let mut memory = None;
    let ticket = match how {
        0 | 1 => {
            let sends = blocks.into_iter().map(|block| Outgoing::send(block).into());
            let sends: Vec<OwnedRequest> = sends.collect();
            match how {
                0 => end.channel.start_batch(sends).ok(),
                _ => {
                    let chain = OwnedChain::new(sends).expect("only sends");
                    end.channel.start_chain(chain).ok()
                }
            }
        }
        2 => {
            let Ok(region) = end.pd.reg_mr(bytes(number, lengths[0].max(1))) else {
                return;
            };
            let from = memory.insert(region).gather_element(..lengths[0]);
            let send = Outgoing::send(from.expect("within the memory"));
            // SAFETY: the memory is kept with the operation until its outcome is taken, or for ever.
            let posted = unsafe { end.channel.post_unpolled(send) };
            posted.ok()
        }
        _ => end.channel.start_send(blocks.remove(0)).ok(),
    };
    let Some(ticket) = ticket else { return };
    end.open.push(Operation {
        ticket,
        kind: Kind::Send,
        number,
        count,
        memory,
    });
    end.posted.extend(lengths);
}

/// Takes the outcome of an operation, if it has one, in one of all ways.
fn take(world: &mut World, ends: &mut [End; 2], which: usize) {
    let end = &mut ends[which];
    if end.open.is_empty() {
        return;
    }
    let ticket = end.open[world.random.below(end.open.len())].ticket;
    let open = "it was not taken before";
    let taken = match world.random.below(9) {
        0 => end.channel.wait(ticket, Some(SHORT)).expect(open),
        1 => end.channel.next_completed(),
        2 => end.channel.wait_completed(Some(SHORT)),
        3 => end.channel.engine_mut().take(ticket).expect(open),
        4 => {
            let engine = end.channel.engine_mut();
            let next = engine.next_ticket();
            next.and_then(|ticket| engine.take(ticket).expect(open))
        }
        5 => {
            if let Some((success, buffer)) = end.channel.engine_mut().poll_success(ticket) {
                let success = Ok(*success);
                check(world, ends, which, ticket, &success, vec![buffer]);
            }
            return;
        }
        _ => end.channel.poll(ticket).expect(open),
    };
    if let Some(completed) = taken {
        ended(world, ends, which, completed);
    }
}

fn ended(world: &World, ends: &mut [End; 2], which: usize, completed: Completed) {
    let mut buffers: Vec<OwnedBuffer> = completed.buffer.into_iter().collect();
    let mut requests = completed.batch.unwrap_or_default();
    if let Some(chain) = completed.chain {
        let is_whole = chain.done() == chain.len();
        assert_eq!(is_whole, completed.result.is_ok());
        requests = chain.into_requests();
    }
    buffers.extend(requests.into_iter().map(OwnedRequest::into_buffer));
    let (ticket, result) = (completed.ticket, completed.result);
    check(world, ends, which, ticket, &result, buffers);
}

fn check(
    world: &World,
    ends: &mut [End; 2],
    which: usize,
    ticket: Ticket,
    result: &Result<WorkSuccess>,
    mut buffers: Vec<OwnedBuffer>,
) {
    assert!(result.is_ok() || !world.is_gentle, "{result:?}");
    let peer = &ends[1 - which].posted;
    let peers = |number| (number, *peer.get(number).expect("it was sent"));
    let operation = &ends[which].open.iter().find(|open| open.ticket == ticket);
    let number = operation.expect("it ends once").number;
    let message = match result {
        Ok(_) if operation.is_some_and(|open| open.kind == Kind::Receive) => Some(peers(number)),
        _ => None,
    };
    let end = &mut ends[which];
    let operation = end.operation(ticket);
    let numbers = number..number + operation.count;
    match result {
        Err(TransportError::Stuck) => mem::forget(operation.memory),
        _ => buffers.extend(operation.memory.map(OwnedBuffer::from)),
    }
    let is_back = buffers.len() == operation.count;
    assert!(is_back || world.leaks, "a buffer is lost: {result:?}");
    match (operation.kind, message) {
        (Kind::Send, _) => {
            for (number, buffer) in numbers.clone().zip(&buffers) {
                let length = end.posted[number];
                assert_eq!(
                    buffer[..length],
                    bytes(number, length),
                    "it has other bytes"
                );
            }
            if result.is_ok() {
                end.succeeded.extend(numbers);
            }
        }
        (Kind::Receive, Some((number, length))) => {
            let expected = bytes(number, length);
            assert_eq!(buffers[0][..length], expected, "it is another message");
            let found = result.as_ref().map(WorkSuccess::byte_len);
            assert_eq!(found.ok(), u32::try_from(length).ok());
        }
        (Kind::Receive, None) => end.failed.push(number),
    }
}

/// A send that blocks, for which there is a receive: a plain one, a scope, or a transfer.
fn block(world: &mut World, pools: &[BufferPool; 2], ends: &mut [End; 2], which: usize) {
    if world.leaks {
        // A driver that keeps borrowed memory ends the process.
        return;
    }
    while ends[1 - which].receives <= ends[which].posted.len() {
        let before = ends[1 - which].receives;
        receive(world, &pools[1 - which], &mut ends[1 - which]);
        if ends[1 - which].receives == before {
            return;
        }
    }
    let end = &mut ends[which];
    let (number, length) = (end.posted.len(), world.random.below(BLOCK + 1));
    let Ok(memory) = end.pd.reg_mr(bytes(number, length.max(1))) else {
        return;
    };
    let list = memory.gather_element(..length).expect("within the memory");
    let sent = match world.random.below(3) {
        0 => end.channel.send(list),
        1 => {
            let sent = end.channel.scope(|scope| scope.post_send(list).map(drop));
            sent.map_err(|error| match error {
                ScopeError::ClosureError(reason) => TransportError::Rejected(reason),
                ScopeError::AutoPollError(error) => error,
            })
        }
        _ => {
            let Some(block) = end.message(&pools[which], 0, length) else {
                return;
            };
            let mut transfer = Transfer::with_capacity(1);
            transfer.add(end.channel.id(), Outgoing::send(block));
            let ended = end.channel.transfer(&mut transfer, None);
            let outcome = transfer.drain().next().expect("it is there");
            assert_eq!(ended.is_ok(), outcome.result.is_ok());
            assert!(outcome.buffer.is_some(), "a buffer is lost");
            outcome.result.map(drop)
        }
    };
    let is_rejected = matches!(sent, Err(TransportError::Rejected(_)));
    assert!(sent.is_ok() || is_rejected || !world.is_gentle, "{sent:?}");
    if !is_rejected {
        end.posted.push(length);
    }
    if sent.is_ok() {
        end.succeeded.push(number);
    }
    let expected = bytes(number, length.max(1));
    assert_eq!(memory[..], expected, "it has other bytes");
}

/// All operations end, and what the two ends have seen goes together.
fn finish(world: &mut World, pools: &[BufferPool; 2], ends: &mut [End; 2]) {
    while world.is_gentle && (0..2).any(|which| lacks_receives(ends, which)) {
        for which in 0..2 {
            if lacks_receives(ends, which) {
                receive(world, &pools[which], &mut ends[which]);
            }
            take(world, ends, which);
            take(world, ends, 1 - which);
        }
    }
    // Those that no message comes for.
    for which in 0..2 {
        let expected = ends[1 - which].posted.len();
        let is_due = |open: &&Operation| {
            !world.is_gentle || open.kind == Kind::Send || open.number < expected
        };
        while let Some(operation) = ends[which].open.iter().rfind(is_due) {
            let ticket = operation.ticket;
            let end = &mut ends[which];
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
            ended(world, ends, which, completed);
        }
        // Nobody takes the outcomes of the others.
        for operation in ends[which].open.drain(..) {
            mem::forget(operation.memory);
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
    ends[which].receives < ends[1 - which].posted.len()
}
