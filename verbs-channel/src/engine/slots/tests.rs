//! The slot table against a simple model of it.

use std::time::Duration;

use super::*;
use crate::error::{DownReason, TransportError};
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{collection::vec, proptest};

const CAPACITY: u32 = 5;
pub(super) const ABORTED: TransportError = TransportError::Aborted(DownReason::Closed);
pub(super) const TIMED_OUT: TransportError = TransportError::Aborted(DownReason::TimedOut {
    queue: Queue::Send,
    after: Duration::from_secs(1),
});

/// A step of a table's life. Numbers choose among the operations there have ever been.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u32, BufferOwner),
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
    let owner = || {
        prop_oneof![
            proptest::strategy::Just(BufferOwner::Borrowed),
            proptest::strategy::Just(BufferOwner::Slot),
            proptest::strategy::Just(BufferOwner::Caller),
        ]
    };
    let step = prop_oneof![
        4 => (0..2_u32, owner()).prop_map(|(member, owner)| Step::Take(member, owner)),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::FailMember),
        2 => any::<usize>().prop_map(Step::Complete),
        3 => any::<usize>().prop_map(Step::Succeed),
        1 => proptest::strategy::Just(Step::SucceedAll),
        4 => any::<usize>().prop_map(Step::Release),
        2 => proptest::strategy::Just(Step::Name),
        1 => (0..2_u32).prop_map(Step::Abort),
    ];
    vec(step, 0..if cfg!(miri) { 50 } else { 200 })
}

/// A table, and the slots of two channels.
pub(super) struct Table<B> {
    pub(super) slots: Slots<(), B>,
    pub(super) own: [SlotList; 2],
}

pub(super) fn table<B>(capacity: u32) -> Table<B> {
    table_with_common(capacity, 0)
}

/// A table of which each channel may have `common` common slots, too. There are too few for both.
pub(super) fn table_with_common<B>(capacity: u32, common: u32) -> Table<B> {
    let mut slots = Slots::new();
    slots.grow_common(common);
    let own = [(); 2].map(|()| {
        let mut own = SlotList::new();
        slots.grow(&mut own, capacity);
        own.allow_common(common);
        own
    });
    Table { slots, own }
}

impl<B> Table<B> {
    pub(super) fn take(&mut self, reservation: Reservation) -> Option<Id> {
        let own = &mut self.own[reservation.member as usize];
        if let Some(id) = self.slots.take(own, reservation, 0) {
            return Some(id);
        }
        let is_lent = self.slots.lend_common(own);
        let taken = self.slots.take(own, reservation, 0);
        assert_eq!(taken.map(Id::is_common), is_lent.then_some(true));
        taken
    }

    /// The member of an operation. Its list is the one that a caller of the table passes.
    pub(super) fn owner(&self, id: Id) -> usize {
        self.owner_of(id.wr_id())
    }

    fn owner_of(&self, wr_id: u64) -> usize {
        let owner = self.slots.owner(wr_id);
        owner.map_or(0, |(member, _)| member as usize)
    }

    pub(super) fn free_in_flight(&mut self, id: Id) -> bool {
        let own = &mut self.own[self.slots.owner(id.wr_id()).map_or(0, |of| of.0) as usize];
        if !id.is_common() {
            return self.slots.in_flight(id).map(|slot| slot.end(own)).is_some();
        }
        assert!(
            self.slots.in_flight(id).is_none(),
            "it is not its channel's"
        );
        // A request of a batch has failed: it was posted.
        let was_posted = self.slots.failure(id).is_some();
        let is_in_flight = self.slots.is_done(id) == Some(false) && !was_posted;
        if is_in_flight {
            self.slots.cancel(own, id);
        }
        is_in_flight
    }

    pub(super) fn release(&mut self, id: Id) -> Option<Result<(), TransportError>> {
        let owner = self.owner(id);
        self.slots.release(&mut self.own[owner], id)
    }

    pub(super) fn detach(&mut self, id: Id) {
        let owner = self.owner(id);
        if !self.slots.detach(id) {
            self.slots.detach_completed(&mut self.own[owner], id);
        }
    }

    pub(super) fn fail(&mut self, wr_id: u64, error: TransportError) -> Option<Reservation> {
        let owner = self.owner_of(wr_id);
        self.slots.fail(&mut self.own[owner], wr_id, error)
    }

    pub(super) fn succeed(&mut self, wr_id: u64) -> Option<Reservation> {
        let owner = self.owner_of(wr_id);
        self.slots.succeed(&mut self.own[owner], wr_id, ())
    }

    /// Dispatches the successes at the front of what was found; what is left, unless that is all.
    pub(super) fn dispatch<'c>(
        &mut self,
        found: &'c [u64],
        keep_results: bool,
        success: impl Fn(&u64) -> Option<&()>,
    ) -> Option<(Reservation, usize, &'c [u64])> {
        let reservation = *self.slots.reservation(*found.first()?)?;
        let own = &mut self.own[reservation.member as usize];
        let slots = &mut self.slots;
        let rest =
            slots.dispatch_successes(own, reservation, found, keep_results, |id| *id, success);
        let count = found.len() - rest.len();
        (count > 0).then_some((reservation, count, rest))
    }
}

pub(super) fn reservation(member: u32, owner: BufferOwner) -> Reservation {
    Reservation {
        member,
        queue: Queue::Send,
        credits: 1,
        owner,
    }
}

/// Dispatches a completion that is a success.
pub(super) fn complete<B>(table: &mut Table<B>, wr_id: u64) -> bool {
    let found = [wr_id];
    let dispatched = table.dispatch(&found, true, |_| Some(&()));
    dispatched.is_some_and(|(_, count, _)| count == 1)
}

/// Runs steps on a table and on a list of all operations there have ever been.
fn run(steps: Vec<Step>, common: u32) {
    let mut table = table_with_common::<usize>(CAPACITY - common, common);
    let mut all: Vec<(Id, Reservation, Model)> = Vec::new();
    let mut ready: Vec<Id> = Vec::new();
    for step in steps {
        let mut walked: Vec<Id> = Vec::new();
        let pick = |number: usize| (!all.is_empty()).then(|| number % all.len());
        match step {
            Step::Take(member, owner) => {
                let live = all.iter().filter(|(_, reservation, model)| {
                    reservation.member == member && *model != Model::Gone
                });
                let full = live.count() == CAPACITY as usize;
                let reservation = reservation(member, owner);
                let id = table.take(reservation);
                assert_eq!(id.is_none(), full, "a slot was lost, or given twice");
                if let Some(id) = id {
                    assert!(all.iter().all(|(old, ..)| *old != id), "an id came twice");
                    table.slots.store_buffer(id, all.len());
                    all.push((id, reservation, Model::Posted { failed: false }));
                }
            }
            Step::Cancel(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                let is_posted = *model == Model::Posted { failed: false };
                assert_eq!(table.free_in_flight(*id), is_posted);
                if is_posted {
                    *model = Model::Gone;
                }
            }
            Step::FailMember(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                assert_eq!(table.fail(id.member_wr_id(), ABORTED), None);
                if let Model::Posted { failed } = model {
                    *failed = true;
                }
            }
            Step::Complete(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, reservation, model) = &mut all[number];
                let ended = table.fail(id.wr_id(), TIMED_OUT);
                if let Model::Posted { failed } = *model {
                    assert_eq!(ended, Some(*reservation));
                    *model = Model::Done(Err(if failed { ABORTED } else { TIMED_OUT }));
                } else {
                    assert_eq!(ended, None, "an operation ended twice");
                }
            }
            Step::Succeed(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, reservation, model) = &mut all[number];
                let at_once = complete(&mut table, id.wr_id());
                let after_a_look = table.succeed(id.wr_id());
                if let Model::Posted { failed } = *model {
                    let takes_a_look = failed || id.is_common();
                    assert_eq!(
                        (at_once, after_a_look),
                        (!takes_a_look, takes_a_look.then_some(*reservation))
                    );
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
                while let Some((reservation, count, rest)) =
                    table.dispatch(left, true, |_| Some(&())).or_else(|| {
                        let (first, rest) = left.split_first()?;
                        assert!(Id(*first).is_common(), "it was not dispatched");
                        Some((table.succeed(*first)?, 1, rest))
                    })
                {
                    for (_, of, model) in all.iter_mut().filter(|op| is_posted(op.2)).take(count) {
                        assert_eq!(*of, reservation);
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
                let named = table.slots.claim_ready();
                assert_eq!(named.map(|(id, _)| id), first);
                let op = all.iter_mut().find(|op| Some(op.0) == first);
                if let Some((_, reservation, _)) = op {
                    assert_eq!(named.map(|(_, member)| member), Some(reservation.member));
                    // It stays, and is not ready any more.
                    reservation.owner = BufferOwner::Claimed;
                }
            }
            Step::Abort(member) => {
                let mut ended = 0;
                let mut next = table.slots.first(&table.own[member as usize]);
                while let Some(id) = next {
                    next = table.slots.after(id);
                    walked.push(id);
                    assert_eq!(table.owner(id), member as usize);
                    ended += i32::from(table.fail(id.wr_id(), ABORTED).is_some());
                }
                for (_, reservation, model) in &mut all {
                    if let (true, Model::Posted { .. }) = (reservation.member == member, *model) {
                        *model = Model::Done(Err(ABORTED));
                        ended -= 1;
                    }
                }
                assert_eq!(ended, 0);
            }
        }
        let is_ready = |(_, reservation, model): &(Id, Reservation, Model)| {
            reservation.owner == BufferOwner::Slot && matches!(model, Model::Done(_))
        };
        ready.retain(|id| all.iter().any(|op| op.0 == *id && is_ready(op)));
        // If they are more than one, they ended in the order of their posts, or of their slots.
        let new = all.iter().filter(|op| is_ready(op)).map(|op| op.0);
        let mut new: Vec<Id> = new.filter(|id| !ready.contains(id)).collect();
        if matches!(step, Step::Abort(_)) {
            new.sort_by_key(|id| walked.iter().position(|walked| walked == id));
        }
        ready.extend(new);
        assert_eq!(
            table.slots.first_ready(),
            ready.first().copied(),
            "not the first done"
        );
        check(&table, &all);
    }
}

fn check(table: &Table<usize>, all: &[(Id, Reservation, Model)]) {
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
        let first = table.slots.first(own);
        let mut listed: Vec<Id> =
            std::iter::successors(first, |id| table.slots.after(*id)).collect();
        let mut in_use: Vec<Id> = in_use.map(|op| op.0).collect();
        in_use.sort_by_key(|id| id.index());
        listed.sort_by_key(|id| id.index());
        assert_eq!(listed, in_use);
    }
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_list(steps in steps(), common in 0..=CAPACITY) {
        run(steps, common);
    }
}

#[test]
fn results_are_ready_in_the_order_of_completion() {
    let mut table = table::<()>(3);
    let ids: Vec<Id> = (0..3)
        .map(|_| table.take(reservation(0, BufferOwner::Slot)).unwrap())
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
fn completion_with_an_unknown_wr_id_is_ignored() {
    let mut table = table::<()>(1);
    assert!(!complete(&mut table, 77));
    let id = table.take(reservation(0, BufferOwner::Slot)).unwrap();
    let stale = id.wr_id() ^ GENERATION;
    assert!(!complete(&mut table, stale));
    assert_eq!(table.slots.is_done(id), Some(false));
}

#[test]
fn a_detached_operation_frees_its_slot_when_it_succeeds() {
    let mut table = table::<()>(3);
    let take = |table: &mut Table<()>| table.take(reservation(0, BufferOwner::Borrowed));
    let before = table.take(reservation(0, BufferOwner::Caller)).unwrap();
    let [first, second] = [0; 2].map(|_| take(&mut table).unwrap());
    table.detach(first);
    table.detach(second);
    assert!(take(&mut table).is_none(), "both are in flight");
    assert!(table.slots.has_borrowed_in_flight(&table.own[0]));
    assert!(complete(&mut table, second.wr_id()));
    assert_eq!(table.slots.is_done(second), None);
    let third = take(&mut table).expect("the slot is free");
    assert!(take(&mut table).is_none(), "and it is one");
    // One that has succeeded when it is detached is free at once.
    assert!(complete(&mut table, third.wr_id()));
    assert!(take(&mut table).is_none(), "its outcome may be taken");
    table.detach(third);
    assert_eq!(table.slots.is_done(third), None);
    // A failure stays.
    assert!(table.fail(first.wr_id(), TIMED_OUT).is_some());
    assert_eq!(table.slots.is_done(first), Some(true));
    assert_eq!(table.slots.failure(first), Some((TIMED_OUT, 0)));
    assert!(!table.slots.has_borrowed_in_flight(&table.own[0]));
    assert_eq!(table.slots.is_done(before), Some(false));
}

#[test]
fn a_detached_batch_that_succeeds_after_a_closer_look_frees_its_slot() {
    let mut table = table::<()>(1);
    let id = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    table.detach(id);
    assert!(table.succeed(id.wr_id()).is_some());
    assert_eq!(table.slots.is_done(id), None);
    assert!(table.take(reservation(0, BufferOwner::Slot)).is_some());
}

#[test]
fn failures_are_counted_in_their_order() {
    let mut table = table::<()>(3);
    let ids = [0; 3].map(|_| table.take(reservation(0, BufferOwner::Borrowed)).unwrap());
    for index in [2, 0, 1] {
        assert!(table.fail(ids[index].wr_id(), ABORTED).is_some());
    }
    let order = ids.map(|id| table.slots.failure(id).unwrap().1);
    assert_eq!(order, [1, 2, 0]);
}

#[test]
fn a_batch_with_a_failure_fails_even_if_its_last_request_succeeds() {
    let mut table = table::<()>(1);
    let id = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    assert_eq!(table.fail(id.member_wr_id(), ABORTED), None);
    assert_eq!(table.slots.is_done(id), Some(false));
    assert!(!complete(&mut table, id.wr_id()));
    assert!(table.succeed(id.wr_id()).is_some());
    assert_eq!(table.release(id).unwrap(), Err(ABORTED));
    assert_eq!(table.succeed(id.wr_id()), None);
}

#[test]
fn successes_with_equal_reservations_are_dispatched_together() {
    let mut table = table::<()>(6);
    let claims = [0, 0, 1, 1, 0].map(|member| reservation(member, BufferOwner::Slot));
    let ids = claims.map(|reservation| table.take(reservation).unwrap());
    let unknown = ids[4].wr_id() ^ GENERATION;
    let found: Vec<u64> = ids.iter().map(|id| id.wr_id()).chain([unknown]).collect();
    let mut left = &found[..];
    let mut runs = Vec::new();
    let failed = ids[3].wr_id();
    while let Some((reservation, count, rest)) =
        table.dispatch(left, true, |id| (*id != failed).then_some(&()))
    {
        runs.push((reservation.member, count));
        left = rest;
    }
    assert_eq!(runs, [(0, 2), (1, 1)], "up to the one that has failed");
    assert!(table.fail(left[0], ABORTED).is_some());
    assert!(complete(&mut table, left[1]));
    assert!(!complete(&mut table, left[2]), "the wr_id is unknown");
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(table.slots.first_ready(), Some(*id));
        assert_eq!(table.release(*id).unwrap().is_ok(), index != 3);
    }
}

#[test]
fn a_request_that_is_not_the_last_of_its_batch_ends_nothing() {
    let mut table = table::<()>(1);
    let id = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    for _ in 0..2 {
        assert!(!complete(&mut table, id.member_wr_id()));
        assert_eq!(table.succeed(id.member_wr_id()), None);
        assert_eq!(table.slots.is_done(id), Some(false));
        assert_eq!(table.fail(id.member_wr_id(), ABORTED), None);
    }
}

#[test]
fn an_operation_does_not_have_the_outcome_of_an_earlier_one_of_its_slot() {
    let mut table = table::<()>(1);
    let failed = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    assert!(table.fail(failed.wr_id(), ABORTED).is_some());
    assert_eq!(table.release(failed).unwrap(), Err(ABORTED));
    let id = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    assert_eq!(table.slots.failure(id), None);
    let found = [id.wr_id()];
    assert!(table.dispatch(&found, false, |_| Some(&())).is_some());
    assert_eq!(table.slots.is_done(id), None, "its slot is free");
    let id = table.take(reservation(0, BufferOwner::Caller)).unwrap();
    let found = [id.wr_id()];
    assert!(table.dispatch(&found, false, |_| Some(&())).is_some());
    assert_eq!(table.release(id).unwrap(), Ok(()));
}
