//! The slot table against a simple model of it.
#![expect(unsafe_code, reason = "makes completions")]

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{collection::vec, proptest};
use verbs_core::verbs_sys::{ibv_wc, ibv_wc_status};

use super::room::{take_common, take_slot};
use super::ticket::GENERATION;
use super::*;
use crate::buffer::OwnedBuffer;
use crate::engine::member::{Credits, SlotList};
use crate::error::DownReason;
use crate::request::{Opcodes, OwnedRequest};

const CAPACITY: u32 = 5;
pub(super) const ABORTED: TransportError = TransportError::Aborted(DownReason::Closed);
pub(super) const TIMED_OUT: TransportError = TransportError::Aborted(DownReason::TimedOut {
    queue: Queue::Send,
    after: Duration::from_secs(1),
});

/// A step of a table's life. Numbers choose among the operations there have ever been.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The member, the owner, and whether it is a batch.
    Take(u32, BufferOwner, bool),
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
        4 => (0..2_u32, owner(), any::<bool>())
            .prop_map(|(member, owner, is_batch)| Step::Take(member, owner, is_batch)),
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

/// A table with two members, which have more credits than slots.
pub(super) struct Table(pub(super) Flight);

fn table(capacity: u32) -> Table {
    table_with_common(capacity, 0)
}

/// A table of which each member may have `common` common slots, too. There are too few for both.
pub(super) fn table_with_common(capacity: u32, common: u32) -> Table {
    let mut flight = Flight::with_common(common);
    for at in 0..2 {
        let mut slots = SlotList::new();
        slots.allow_common(common);
        let credits = Credits::new(slots, [100; 2], [100; 2], Arc::default());
        let member = Member::without_queue_pair(at, credits);
        flight.members.push(member);
        flight.grow(at, capacity);
    }
    Table(flight)
}

fn is_common(id: Id) -> bool {
    id.own_index() != id.index()
}

impl Table {
    pub(super) fn take(&mut self, reservation: Reservation) -> Option<Id> {
        let Flight {
            members,
            slots,
            common,
            budget,
            ..
        } = &mut self.0;
        let credits = &mut members[reservation.member as usize].credits;
        if let Some(id) = take_slot(slots, credits, reservation) {
            return Some(id);
        }
        let taken = take_common(slots, common, budget, credits, reservation);
        assert!(taken.is_none_or(is_common));
        taken
    }

    fn cancel(&mut self, id: Id) -> bool {
        // One of which a request has failed was posted.
        let was_posted = self.0.failure(id).is_some();
        let is_in_flight = self.0.is_done(id) == Some(false) && !was_posted;
        if is_in_flight {
            drop(self.0.take_buffer_in_flight(id));
            self.0.cancel(id, 0);
        }
        is_in_flight
    }

    pub(super) fn release(&mut self, id: Id) -> Option<Result<(), TransportError>> {
        Some(self.0.release(id)?.result.map(drop))
    }

    fn detach(&mut self, id: Id) {
        if !self.0.detach(id) && self.0.failure(id).is_none() {
            self.0.release(id);
        }
    }

    /// Whether the operation with this request is in flight before this, and not after it.
    fn ends(&mut self, wr_id: u64, event: impl FnOnce(&mut Flight)) -> bool {
        let id = self.0.find_request(wr_id).map_or(Id::NONE, |slot| slot.id);
        let was_in_flight = self.0.is_done(id) == Some(false);
        event(&mut self.0);
        was_in_flight && self.0.is_done(id) != Some(false)
    }

    pub(super) fn fail(&mut self, wr_id: u64, error: TransportError) -> bool {
        self.ends(wr_id, |flight| flight.fail(wr_id, None, error))
    }

    pub(super) fn succeed(&mut self, wr_id: u64) -> bool {
        let completion = completion(wr_id, true);
        let success = completion.success().unwrap();
        self.ends(wr_id, |flight| {
            flight.succeed_slowly(Id::of(wr_id), success);
        })
    }

    /// Dispatches the successes at the front of what was found. Returns how many.
    fn dispatch(&mut self, found: &[WorkCompletion], keep_results: bool) -> usize {
        found.len() - self.0.succeed(found, keep_results).len()
    }

    /// Dispatches a completion that is a success.
    fn complete(&mut self, wr_id: u64) -> bool {
        self.dispatch(&[completion(wr_id, true)], true) == 1
    }
}

pub(super) fn reservation(member: u32, owner: BufferOwner) -> Reservation {
    Reservation::new(member, Opcodes::IN_BUFFERS, owner)
}

/// The same for two requests.
pub(super) fn batch(member: u32, owner: BufferOwner) -> Reservation {
    Reservation::batch(member, 2, Opcodes::IN_BUFFERS, owner).unwrap()
}

fn completion(wr_id: u64, is_success: bool) -> WorkCompletion {
    let status = ibv_wc_status(u32::from(!is_success));
    let wc = ibv_wc {
        wr_id,
        status,
        ..ibv_wc::default()
    };
    // SAFETY: a `WorkCompletion` is `repr(transparent)` over an `ibv_wc`.
    unsafe { mem::transmute::<ibv_wc, WorkCompletion>(wc) }
}

/// A buffer with a number.
fn buffer(number: usize) -> SlotBuffer {
    let requests = (0..number).map(|_| OwnedRequest::receive(OwnedBuffer::empty()));
    SlotBuffer::Batch(requests.collect())
}

/// Runs steps on a table and on a list of all operations there have ever been.
fn run(steps: Vec<Step>, common: u32) {
    let mut table = table_with_common(CAPACITY - common, common);
    let mut all: Vec<(Id, Reservation, Model)> = Vec::new();
    let mut ready: Vec<Id> = Vec::new();
    for step in steps {
        let mut walked: Vec<Id> = Vec::new();
        let pick = |number: usize| (!all.is_empty()).then(|| number % all.len());
        match step {
            Step::Take(member, owner, is_batch) => {
                let live = all.iter().filter(|(_, reservation, model)| {
                    reservation.member == member && *model != Model::Gone
                });
                let full = live.count() == CAPACITY as usize;
                let of = if is_batch { batch } else { reservation };
                let reservation = of(member, owner);
                let id = table.take(reservation);
                assert_eq!(id.is_none(), full, "a slot was lost, or given twice");
                if let Some(id) = id {
                    assert!(all.iter().all(|(old, ..)| *old != id), "an id came twice");
                    table.0.store_buffer(id, buffer(all.len()));
                    all.push((id, reservation, Model::Posted { failed: false }));
                }
            }
            Step::Cancel(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                let is_posted = *model == Model::Posted { failed: false };
                assert_eq!(table.cancel(*id), is_posted);
                if is_posted {
                    *model = Model::Gone;
                }
            }
            Step::FailMember(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, reservation, model) = &mut all[number];
                assert!(!table.fail(id.unsignaled_wr_id(), ABORTED));
                if let Model::Posted { failed } = model {
                    // An operation of one request has no other.
                    *failed |= reservation.credits > 1;
                }
            }
            Step::Complete(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                let ended = table.fail(id.wr_id(), TIMED_OUT);
                if let Model::Posted { failed } = *model {
                    assert!(ended);
                    *model = Model::Done(Err(if failed { ABORTED } else { TIMED_OUT }));
                } else {
                    assert!(!ended, "an operation ended twice");
                }
            }
            Step::Succeed(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, reservation, model) = &mut all[number];
                let at_once = table.complete(id.wr_id());
                let after_a_look = table.succeed(id.wr_id());
                if let Model::Posted { failed } = *model {
                    let takes_a_look = reservation.credits > 1 || is_common(*id);
                    assert_eq!((at_once, after_a_look), (!takes_a_look, takes_a_look));
                    *model = Model::Done(if failed { Err(ABORTED) } else { Ok(()) });
                } else {
                    assert_eq!((at_once, after_a_look), (false, false), "it ended twice");
                }
            }
            Step::SucceedAll => {
                let is_posted = |model| model == Model::Posted { failed: false };
                let posted = all.iter().filter(|op| is_posted(op.2));
                let found: Vec<_> = posted.map(|op| completion(op.0.wr_id(), true)).collect();
                let mut left = &found[..];
                while let Some(first) = left.first() {
                    let mut count = table.dispatch(left, true);
                    if count == 0 {
                        let op = all.iter().find(|op| op.0.wr_id() == first.wr_id()).unwrap();
                        let takes_a_look = op.1.credits > 1 || is_common(op.0);
                        assert!(takes_a_look, "it was not dispatched");
                        assert!(table.succeed(first.wr_id()));
                        count = 1;
                    }
                    for (.., model) in all.iter_mut().filter(|op| is_posted(op.2)).take(count) {
                        *model = Model::Done(Ok(()));
                    }
                    left = &left[count..];
                }
            }
            Step::Release(number) => {
                let Some(number) = pick(number) else { continue };
                let (id, _, model) = &mut all[number];
                let released = table.0.release(*id);
                if let Model::Done(expected) = *model {
                    let outcome = released.expect("it is done");
                    assert_eq!(outcome.result.map(drop), expected);
                    let is_its = matches!(outcome.owned, Some(SlotBuffer::Batch(requests)) if requests.len() == number);
                    assert!(is_its, "another operation's buffer");
                    *model = Model::Gone;
                } else {
                    assert!(released.is_none(), "a result was given twice, or too early");
                }
            }
            Step::Name => {
                let first = table.0.first_ready();
                let named = table.0.claim_ready();
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
                let mut next = table.0.first(member);
                while let Some(id) = next {
                    next = table.0.after(id);
                    walked.push(id);
                    assert_eq!(table.0.owner(id.wr_id()), Some((member, Queue::Send)));
                    ended += i32::from(table.fail(id.wr_id(), ABORTED));
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
            table.0.first_ready(),
            ready.first().copied(),
            "not the first done"
        );
        check(&table, &all);
    }
}

fn check(table: &Table, all: &[(Id, Reservation, Model)]) {
    for (id, _, model) in all {
        let done = match model {
            Model::Posted { .. } => Some(false),
            Model::Done(_) => Some(true),
            Model::Gone => None,
        };
        assert_eq!(table.0.is_done(*id), done);
    }
    for member in 0..2 {
        let in_use = all
            .iter()
            .filter(|op| op.1.member == member && op.2 != Model::Gone);
        let first = table.0.first(member);
        let mut listed: Vec<Id> = iter::successors(first, |id| table.0.after(*id)).collect();
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
fn a_detached_operation_frees_its_slot_when_it_succeeds() {
    let mut table = table(3);
    let take = |table: &mut Table| table.take(reservation(0, BufferOwner::Borrowed));
    let before = table.take(reservation(0, BufferOwner::Caller)).unwrap();
    let [first, second] = [0; 2].map(|_| take(&mut table).unwrap());
    table.detach(first);
    table.detach(second);
    assert!(take(&mut table).is_none(), "both are in flight");
    assert!(table.0.has_borrowed_in_flight(0));
    assert!(table.complete(second.wr_id()));
    assert_eq!(table.0.is_done(second), None);
    let third = take(&mut table).expect("the slot is free");
    assert!(take(&mut table).is_none(), "and it is one");
    // One that has succeeded when it is detached is free at once.
    assert!(table.complete(third.wr_id()));
    assert!(take(&mut table).is_none(), "its outcome may be taken");
    table.detach(third);
    assert_eq!(table.0.is_done(third), None);
    // A failure stays.
    assert!(table.fail(first.wr_id(), TIMED_OUT));
    assert_eq!(table.0.is_done(first), Some(true));
    assert_eq!(table.0.failure(first), Some((TIMED_OUT, 0)));
    assert!(!table.0.has_borrowed_in_flight(0));
    assert_eq!(table.0.is_done(before), Some(false));
}

#[test]
fn a_detached_batch_that_succeeds_after_a_closer_look_frees_its_slot() {
    let mut table = table(1);
    let id = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    table.detach(id);
    assert!(table.succeed(id.wr_id()));
    assert_eq!(table.0.is_done(id), None);
    assert!(table.take(reservation(0, BufferOwner::Slot)).is_some());
}

#[test]
fn failures_are_counted_in_their_order() {
    let mut table = table(3);
    let ids = [0; 3].map(|_| table.take(reservation(0, BufferOwner::Borrowed)).unwrap());
    for index in [2, 0, 1] {
        assert!(table.fail(ids[index].wr_id(), ABORTED));
    }
    let order = ids.map(|id| table.0.failure(id).unwrap().1);
    assert_eq!(order, [1, 2, 0]);
}

#[test]
fn successes_with_equal_reservations_are_dispatched_together() {
    let mut table = table(6);
    let claims = [0, 0, 1, 1, 0].map(|member| reservation(member, BufferOwner::Slot));
    let ids = claims.map(|reservation| table.take(reservation).unwrap());
    let unknown = ids[4].wr_id() ^ GENERATION;
    let found = [0, 1, 2, 3, 4].map(|index: usize| completion(ids[index].wr_id(), index != 3));
    let runs = [0, 2, 3].map(|from| table.dispatch(&found[from..], true));
    assert_eq!(runs, [2, 1, 0], "up to the one that has failed");
    assert!(table.fail(ids[3].wr_id(), ABORTED));
    assert!(table.complete(ids[4].wr_id()));
    assert!(!table.complete(unknown), "the wr_id is unknown");
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(table.0.first_ready(), Some(*id));
        assert_eq!(table.release(*id).unwrap().is_ok(), index != 3);
    }
}

#[test]
fn an_operation_does_not_have_the_outcome_of_an_earlier_one_of_its_slot() {
    let mut table = table(1);
    let failed = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    assert!(table.fail(failed.wr_id(), ABORTED));
    assert_eq!(table.release(failed).unwrap(), Err(ABORTED));
    let id = table.take(reservation(0, BufferOwner::Borrowed)).unwrap();
    assert_eq!(table.0.failure(id), None);
    assert_eq!(table.dispatch(&[completion(id.wr_id(), true)], false), 1);
    assert_eq!(table.0.is_done(id), None, "its slot is free");
    let id = table.take(reservation(0, BufferOwner::Caller)).unwrap();
    assert_eq!(table.dispatch(&[completion(id.wr_id(), true)], false), 1);
    assert_eq!(table.release(id).unwrap(), Ok(()));
}
