//! Scopes of the random programs: handles, loans and batches, which are taken, dropped or forgotten.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fake_libibverbs::faulty::{FaultyDevice, Random, assert_written, fault, last_posted};
use fake_libibverbs::{is_posted, touch_posted, with};
use verbs_channel::verbs_core::{
    GatherElement, MemoryRegion, RemoteMemoryRegion, ScatterElement, WorkSuccess,
};
use verbs_channel::{
    Incoming, Outgoing, PollingScope, RejectReason, ScopeError, ScopedPendingWork, TransportError,
};

use super::{SHORT, World, is_work_error, region};

/// An operation on borrowed buffers.
struct Operation {
    wr_ids: Vec<u64>,
    is_receive: bool,
    /// Address, length and `wr_id` of the elements that are not returned before the scope ends.
    writes: Vec<(u64, usize, u64)>,
    /// Whether it succeeded, once its result has been taken.
    taken: Option<bool>,
}

/// The elements and the state that a scope uses.
struct Program<'a, 'r> {
    random: &'a mut Random,
    device: &'a mut FaultyDevice,
    operations: &'a mut Vec<Operation>,
    leaks: &'a mut bool,
    from: GatherElement<'r>,
    parts: Vec<ScatterElement<'r>>,
}

/// One scope, with the handles and loans that it holds, each with the place of its operation.
struct Lender<'a, 'scope, 'env, 'r> {
    scope: &'scope PollingScope<'scope, 'env>,
    of: Program<'a, 'r>,
    handles: Vec<(usize, ScopedPendingWork<'scope, 'env>)>,
    loans: Vec<(usize, ScopedPendingWork<'scope, 'env, ScatterElement<'r>>)>,
    sent: Vec<(usize, ScopedPendingWork<'scope, 'env, GatherElement<'r>>)>,
}

/// How a closure ends, if it does not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    closes: bool,
}

type Result<T, E = TransportError> = std::result::Result<T, E>;

impl World {
    /// Runs several operations on borrowed buffers, in a scope that waits for them or in one that
    /// aborts them. It ends with `Ok`, an error or a panic.
    pub(super) fn scope(&mut self) {
        if !self.random.one_in(4) {
            self.replace_down();
        }
        let Some(id) = self.id() else { return };
        let mark = self.mark();
        let mut from = region(&self.pd, mark);
        let mut into = region(&self.pd, 0);
        let Self {
            random,
            device,
            group,
            leaks,
            ..
        } = self;
        spare_queue_pairs();
        let is_manual = random.one_in(3);
        let mut operations = Vec::new();
        let mut channel = group.channel(id).unwrap();
        device.see();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let parts = into.scatter_element(..).unwrap().chunks_mut(16).unwrap();
            let (parts, from) = (parts.collect(), from.gather_element(..).unwrap());
            let program = Program {
                random,
                device,
                operations: &mut operations,
                leaks,
                from,
                parts,
            };
            match is_manual {
                true => channel.manual_scope(|scope| program.lend(scope).run(true)),
                false => channel.scope(|scope| program.lend(scope).run(false)),
            }
        }));
        if ended.as_ref().is_err_and(|panic| !panic.is::<OnPurpose>()) {
            resume_unwind(ended.unwrap_err());
        }
        if let Ok(Err(ScopeError::AutoPollError(error))) = &ended {
            assert!(!self.is_healthy(), "nothing has failed: {error}");
        }
        let well = ended.ok().and_then(Result::<_, _>::ok);
        assert!(!is_posted(&from) && !is_posted(&into), "borrowed still");
        for operation in &operations {
            self.ended_with_its_scope(operation, well, &into);
        }
        from.fill(7);
        into.fill(7);
    }

    /// Asserts that a scope that returned `Ok` has waited for all of its operations, and that none of
    /// them has failed.
    fn ended_with_its_scope(
        &self,
        operation: &Operation,
        well: Option<End>,
        into: &MemoryRegion<Vec<u8>>,
    ) {
        let may_be_left = operation.is_receive && well.is_some_and(|end| end.closes);
        let was_awaited = well.is_some() && !may_be_left;
        let has_succeeded = operation.taken.unwrap_or(was_awaited);
        if !has_succeeded {
            return;
        }
        assert!(
            self.device.has_succeeded(&operation.wr_ids),
            "not waited for"
        );
        for (addr, length, wr_id) in &operation.writes {
            let start = usize::try_from(*addr).unwrap() - into.as_ptr().addr();
            assert_written(&into[start..start + length], *wr_id);
        }
    }
}

/// The payload that a closure panics with.
struct OnPurpose;

impl<'a, 'r> Program<'a, 'r> {
    const fn lend<'scope, 'env>(
        self,
        scope: &'scope PollingScope<'scope, 'env>,
    ) -> Lender<'a, 'scope, 'env, 'r> {
        Lender {
            scope,
            of: self,
            handles: Vec::new(),
            loans: Vec::new(),
            sent: Vec::new(),
        }
    }
}

impl<'r, 'scope, 'env> Lender<'_, 'scope, 'env, 'r>
where
    'r: 'scope,
{
    fn run(mut self, is_manual: bool) -> Result<End, ()> {
        let closes = self.of.random.one_in(8);
        if closes {
            self.scope.close_with_receives_left();
        }
        for _ in 0..self.of.random.below(16) {
            self.step();
            with(|library| assert_eq!(library.wrong, [""; 0]));
        }
        if self.of.device.is_healthy {
            self.of.device.complete_all();
        }
        match self.of.random.below(8) {
            0 => resume_unwind(Box::new(OnPurpose)),
            1 => return Err(()),
            _ => {}
        }
        while !self.of.device.is_idle() && !self.of.random.one_in(6) {
            self.of.device.complete(self.of.random);
        }
        let takes_all = is_manual && !self.of.random.one_in(4);
        while takes_all && self.holds_any() {
            self.use_one();
        }
        Ok(End { closes })
    }

    fn step(&mut self) {
        match self.of.random.below(16) {
            0..6 => {
                // It is rejected if the queue is full or the channel is down.
                let _rejected = self.post();
                self.of.device.see();
            }
            6..9 => self.completes_several(),
            9..13 => self.use_one(),
            13 => drop(self.scope.poll()),
            14 if self.of.random.one_in(4) && !self.of.device.is_healthy => {
                *self.of.leaks |= fault(self.of.random);
                spare_queue_pairs();
            }
            _ => touch_posted(),
        }
    }

    /// The device completes several requests, which one poll finds.
    fn completes_several(&mut self) {
        for _ in 0..=self.of.random.below(4) {
            self.of.device.complete(self.of.random);
        }
    }

    fn post(&mut self) -> Result<(), RejectReason> {
        let (scope, from, remote) = (self.scope, self.of.from, remote());
        match self.of.random.below(12) {
            0 => {
                let handle = scope.post_send(from)?;
                self.posted(false, Vec::new(), handle);
            }
            1 => {
                let handle =
                    scope.post_batch([Outgoing::send(from), Outgoing::write(from, remote)])?;
                self.posted(false, Vec::new(), handle);
            }
            2 => {
                let loan = scope.lend(Outgoing::send(from))?;
                let at = self.is_posted(false, Vec::new());
                self.sent.push((at, loan));
            }
            3 => {
                let Some(part) = self.of.parts.pop() else {
                    return Ok(());
                };
                let element = place(&part);
                let handle = scope.post_read(part, remote)?;
                self.posted(false, vec![element], handle);
            }
            4 => {
                let (Some(first), Some(second)) = (self.of.parts.pop(), self.of.parts.pop()) else {
                    return Ok(());
                };
                let elements = vec![place(&first), place(&second)];
                let batch = [first, second].map(|part| Incoming::read(part, remote));
                match scope.try_post_batch(batch) {
                    Ok(handle) => self.posted(false, elements, handle),
                    Err(rejected) => {
                        let rejected = rejected.into_given().map(Incoming::into_list);
                        rejected.into_iter().for_each(|part| self.is_back(part));
                    }
                }
            }
            5 => {
                let Some(part) = self.of.parts.pop() else {
                    return Ok(());
                };
                let element = place(&part);
                let handle = scope.post_receive(part)?;
                self.posted(true, vec![element], handle);
            }
            6 | 7 => {
                let Some(part) = self.of.parts.pop() else {
                    return Ok(());
                };
                let element = place(&part);
                match scope.try_lend(Incoming::read(part, remote)) {
                    Ok(loan) => self.lent(false, element, loan),
                    Err(rejected) => self.is_back(rejected.into_given().into_list()),
                }
            }
            8 => {
                let Some(part) = self.of.parts.pop() else {
                    return Ok(());
                };
                let element = place(&part);
                let loan = scope.lend_receive(part)?;
                self.lent(true, element, loan);
            }
            _ => {
                let Some(part) = self.of.parts.pop() else {
                    return Ok(());
                };
                let element = place(&part);
                match scope.try_lend_receive(part) {
                    Ok(loan) => self.lent(true, element, loan),
                    Err(rejected) => self.is_back(rejected.into_given()),
                }
            }
        }
        Ok(())
    }

    fn posted(
        &mut self,
        is_receive: bool,
        elements: Vec<(u64, usize)>,
        handle: ScopedPendingWork<'scope, 'env>,
    ) {
        let at = self.is_posted(is_receive, elements);
        self.handles.push((at, handle));
    }

    fn lent(
        &mut self,
        is_receive: bool,
        element: (u64, usize),
        loan: ScopedPendingWork<'scope, 'env, ScatterElement<'r>>,
    ) {
        let at = self.is_posted(is_receive, vec![element]);
        self.loans.push((at, loan));
    }

    fn is_posted(&mut self, is_receive: bool, elements: Vec<(u64, usize)>) -> usize {
        let wr_ids = last_posted();
        let writes = elements.iter().zip(&wr_ids);
        self.of.operations.push(Operation {
            writes: writes
                .map(|((addr, len), wr_id)| (*addr, *len, *wr_id))
                .collect(),
            wr_ids,
            is_receive,
            taken: None,
        });
        self.of.operations.len() - 1
    }

    /// Takes rejected or returned elements back: the device does not access them.
    fn is_back(&mut self, mut part: ScatterElement<'r>) {
        assert!(!is_posted(&part), "the device may still touch it");
        part.fill(self.of.random.number().to_le_bytes()[0]);
        self.of.parts.push(part);
    }

    const fn holds_any(&self) -> bool {
        !(self.handles.is_empty() && self.loans.is_empty() && self.sent.is_empty())
    }

    /// Uses a handle or a loan.
    fn use_one(&mut self) {
        match self.of.random.below(3) {
            0 => self.use_handle(),
            1 => self.use_loan(),
            _ => self.use_sent(),
        }
    }

    fn use_handle(&mut self) {
        let Some((at, mut handle)) = any(&mut self.handles, self.of.random) else {
            return;
        };
        match self.how(at) {
            How::Drop => drop(handle),
            How::Forget => mem::forget(handle),
            How::Wait => self.taken(at, &handle.spin_poll()),
            how => {
                let result = match how {
                    How::Poll => handle.poll(),
                    _ => handle.wait_timeout(SHORT),
                };
                match result {
                    None => self.handles.push((at, handle)),
                    Some(result) => {
                        self.taken(at, &result);
                        assert!(handle.poll().is_none(), "it ends twice");
                    }
                }
            }
        }
    }

    fn use_loan(&mut self) {
        let Some((at, loan)) = any(&mut self.loans, self.of.random) else {
            return;
        };
        let ended = match self.how(at) {
            How::Drop => return drop(loan),
            How::Forget => return mem::forget(loan),
            How::Wait => Ok(loan.spin_poll()),
            How::Poll => loan.poll(),
            How::WaitTimeout => loan.wait_timeout(SHORT),
        };
        match ended {
            Err(loan) => self.loans.push((at, loan)),
            Ok((result, part)) => {
                self.taken(at, &result);
                let writes = mem::take(&mut self.of.operations[at].writes);
                let (addr, length, wr_id) = writes[0];
                assert_eq!(place(&part), (addr, length), "another's element");
                if result.is_ok() {
                    assert_written(&part, wr_id);
                }
                self.is_back(part);
            }
        }
    }

    fn use_sent(&mut self) {
        let Some((at, loan)) = any(&mut self.sent, self.of.random) else {
            return;
        };
        let ended = match self.how(at) {
            How::Drop => return drop(loan),
            How::Forget => return mem::forget(loan),
            How::Wait => Ok(loan.spin_poll()),
            How::Poll => loan.poll(),
            How::WaitTimeout => loan.wait_timeout(SHORT),
        };
        match ended {
            Err(loan) => self.sent.push((at, loan)),
            Ok((result, element)) => {
                self.taken(at, &result);
                assert_eq!(element.addr(), self.of.from.addr(), "another's element");
            }
        }
    }

    /// Chooses how to use a handle. Those that are waited for have completed, most of the time.
    fn how(&mut self, at: usize) -> How {
        let how = match self.of.random.below(8) {
            0 => How::Drop,
            1 => How::Forget,
            2..5 => How::Poll,
            5 => How::WaitTimeout,
            _ => How::Wait,
        };
        let last = self.of.operations[at].wr_ids.last().copied();
        while how == How::Wait
            && !self.of.device.has_completed(last)
            && !self.of.device.is_idle()
            && (self.of.device.is_healthy || !self.of.random.one_in(20))
        {
            self.of.device.complete(self.of.random);
        }
        how
    }

    fn taken(&mut self, at: usize, result: &Result<WorkSuccess>) {
        assert!(result.is_ok() || !self.of.device.is_healthy, "{result:?}");
        let operation = &mut self.of.operations[at];
        let device = &self.of.device;
        device.assert_agrees(&operation.wr_ids, result, is_work_error);
        assert_eq!(
            operation.taken.replace(result.is_ok()),
            None,
            "it ends twice"
        );
        let of_it = |wr_id: &u64| fake_libibverbs::is_in_flight(*wr_id);
        assert!(!operation.wr_ids.iter().any(of_it), "it is still in flight");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Drop,
    Forget,
    Poll,
    Wait,
    WaitTimeout,
}

/// Removes faults of destroying queue pairs: with borrowed buffers they abort the process, as
/// documented.
pub(super) fn spare_queue_pairs() {
    with(|library| library.refuse.retain(|(verb, _)| *verb != "ibv_destroy_qp"));
}

pub(super) fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(0x1000, 64, 77).unwrap()
}

fn place(part: &ScatterElement<'_>) -> (u64, usize) {
    (part.addr(), part.len())
}

fn any<T>(of: &mut Vec<T>, random: &mut Random) -> Option<T> {
    (!of.is_empty()).then(|| of.swap_remove(random.below(of.len())))
}
