//! Outcomes of the random programs: polled, waited for or taken, in any order.

use std::mem;

use fake_libibverbs::faulty::{assert_written, no_more_faults};
use fake_libibverbs::{is_in_flight, is_posted};
use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{Completed, OwnedBuffer, OwnedRequest, Ticket, TransportError};

use super::{Operation, QUEUES, SHORT, World, is_work_error};

impl World {
    /// Takes an outcome, or those of all operations that have completed.
    pub(super) fn take(&mut self) {
        let count = self.operations.len();
        let chosen = (count > 0).then(|| self.operations[self.random.below(count)].ticket);
        let taken = match (self.random.below(9), chosen) {
            (0, Some(ticket)) => self.group.poll(ticket).unwrap(),
            (4, Some(ticket)) => self.group.engine_mut().poll(ticket).unwrap(),
            (5, Some(ticket)) => self.wait(ticket),
            (6, Some(ticket)) => return self.poll_success(ticket),
            (7, _) => return self.poll_each(),
            (1, Some(ticket)) => self.group.engine_mut().take(ticket).unwrap(),
            (2, _) => self.group.wait_completed(Some(SHORT)),
            (3, _) => self
                .group
                .engine_mut()
                .next_ticket()
                .and_then(|ticket| self.group.engine_mut().take(ticket).unwrap()),
            _ => self.group.next_completed(),
        };
        if let Some(completed) = taken {
            self.taken(completed);
        }
    }

    /// Waits for an operation on the handle of its channel, if there is one.
    fn wait(&mut self, ticket: Ticket) -> Option<Completed> {
        let mut channel = self.group.channel(ticket.channel()).ok()?;
        channel.wait(ticket, Some(SHORT)).unwrap()
    }

    /// Polls for all operations, from the oldest on: one poll may find several.
    fn poll_each(&mut self) {
        let tickets: Vec<_> = self.operations.iter().map(|op| op.ticket).collect();
        for ticket in tickets {
            if self.random.one_in(8) {
                self.poll_success(ticket);
            } else if let Some(completed) = self.group.poll(ticket).unwrap() {
                self.taken(completed);
            }
        }
    }

    /// Polls for the success of an operation on one buffer.
    fn poll_success(&mut self, ticket: Ticket) {
        if self.operations.iter().all(|op| op.ticket != ticket) {
            return;
        }
        if let Some((success, buffer)) = self.group.engine_mut().poll_success(ticket) {
            self.ended(ticket, &Ok(success), vec![buffer]);
        }
    }

    pub(super) fn taken(&mut self, completed: Completed) {
        if matches!(completed.result, Err(TransportError::Stuck)) {
            assert!(completed.buffer.is_none() && completed.batch.is_none());
            assert!(completed.chain.is_none());
            let operation = self.operation(completed.ticket);
            mem::forget(operation.memory);
            self.leaks = true;
            return;
        }
        let mut buffers: Vec<OwnedBuffer> = completed.buffer.into_iter().collect();
        let chain = completed.chain.unwrap_or_default();
        let is_whole = chain.done() == chain.len();
        assert!(is_whole == completed.result.is_ok() || chain.is_empty());
        let requests = completed.batch.into_iter().flatten();
        let requests = requests.chain(chain.into_requests());
        buffers.extend(requests.map(OwnedRequest::into_buffer));
        self.ended(completed.ticket, &completed.result, buffers);
    }

    fn operation(&mut self, ticket: Ticket) -> Operation {
        let mut operations = self.operations.iter();
        let at = operations.position(|op| op.ticket == ticket);
        self.operations.remove(at.expect("it ends once"))
    }

    /// Checks what an operation has returned: it ends once.
    fn ended(
        &mut self,
        ticket: Ticket,
        result: &Result<WorkSuccess, TransportError>,
        mut buffers: Vec<OwnedBuffer>,
    ) {
        let operation = self.operation(ticket);
        buffers.extend(operation.memory.map(OwnedBuffer::from));
        assert_eq!(buffers.len(), operation.buffers.len());
        let wr_ids = &operation.wr_ids;
        self.device.assert_agrees(wr_ids, result, is_work_error);
        assert!(
            !wr_ids.iter().any(|wr_id| is_in_flight(*wr_id)),
            "in flight"
        );
        for (at, (buffer, (expected, writes))) in buffers.iter().zip(&operation.buffers).enumerate()
        {
            if !writes {
                self.is_ours(buffer, expected);
                continue;
            }
            assert!(!is_posted(buffer), "the device may still touch it");
            let (address, length, _) = *expected;
            assert_eq!((buffer.as_ptr().addr(), buffer.len()), (address, length));
            if result.is_ok() {
                assert_written(buffer, wr_ids[at]);
            }
        }
        if self.random.one_in(8) {
            self.leaks = true;
            mem::forget(buffers);
        }
    }

    /// Checks that channels that are not down return all operations that the device has completed.
    pub(super) fn all_completes(&mut self) {
        no_more_faults();
        self.device.complete_all();
        while let Some(completed) = self.group.next_completed() {
            self.taken(completed);
        }
        // Earlier failures may have taken channels down.
        for at in (0..self.operations.len()).rev() {
            let ticket = self.operations[at].ticket;
            let channel = self.group.channel(ticket.channel());
            if channel.is_ok_and(|channel| !channel.is_down()) {
                let completed = self.group.poll(ticket).unwrap();
                let completed = completed.expect("a completion is lost");
                assert!(completed.result.is_ok(), "{:?}", completed.result);
                self.taken(completed);
            }
        }
        self.has_all_of_its_room();
    }

    /// Asserts that no channel that is up has lost credits.
    fn has_all_of_its_room(&mut self) {
        let common_room = self.group.engine_mut().common_room();
        for id in self.ids.clone() {
            let channel = self.group.channel(id).unwrap();
            if channel.is_down() {
                continue;
            }
            assert!(channel.is_idle(), "nothing is in flight");
            assert_eq!(QUEUES.map(|queue| channel.in_flight(queue)), [0; 2]);
            let credits = QUEUES.map(|queue| channel.credits(queue));
            if common_room == self.common {
                assert_eq!(credits, self.credits, "credits are lost");
            }
        }
    }
}
