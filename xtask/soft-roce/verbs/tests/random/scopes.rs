//! Scopes on borrowed buffers, at both ends: handles and loans are polled, waited for, dropped and forgotten, and scopes end
//! by their own, with an error, or in a panic, perhaps with receives left.
#![expect(clippy::mem_forget, reason = "handles may be forgotten")]

use std::mem;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use verbs_channel::request::List;
use verbs_channel::verbs_core::{GatherElement, ScatterElement, WorkSuccess};
use verbs_channel::{
    Incoming, Outgoing, PollingScope, ScopeError, ScopedPendingWork, TransportError,
};

use crate::messages::domains;
use crate::world::{World, bytes};

const PART: usize = 32;
const PARTS: usize = 24;

/// Why a scope ends early.
#[derive(Debug)]
enum Early {
    Error,
    Panic,
}

type Ended = Result<WorkSuccess, TransportError>;

/// The handles that are left, with the numbers of their messages, and the results of those that are not.
struct Side<'scope, 'env, L> {
    scope: &'scope PollingScope<'scope, 'env>,
    handles: Vec<(Range<usize>, ScopedPendingWork<'scope, 'env>)>,
    loans: Vec<(usize, ScopedPendingWork<'scope, 'env, L>)>,
    posted: usize,
    ended: Vec<(usize, bool)>,
}

pub(crate) fn run(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let messages: Vec<u8> = (0..PARTS).flat_map(|number| bytes(number, PART)).collect();
    for _ in 0..=world.random.below(3) {
        let Some([mut left, mut right]) = world.channels(pds.each_ref()) else {
            continue;
        };
        let memory = (
            pds[0].reg_mr(messages.clone()),
            pds[1].reg_mr(vec![0; PART * PARTS]),
        );
        let (Ok(from), Ok(mut into)) = memory else {
            assert!(!world.is_gentle);
            continue;
        };
        let qp_nums = [&left, &right].map(|channel| Some(channel.endpoint()?.qp_num()));
        let mut received = Vec::new();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let from = from.gather_element(..).expect("all of it").chunks(PART);
            let from: Vec<_> = from.expect("parts").collect();
            let parts = into
                .scatter_element(..)
                .expect("all of it")
                .chunks_mut(PART);
            let parts = parts.expect("parts").collect();
            left.scope(|sends| {
                let inner = right.scope(|receives| {
                    let (sends, receives) = (side(sends), side(receives));
                    program(world, sends, receives, &from, parts, &mut received, qp_nums)
                });
                match inner {
                    Err(ScopeError::ClosureError(early)) => Err(early),
                    other => Ok(other.is_ok()),
                }
            })
        }));
        match ended {
            Err(panic) if panic.is::<Early>() => {}
            Err(panic) => resume_unwind(panic),
            Ok(ended) => {
                let is_early = matches!(ended, Err(ScopeError::ClosureError(_)));
                let is_well = matches!(ended, Ok(true)) || is_early;
                assert!(is_well || !world.is_gentle, "{ended:?}");
            }
        }
        assert_eq!(from[..], messages, "it has other bytes");
        for number in received {
            let found = &into[number * PART..][..PART];
            assert_eq!(found, bytes(number, PART), "it is another message");
        }
        into.fill(1);
    }
}

const fn side<'scope, 'env, L>(scope: &'scope PollingScope<'scope, 'env>) -> Side<'scope, 'env, L> {
    Side {
        scope,
        handles: Vec::new(),
        loans: Vec::new(),
        posted: 0,
        ended: Vec::new(),
    }
}

fn program<'s, 't, 'f, 'r>(
    world: &mut World,
    mut sends: Side<'s, '_, GatherElement<'f>>,
    mut receives: Side<'t, '_, ScatterElement<'r>>,
    from: &[GatherElement<'f>],
    mut parts: Vec<ScatterElement<'r>>,
    received: &mut Vec<usize>,
    qp_nums: [Option<u32>; 2],
) -> Result<(), Early>
where
    'f: 's,
    'r: 't,
{
    parts.reverse();
    if !world.is_gentle && world.random.one_in(8) {
        receives.scope.close_with_receives_left();
    }
    for _ in 0..world.random.below(60) {
        match world.random.below(12) {
            0..3 => receive(&mut receives, &mut parts),
            3..6 => send(world, &mut sends, from),
            6..8 => take(world, &mut sends),
            8..10 => take(world, &mut receives),
            10 => world.trouble(true, qp_nums),
            _ => world.pass(),
        }
    }
    let mut how = world.random.below(6);
    // A message for each receive, and a receive for each message, if slots of forgotten handles leave room.
    let mut tries = if world.is_gentle { 500 } else { 0 };
    while tries > 0 && sends.posted != receives.posted {
        match sends.posted < receives.posted {
            true => send(world, &mut sends, from),
            false => receive(&mut receives, &mut parts),
        }
        take(world, &mut sends);
        take(world, &mut receives);
        tries -= 1;
    }
    if sends.posted != receives.posted {
        how = how.min(1);
    }
    for (number, is_ok) in sends.ended.iter().chain(&receives.ended) {
        assert!(is_ok | !world.is_gentle, "message {number} was lost");
    }
    let succeeded = receives.ended.iter().filter(|(_, is_ok)| *is_ok);
    received.extend(succeeded.map(|(number, _)| number));
    match how {
        0 => resume_unwind(Box::new(Early::Panic)),
        1 => Err(Early::Error),
        _ => Ok(()),
    }
}

fn send<'s, 'e, 'f: 's>(
    world: &mut World,
    side: &mut Side<'s, 'e, GatherElement<'f>>,
    from: &[GatherElement<'f>],
) {
    let at = side.posted;
    let Some(element) = from.get(at) else {
        return;
    };
    match (world.random.below(4), from.get(at + 1)) {
        (0, _) => {
            if let Ok(loan) = side.scope.lend(Outgoing::send(*element)) {
                side.loans.push((at, loan));
                side.posted += 1;
            }
        }
        (1, Some(next)) if !world.is_gentle => {
            let batch = [element, next].map(|element| Outgoing::send(*element));
            if let Ok(handle) = side.scope.post_batch(batch) {
                side.handles.push((at..at + 2, handle));
                side.posted += 2;
            }
        }
        _ => {
            if let Ok(handle) = side.scope.post_send(*element) {
                side.handles.push((at..at + 1, handle));
                side.posted += 1;
            }
        }
    }
}

fn receive<'s, 'e, 'r: 's>(
    side: &mut Side<'s, 'e, ScatterElement<'r>>,
    parts: &mut Vec<ScatterElement<'r>>,
) {
    let Some(part) = parts.pop() else { return };
    match side.scope.try_lend(Incoming::receive(part)) {
        Ok(loan) => {
            side.loans.push((side.posted, loan));
            side.posted += 1;
        }
        Err(rejected) => parts.push(rejected.into_given().into_list()),
    }
}

/// Uses a handle or a loan in one of all ways.
fn take<L: List>(world: &mut World, side: &mut Side<'_, '_, L>) {
    if !side.loans.is_empty() && world.random.one_in(3) {
        return take_loan(world, side);
    }
    if side.handles.is_empty() {
        return;
    }
    let at = world.random.below(side.handles.len());
    let (numbers, mut handle) = side.handles.swap_remove(at);
    let ended: Option<Ended> = match world.random.below(10) {
        0 => return drop(handle),
        1 => return mem::forget(handle),
        2 => handle.wait_timeout(Duration::from_millis(1)),
        3 => {
            side.scope.poll();
            None
        }
        4 if !world.is_gentle && world.random.one_in(8) => {
            let is_ok = handle.spin_poll().is_ok();
            return side.ended.extend(numbers.map(|number| (number, is_ok)));
        }
        _ => handle.poll(),
    };
    match ended {
        Some(ended) => {
            let ended = numbers.map(|number| (number, ended.is_ok()));
            side.ended.extend(ended);
        }
        None => side.handles.push((numbers, handle)),
    }
}

fn take_loan<L: List>(world: &mut World, side: &mut Side<'_, '_, L>) {
    let at = world.random.below(side.loans.len());
    let (number, loan) = side.loans.swap_remove(at);
    let ended = match world.random.below(10) {
        0 => return drop(loan),
        1 => return mem::forget(loan),
        2 => loan.wait_timeout(Duration::from_millis(1)),
        3 if !world.is_gentle && world.random.one_in(8) => Ok(loan.spin_poll()),
        _ => loan.poll(),
    };
    match ended {
        Ok((ended, _element)) => side.ended.push((number, ended.is_ok())),
        Err(loan) => side.loans.push((number, loan)),
    }
}
