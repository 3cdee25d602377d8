//! The slot table against a simple model of it.

use super::*;
use crate::error::DownReason;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{collection::vec, proptest};

const CAPACITY: u32 = 5;
const ABORTED: TransportError = TransportError::Aborted(DownReason::Closed);
pub(super) const TIMED_OUT: TransportError = TransportError::Aborted(DownReason::TimedOut);

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

/// A table, and the slots of two channels.
pub(super) struct Table<B> {
    pub(super) slots: Slots<(), B>,
    pub(super) own: [SlotList; 2],
}

pub(super) fn table<B>(capacity: u32) -> Table<B> {
    let mut slots = Slots::new();
    let own = [(); 2].map(|()| {
        let mut own = SlotList::new();
        slots.grow(&mut own, capacity);
        own
    });
    Table { slots, own }
}

impl<B> Table<B> {
    pub(super) fn take(&mut self, claim: Claim) -> Option<Id> {
        self.slots.take(&mut self.own[claim.member as usize], claim)
    }

    /// Whose an operation is, as far as a caller of the table knows: it says which list is meant.
    pub(super) fn owner(&self, id: Id) -> usize {
        let owner = self.slots.owner(id.wr_id());
        owner.map_or(0, |(member, _)| member as usize)
    }

    pub(super) fn take_back(&mut self, id: Id) -> bool {
        let owner = self.owner(id);
        self.slots.take_back(&mut self.own[owner], id)
    }

    pub(super) fn release(&mut self, id: Id) -> Option<Result<(), TransportError>> {
        let owner = self.owner(id);
        self.slots.release(&mut self.own[owner], id)
    }

    pub(super) fn detach(&mut self, id: Id) {
        let owner = self.owner(id);
        if !self.slots.detach(id) {
            self.slots.detach_done(&mut self.own[owner], id);
        }
    }

    pub(super) fn mark(&self) -> Mark {
        self.slots.mark(&self.own[0])
    }

    pub(super) fn first_since(&self, mark: Mark) -> Option<Id> {
        self.slots.first_since(&self.own[0], mark)
    }

    pub(super) fn after(&self, id: Id) -> Option<Id> {
        self.slots.after(&self.own[self.owner(id)], id)
    }

    pub(super) fn release_since(&mut self, mark: Mark) {
        self.slots.release_since(&mut self.own[0], mark);
    }
}

pub(super) fn claim(member: u32, keeper: Keeper) -> Claim {
    Claim {
        member,
        queue: Queue::Send,
        credits: 1,
        keeper,
    }
}

/// Files a completion that is a success.
pub(super) fn complete<B>(table: &mut Table<B>, wr_id: u64) -> bool {
    let found = [wr_id];
    let filed = table
        .slots
        .complete(&found, true, |wr_id| *wr_id, |_| Some(&()));
    filed.is_some_and(|(_, count, rest)| count == 1 && rest.is_empty())
}

/// Runs steps on a table and on a list of all operations there have ever been.
fn run(steps: Vec<Step>) {
    let mut table = table::<usize>(CAPACITY);
    let mut all: Vec<(Id, Claim, Model)> = Vec::new();
    let mut ready: Vec<Id> = Vec::new();
    for step in steps {
        let pick = |number: usize| (!all.is_empty()).then(|| number % all.len());
        match step {
            Step::Take(member, keeper) => {
                let live = all
                    .iter()
                    .filter(|(_, claim, model)| claim.member == member && *model != Model::Gone);
                let full = live.count() == CAPACITY as usize;
                let claim = claim(member, keeper);
                let id = table.take(claim);
                assert_eq!(id.is_none(), full, "a slot was lost, or given twice");
                if let Some(id) = id {
                    assert!(all.iter().all(|(old, ..)| *old != id), "an id came twice");
                    table.slots.keep(id, all.len());
                    all.push((id, claim, Model::Posted { failed: false }));
                }
            }
            Step::Cancel(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                let is_posted = *model == Model::Posted { failed: false };
                assert_eq!(table.take_back(*id), is_posted);
                if is_posted {
                    *model = Model::Gone;
                }
            }
            Step::FailMember(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                assert_eq!(table.slots.fail(id.member_wr_id(), ABORTED), None);
                if let Model::Posted { failed } = model {
                    *failed = true;
                }
            }
            Step::Complete(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, claim, model) = &mut all[number];
                let ended = table.slots.fail(id.wr_id(), TIMED_OUT);
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
                let at_once = complete(&mut table, id.wr_id());
                let after_a_look = table.slots.succeed(id.wr_id(), ());
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
                    table
                        .slots
                        .complete(left, true, |wr_id| *wr_id, |_| Some(&()))
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
                let (id, _, model) = &mut all[number];
                let buffer = table.slots.take_buffer(*id);
                let released = table.release(*id);
                if let Model::Done(result) = *model {
                    assert_eq!(released.expect("it is done"), result);
                    assert_eq!(buffer, Some(number), "another operation's buffer");
                    *model = Model::Gone;
                } else {
                    assert!(released.is_none(), "a result was given twice, or too early");
                }
            }
            Step::Name => {
                let first = table.slots.first_ready();
                let named = table.slots.name_ready();
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
                let mut next = table.slots.first(&table.own[member as usize]);
                while let Some(id) = next {
                    next = table.after(id);
                    assert_eq!(table.owner(id), member as usize);
                    ended += i32::from(table.slots.fail(id.wr_id(), ABORTED).is_some());
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
            table.slots.first_ready(),
            ready.first().copied(),
            "not the first done"
        );
        check(&table, &all);
    }
}

fn check(table: &Table<usize>, all: &[(Id, Claim, Model)]) {
    for (id, _, model) in all {
        let done = match model {
            Model::Posted { .. } => Some(false),
            Model::Done(_) => Some(true),
            Model::Gone => None,
        };
        assert_eq!(table.slots.is_done(*id), done);
    }
    for (member, own) in (0..).zip(&table.own) {
        let in_use = all
            .iter()
            .filter(|op| op.1.member == member && op.2 != Model::Gone);
        let first = table.slots.first_since(own, Mark::NONE);
        let listed = std::iter::successors(first, |id| table.after(*id));
        assert!(
            listed.eq(in_use.map(|op| op.0)),
            "not in the order of their posts"
        );
        let since = table.slots.first_since(own, table.slots.mark(own));
        assert_eq!(since, None, "from before the mark");
        assert_eq!(own.has_any(), first.is_some());
    }
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_list(steps in steps()) {
        run(steps);
    }
}

#[test]
fn results_are_ready_in_the_order_of_completion() {
    let mut table = table::<()>(3);
    let ids: Vec<Id> = (0..3)
        .map(|_| table.take(claim(0, Keeper::Slot)).unwrap())
        .collect();
    for index in [2, 0, 1] {
        assert!(complete(&mut table, ids[index].wr_id()));
    }
    for index in [2, 0, 1] {
        assert_eq!(table.slots.first_ready(), Some(ids[index]));
        table.release(ids[index]);
    }
    assert_eq!(table.slots.first_ready(), None);
}

#[test]
fn a_completion_of_nobody_is_ignored() {
    let mut table = table::<()>(1);
    assert!(!complete(&mut table, 77));
    let id = table.take(claim(0, Keeper::Slot)).unwrap();
    let stale = id.wr_id() ^ GENERATION;
    assert!(!complete(&mut table, stale));
    assert_eq!(table.slots.is_done(id), Some(false));
}

#[test]
fn what_is_in_use_since_a_mark_is_freed_at_once() {
    let mut table = table::<()>(4);
    let take = |table: &mut Table<()>, keeper| table.take(claim(0, keeper)).unwrap();
    let owned = take(&mut table, Keeper::Slot);
    let mark = table.mark();
    assert_eq!(table.first_since(mark), None);
    let mut all = Vec::new();
    for round in 0..3 {
        let [first, second] = [(); 2].map(|()| take(&mut table, Keeper::Lender));
        assert!(
            !all.contains(&first) && !all.contains(&second),
            "an id came twice"
        );
        all.extend([first, second]);
        for id in [first, second] {
            assert!(complete(&mut table, id.wr_id()));
        }
        // Out of order, and in order.
        let (gone, stays) = if round == 1 {
            (second, first)
        } else {
            (first, second)
        };
        assert!(table.release(gone).is_some());
        let third = take(&mut table, Keeper::Lender);
        assert!(!all.contains(&third), "an id came twice");
        all.push(third);
        assert!(complete(&mut table, third.wr_id()));
        assert_eq!(table.first_since(mark), Some(stays));
        assert_eq!(table.after(stays), Some(third));
        table.release_since(mark);
        assert_eq!(table.first_since(mark), None);
        assert_eq!(table.slots.is_done(owned), Some(false));
        assert!(table.own[0].has_any());
    }
    // All others can be taken again, and none of them twice.
    let ids: Vec<Id> = (0..3).map(|_| take(&mut table, Keeper::Slot)).collect();
    assert_eq!(table.take(claim(0, Keeper::Slot)), None);
    assert!(ids.iter().all(|id| id.index() != owned.index()));
}

#[test]
fn a_batch_with_a_failure_fails_even_if_its_last_request_succeeds() {
    let mut table = table::<()>(1);
    let id = table.take(claim(0, Keeper::Lender)).unwrap();
    assert_eq!(table.slots.fail(id.member_wr_id(), ABORTED), None);
    assert_eq!(table.slots.is_done(id), Some(false));
    assert!(!complete(&mut table, id.wr_id()));
    assert!(table.slots.succeed(id.wr_id(), ()).is_some());
    assert_eq!(table.release(id).unwrap(), Err(ABORTED));
    assert_eq!(table.slots.succeed(id.wr_id(), ()), None);
}

#[test]
fn successes_are_filed_together_as_long_as_they_took_up_the_same() {
    let mut table = table::<()>(6);
    let claims = [0, 0, 1, 1, 0].map(|member| claim(member, Keeper::Slot));
    let ids = claims.map(|claim| table.take(claim).unwrap());
    let nobody = ids[4].wr_id() ^ GENERATION;
    let found: Vec<u64> = ids.iter().map(|id| id.wr_id()).chain([nobody]).collect();
    let mut left = &found[..];
    let mut runs = Vec::new();
    let failed = ids[3].wr_id();
    while let Some((claim, count, rest)) =
        table
            .slots
            .complete(left, true, |id| *id, |id| (*id != failed).then_some(&()))
    {
        runs.push((claim.member, count));
        left = rest;
    }
    assert_eq!(runs, [(0, 2), (1, 1)], "up to the one that has failed");
    assert!(table.slots.fail(left[0], ABORTED).is_some());
    assert!(complete(&mut table, left[1]));
    assert!(!complete(&mut table, left[2]), "nobody's");
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(table.slots.first_ready(), Some(*id));
        assert_eq!(table.release(*id).unwrap().is_ok(), index != 3);
    }
}

#[test]
fn a_request_that_is_not_the_last_of_its_batch_ends_nothing() {
    let mut table = table::<()>(1);
    let id = table.take(claim(0, Keeper::Lender)).unwrap();
    for _ in 0..2 {
        assert!(!complete(&mut table, id.member_wr_id()));
        assert_eq!(table.slots.succeed(id.member_wr_id(), ()), None);
        assert_eq!(table.slots.is_done(id), Some(false));
        assert_eq!(table.slots.fail(id.member_wr_id(), ABORTED), None);
    }
}

#[test]
fn what_an_earlier_operation_of_the_slot_was_told_is_not_told_again() {
    let mut table = table::<()>(1);
    let mark = table.mark();
    let failed = table.take(claim(0, Keeper::Lender)).unwrap();
    assert!(table.slots.fail(failed.wr_id(), ABORTED).is_some());
    assert_eq!(table.release(failed).unwrap(), Err(ABORTED));
    let id = table.take(claim(0, Keeper::Lender)).unwrap();
    assert_eq!(table.slots.failure(id), None);
    let found = [id.wr_id()];
    let unheard = table
        .slots
        .complete(&found, false, |wr_id| *wr_id, |_| Some(&()));
    assert!(unheard.is_some());
    assert_eq!(
        (table.slots.is_done(id), table.slots.failure(id)),
        (Some(true), None)
    );
    table.release_since(mark);
    let id = table.take(claim(0, Keeper::Caller)).unwrap();
    let found = [id.wr_id()];
    let kept = table
        .slots
        .complete(&found, false, |wr_id| *wr_id, |_| Some(&()));
    assert!(kept.is_some());
    assert_eq!(table.release(id).unwrap(), Ok(()));
}
