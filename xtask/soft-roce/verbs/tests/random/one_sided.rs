//! Writes, reads and atomics: the peer's memory is what it was after some of them, in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain, SharedRegion};
use verbs_channel::{Channel, Completed, Incoming, Outgoing, OwnedRequest, Ticket};

use crate::messages::domains;
use crate::world::World;

const SIZE: usize = 4096;
/// Bytes that are one packet.
const PACKET: usize = 64;
const LONG: Duration = Duration::from_secs(5);

/// One end of a connection, and the peer's memory that only this end changes.
struct End {
    channel: Channel,
    pd: ProtectionDomain,
    memory: Arc<SharedRegion<Vec<u8>>>,
    /// The memory after each operation that was posted.
    states: Vec<Vec<u8>>,
    open: VecDeque<Posted>,
    /// Operations up to this one have succeeded.
    done: usize,
}

struct Posted {
    ticket: Ticket,
    /// Its place among all operations.
    number: usize,
    /// The bytes that it reads.
    expected: Option<Vec<u8>>,
}

pub(crate) fn run(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let Some(channels) = world.channels(pds.each_ref()) else {
        return;
    };
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let qp_nums = channels
        .each_ref()
        .map(|channel| Some(channel.endpoint()?.qp_num()));
    let mut ends = Vec::new();
    for (which, channel) in channels.into_iter().enumerate() {
        let Ok(memory) = pds[1 - which].reg_shared(vec![0; SIZE], access) else {
            return;
        };
        ends.push(End {
            channel,
            pd: pds[which].clone(),
            memory: Arc::new(memory),
            states: vec![vec![0; SIZE]],
            open: VecDeque::new(),
            done: 0,
        });
    }
    for _ in 0..world.random.below(150) {
        let which = world.random.below(2);
        match world.random.below(12) {
            0..6 => post(world, &mut ends[which]),
            6..9 => take(world, &mut ends[which], Some(Duration::from_millis(1))),
            9 => world.trouble(false, qp_nums),
            _ => world.pass(),
        }
    }
    for end in &mut ends {
        while !end.open.is_empty() {
            take(world, end, Some(LONG));
        }
        let mut found = vec![0; SIZE];
        end.memory.read(0, &mut found).expect("within the memory");
        let possible = match world.is_gentle {
            true => end.states.len() - 1,
            false => end.done,
        };
        assert!(
            end.states[possible..].contains(&found),
            "the memory is in no state that it can be in"
        );
    }
}

fn post(world: &mut World, end: &mut End) {
    let mut state = end.states.last().expect("there is one").clone();
    let word = 8 * world.random.below(SIZE / 8);
    let at = world.random.below(SIZE);
    let kind = world.random.below(5);
    // A write of several packets may end after some of them.
    let is_whole = kind == 2 || world.is_gentle;
    let most = if is_whole { SIZE } else { PACKET };
    let length = 1 + world.random.below((SIZE - at).min(most));
    let (start, length) = if kind < 3 { (at, length) } else { (word, 8) };
    let range = start as u64..(start + length) as u64;
    let remote = end.memory.remote().slice(range).expect("within the memory");
    let before = state[start..start + length].to_vec();
    let mark = world.random.number();
    let written: Vec<u8> = (0..length).map(|at| mark.to_le_bytes()[at % 8]).collect();
    let Ok(buffer) = end.pd.reg_mr(match kind {
        0 | 1 => written.clone(),
        _ => vec![0; length],
    }) else {
        assert!(!world.is_gentle);
        return;
    };
    let number = u64::from_ne_bytes(before[..8.min(length)].try_into().unwrap_or_default());
    let request = match kind {
        0 | 1 => {
            state[start..start + length].copy_from_slice(&written);
            OwnedRequest::from(Outgoing::write(buffer, remote))
        }
        2 => Incoming::read(buffer, remote).into(),
        3 => {
            state[start..start + 8].copy_from_slice(&number.wrapping_add(mark).to_ne_bytes());
            Incoming::fetch_and_add(buffer, remote, mark).into()
        }
        _ => {
            // Every other time it compares with something else.
            let compare = number ^ (mark & 1);
            if compare == number {
                state[start..start + 8].copy_from_slice(&mark.to_ne_bytes());
            }
            Incoming::compare_and_swap(buffer, remote, compare, mark).into()
        }
    };
    let Ok(ticket) = end.channel.start(request) else {
        return;
    };
    end.states.push(state);
    let number = end.states.len() - 1;
    let expected = (kind >= 2).then_some(before);
    let waits = expected.is_some();
    end.open.push_back(Posted {
        ticket,
        number,
        expected,
    });
    // Later requests might change the bytes that a repeated read reads.
    while waits && !end.open.is_empty() {
        take(world, end, Some(LONG));
    }
}

/// Takes the outcome of the oldest operation, if it comes in time. After a long wait it is aborted.
fn take(world: &World, end: &mut End, timeout: Option<Duration>) {
    let Some(posted) = end.open.pop_front() else {
        return;
    };
    let taken = end
        .channel
        .wait(posted.ticket, timeout)
        .expect("it was not taken");
    match taken {
        Some(completed) => check(world, end, &posted, &completed),
        None if timeout == Some(LONG) => {
            assert!(!world.is_gentle, "it never ends");
            end.channel.abort();
            let taken = end.channel.poll(posted.ticket).expect("it was not taken");
            check(
                world,
                end,
                &posted,
                &taken.expect("nothing is in flight after an abort"),
            );
        }
        None => end.open.push_front(posted),
    }
}

fn check(world: &World, end: &mut End, posted: &Posted, completed: &Completed) {
    assert!(
        completed.result.is_ok() || !world.is_gentle,
        "{:?}",
        completed.result
    );
    assert!(
        completed.buffer.is_some() || world.leaks,
        "a buffer is lost"
    );
    if completed.result.is_err() {
        return;
    }
    assert!(end.done < posted.number, "in the order of the posts");
    end.done = posted.number;
    if let (Some(expected), Some(buffer)) = (&posted.expected, &completed.buffer) {
        assert_eq!(**buffer, expected[..], "it has read something else");
    }
}
