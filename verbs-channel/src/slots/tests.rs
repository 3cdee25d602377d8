//! The slot table against a simple model of it.

use super::*;
use crate::error::DownReason;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{collection::vec, proptest};

const CAPACITY: u32 = 5;
const ABORTED: TransportError = TransportError::Aborted(DownReason::Closed);
const TIMED_OUT: TransportError = TransportError::Aborted(DownReason::TimedOut);

/// What can happen to a table. Numbers choose among the operations there have ever been.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u32, Keeper),
    Cancel(usize),
    FailMember(usize),
    Complete(usize),
    Succeed(usize),
    SucceedAll,
    Release(usize),
    Name,
    Abort(u32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Posted { failed: bool },
    Done(Result<(), TransportError>),
    Gone,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keeper = || {
        prop_oneof![
            proptest::strategy::Just(Keeper::Lender),
            proptest::strategy::Just(Keeper::Slot),
            proptest::strategy::Just(Keeper::Caller),
        ]
    };
    let step = prop_oneof![
        4 => (0..2_u32, keeper()).prop_map(|(member, keeper)| Step::Take(member, keeper)),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::FailMember),
        2 => any::<usize>().prop_map(Step::Complete),
        3 => any::<usize>().prop_map(Step::Succeed),
        1 => proptest::strategy::Just(Step::SucceedAll),
        4 => any::<usize>().prop_map(Step::Release),
        2 => proptest::strategy::Just(Step::Name),
        1 => (0..2_u32).prop_map(Step::Abort),
    ];
    vec(step, 0..200)
}

fn table<B>(capacity: u32) -> Slots<(), B> {
    let mut slots = Slots::new();
    slots.grow(capacity);
    slots
}

fn claim(member: u32, keeper: Keeper) -> Claim {
    Claim {
        member,
        queue: Queue::Send,
        credits: 1,
        keeper,
    }
}

/// Files a completion that is a success.
fn complete<B>(slots: &mut Slots<(), B>, wr_id: u64) -> bool {
    let found = [wr_id];
    let filed = slots.complete(&found, true, |wr_id| *wr_id, |_| Some(&()));
    filed.is_some_and(|(_, count, rest)| count == 1 && rest.is_empty())
}

/// Runs steps on a table and on a list of all operations there have ever been.
fn run(steps: Vec<Step>) {
    let mut slots = table::<usize>(CAPACITY);
    let mut all: Vec<(Id, Claim, Model)> = Vec::new();
    let mut ready: Vec<Id> = Vec::new();
    for step in steps {
        let pick = |number: usize| (!all.is_empty()).then(|| number % all.len());
        match step {
            Step::Take(member, keeper) => {
                let live = all.iter().filter(|(_, _, model)| *model != Model::Gone);
                let full = live.count() == CAPACITY as usize;
                let claim = claim(member, keeper);
                let id = slots.take(claim);
                assert_eq!(id.is_none(), full, "a slot was lost, or given twice");
                if let Some(id) = id {
                    assert!(all.iter().all(|(old, ..)| *old != id), "an id came twice");
                    slots.keep(id, all.len());
                    all.push((id, claim, Model::Posted { failed: false }));
                }
            }
            Step::Cancel(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                let is_posted = *model == Model::Posted { failed: false };
                assert_eq!(slots.take_back(*id), is_posted);
                if is_posted {
                    *model = Model::Gone;
                }
            }
            Step::FailMember(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                assert_eq!(slots.fail(id.member_wr_id(), ABORTED), None);
                if let Model::Posted { failed } = model {
                    *failed = true;
                }
            }
            Step::Complete(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, claim, model) = &mut all[number];
                let ended = slots.fail(id.wr_id(), TIMED_OUT);
                if let Model::Posted { failed } = *model {
                    assert_eq!(ended, Some(*claim));
                    *model = Model::Done(Err(if failed { ABORTED } else { TIMED_OUT }));
                } else {
                    assert_eq!(ended, None, "an operation ended twice");
                }
            }
            Step::Succeed(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, claim, model) = &mut all[number];
                let at_once = complete(&mut slots, id.wr_id());
                let after_a_look = slots.succeed(id.wr_id(), ());
                if let Model::Posted { failed } = *model {
                    assert_eq!((at_once, after_a_look), (!failed, failed.then_some(*claim)));
                    *model = Model::Done(if failed { Err(ABORTED) } else { Ok(()) });
                } else {
                    assert_eq!((at_once, after_a_look), (false, None), "it ended twice");
                }
            }
            Step::SucceedAll => {
                let is_posted = |model| model == Model::Posted { failed: false };
                let posted = all.iter().filter(|op| is_posted(op.2));
                let found: Vec<u64> = posted.map(|op| op.0.wr_id()).collect();
                let mut left = &found[..];
                while let Some((claim, count, rest)) =
                    slots.complete(left, true, |wr_id| *wr_id, |_| Some(&()))
                {
                    for (_, of, model) in all.iter_mut().filter(|op| is_posted(op.2)).take(count) {
                        assert_eq!(*of, claim);
                        *model = Model::Done(Ok(()));
                    }
                    left = rest;
                }
                assert!(left.is_empty());
            }
            Step::Release(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, claim, model) = &mut all[number];
                let buffer = slots.take_buffer(*id);
                let released = slots.release(*id);
                if let Model::Done(result) = *model {
                    let (of, outcome) = released.expect("it is done");
                    assert_eq!((of, outcome), (claim.member, result));
                    assert_eq!(buffer, Some(number), "another operation's buffer");
                    *model = Model::Gone;
                } else {
                    assert!(released.is_none(), "a result was given twice, or too early");
                }
            }
            Step::Name => {
                let first = slots.first_ready();
                let named = slots.name_ready();
                assert_eq!(named.map(|(id, _)| id), first);
                let op = all.iter_mut().find(|op| Some(op.0) == first);
                if let Some((_, claim, _)) = op {
                    assert_eq!(named.map(|(_, member)| member), Some(claim.member));
                    // It stays, and is not ready any more.
                    claim.keeper = Keeper::Named;
                }
            }
            Step::Abort(member) => {
                let mut ended = 0;
                let mut next = slots.first();
                while let Some(id) = next {
                    next = slots.after(id);
                    if slots.member(id.wr_id()) == Some(member) {
                        ended += i32::from(slots.fail(id.wr_id(), ABORTED).is_some());
                    }
                }
                for (_, claim, model) in &mut all {
                    if let (true, Model::Posted { .. }) = (claim.member == member, *model) {
                        *model = Model::Done(Err(ABORTED));
                        ended -= 1;
                    }
                }
                assert_eq!(ended, 0);
            }
        }
        let is_ready = |(_, claim, model): &(Id, Claim, Model)| {
            claim.keeper == Keeper::Slot && matches!(model, Model::Done(_))
        };
        ready.retain(|id| all.iter().any(|op| op.0 == *id && is_ready(op)));
        // If they are more than one, they ended in the order of their posts.
        let new = all.iter().filter(|op| is_ready(op)).map(|op| op.0);
        let new: Vec<Id> = new.filter(|id| !ready.contains(id)).collect();
        ready.extend(new);
        assert_eq!(
            slots.first_ready(),
            ready.first().copied(),
            "not the first done"
        );
        check(&slots, &all);
    }
}

fn check(slots: &Slots<(), usize>, all: &[(Id, Claim, Model)]) {
    for (id, _, model) in all {
        let done = match model {
            Model::Posted { .. } => Some(false),
            Model::Done(_) => Some(true),
            Model::Gone => None,
        };
        assert_eq!(slots.is_done(*id), done);
    }
    let in_use = all.iter().filter(|op| op.2 != Model::Gone).map(|op| op.0);
    let first = slots.first_since(Mark { last: NONE });
    let listed = std::iter::successors(first, |id| slots.after(*id));
    assert!(listed.eq(in_use), "not in the order of their posts");
    assert_eq!(
        slots.first_since(slots.mark()),
        None,
        "from before the mark"
    );
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_list(steps in steps()) {
        run(steps);
    }
}

#[test]
fn results_are_ready_in_the_order_of_completion() {
    let mut slots = table::<()>(3);
    let ids: Vec<Id> = (0..3)
        .map(|_| slots.take(claim(0, Keeper::Slot)).unwrap())
        .collect();
    for index in [2, 0, 1] {
        assert!(complete(&mut slots, ids[index].wr_id()));
    }
    for index in [2, 0, 1] {
        assert_eq!(slots.first_ready(), Some(ids[index]));
        slots.release(ids[index]);
    }
    assert_eq!(slots.first_ready(), None);
}

#[test]
fn a_completion_of_nobody_is_ignored() {
    let mut slots = table::<()>(1);
    assert!(!complete(&mut slots, 77));
    let id = slots.take(claim(0, Keeper::Slot)).unwrap();
    let stale = id.wr_id() ^ GENERATION;
    assert!(!complete(&mut slots, stale));
    assert_eq!(slots.is_done(id), Some(false));
}

#[test]
fn what_is_in_use_since_a_mark_is_freed_at_once() {
    let mut slots = table::<()>(4);
    let take = |slots: &mut Slots<(), ()>, keeper| slots.take(claim(0, keeper)).unwrap();
    let owned = take(&mut slots, Keeper::Slot);
    let mark = slots.mark();
    assert_eq!(slots.first_since(mark), None);
    let mut all = Vec::new();
    for round in 0..3 {
        let [first, second] = [(); 2].map(|()| take(&mut slots, Keeper::Lender));
        assert!(
            !all.contains(&first) && !all.contains(&second),
            "an id came twice"
        );
        all.extend([first, second]);
        for id in [first, second] {
            assert!(complete(&mut slots, id.wr_id()));
        }
        // Out of order, and in order.
        let (gone, stays) = if round == 1 {
            (second, first)
        } else {
            (first, second)
        };
        assert!(slots.release(gone).is_some());
        let third = take(&mut slots, Keeper::Lender);
        assert!(!all.contains(&third), "an id came twice");
        all.push(third);
        assert!(complete(&mut slots, third.wr_id()));
        assert_eq!(slots.first_since(mark), Some(stays));
        assert_eq!(slots.after(stays), Some(third));
        slots.release_since(mark);
        assert_eq!(slots.first_since(mark), None);
        assert_eq!(slots.is_done(owned), Some(false));
        assert!(slots.has_any(0));
    }
    // All others can be taken again, and none of them twice.
    let ids: Vec<Id> = (0..3).map(|_| take(&mut slots, Keeper::Slot)).collect();
    assert_eq!(slots.take(claim(0, Keeper::Slot)), None);
    assert!(ids.iter().all(|id| id.index() != owned.index()));
}

#[test]
fn a_batch_with_a_failure_fails_even_if_its_last_request_succeeds() {
    let mut slots = table::<()>(1);
    let id = slots.take(claim(0, Keeper::Lender)).unwrap();
    assert_eq!(slots.fail(id.member_wr_id(), ABORTED), None);
    assert_eq!(slots.is_done(id), Some(false));
    assert!(!complete(&mut slots, id.wr_id()));
    assert!(slots.succeed(id.wr_id(), ()).is_some());
    assert_eq!(slots.release(id).unwrap().1, Err(ABORTED));
    assert_eq!(slots.succeed(id.wr_id(), ()), None);
}

#[test]
fn a_forgone_success_gives_its_slot_when_there_is_no_other() {
    let mut slots = table::<()>(3);
    let before = slots.take(claim(0, Keeper::Caller)).unwrap();
    let mark = slots.mark();
    let [first, second] = [0; 2].map(|_| slots.take(claim(0, Keeper::Lender)).unwrap());
    slots.forgo(first);
    slots.forgo(second);
    assert!(slots.take(claim(0, Keeper::Lender)).is_none(), "in flight");
    assert_eq!(slots.borrowed_in_flight(0), Some(first));
    assert!(complete(&mut slots, second.wr_id()));
    assert_eq!(slots.is_done(second), Some(true), "until it is wanted");
    slots.reclaim();
    assert_eq!(slots.is_done(second), None);
    let third = slots.take(claim(0, Keeper::Lender)).unwrap();
    // It is the old one's slot and not the old one: what comes late changes nothing.
    slots.forgo(second);
    assert!(complete(&mut slots, third.wr_id()));
    slots.reclaim();
    assert_eq!(slots.is_done(third), Some(true), "its result may be taken");
    // A failure stays.
    assert!(slots.fail(first.wr_id(), TIMED_OUT).is_some());
    slots.reclaim();
    assert_eq!(slots.failure(first), Some(TIMED_OUT));
    assert_eq!(slots.first_since(mark), Some(first));
    slots.release_since(mark);
    assert_eq!(slots.is_done(before), Some(false));
    assert_eq!(slots.first_since(slots.mark()), None);
}

#[test]
fn successes_are_filed_together_as_long_as_they_took_up_the_same() {
    let mut slots = table::<()>(6);
    let claims = [0, 0, 1, 1, 0].map(|member| claim(member, Keeper::Slot));
    let ids = claims.map(|claim| slots.take(claim).unwrap());
    let nobody = ids[4].wr_id() ^ GENERATION;
    let found: Vec<u64> = ids.iter().map(|id| id.wr_id()).chain([nobody]).collect();
    let mut left = &found[..];
    let mut runs = Vec::new();
    let failed = ids[3].wr_id();
    while let Some((claim, count, rest)) =
        slots.complete(left, true, |id| *id, |id| (*id != failed).then_some(&()))
    {
        runs.push((claim.member, count));
        left = rest;
    }
    assert_eq!(runs, [(0, 2), (1, 1)], "up to the one that has failed");
    assert!(slots.fail(left[0], ABORTED).is_some());
    assert!(complete(&mut slots, left[1]));
    assert!(!complete(&mut slots, left[2]), "nobody's");
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(slots.first_ready(), Some(*id));
        assert_eq!(slots.release(*id).unwrap().1.is_ok(), index != 3);
    }
}

#[test]
fn a_request_that_is_not_the_last_of_its_batch_ends_nothing() {
    let mut slots = table::<()>(1);
    let id = slots.take(claim(0, Keeper::Lender)).unwrap();
    for _ in 0..2 {
        assert!(!complete(&mut slots, id.member_wr_id()));
        assert_eq!(slots.succeed(id.member_wr_id(), ()), None);
        assert_eq!(slots.is_done(id), Some(false));
        assert_eq!(slots.fail(id.member_wr_id(), ABORTED), None);
    }
}

#[test]
fn what_an_earlier_operation_of_the_slot_was_told_is_not_told_again() {
    let mut slots = table::<()>(1);
    let mark = slots.mark();
    let failed = slots.take(claim(0, Keeper::Lender)).unwrap();
    assert!(slots.fail(failed.wr_id(), ABORTED).is_some());
    assert_eq!(slots.release(failed).unwrap().1, Err(ABORTED));
    let id = slots.take(claim(0, Keeper::Lender)).unwrap();
    assert_eq!(slots.failure(id), None);
    let found = [id.wr_id()];
    let unheard = slots.complete(&found, false, |wr_id| *wr_id, |_| Some(&()));
    assert!(unheard.is_some());
    assert_eq!((slots.is_done(id), slots.failure(id)), (Some(true), None));
    slots.release_since(mark);
    let id = slots.take(claim(0, Keeper::Caller)).unwrap();
    let found = [id.wr_id()];
    let kept = slots.complete(&found, false, |wr_id| *wr_id, |_| Some(&()));
    assert!(kept.is_some());
    assert_eq!(slots.release(id).unwrap().1, Ok(()));
}
