//! How a queue pair ends: ERR, SQE, SQD, and the flush of what is posted (10.3.1, 10.8).

use super::{QueuePair, QueuePairState};
use crate::card::Card;
use crate::completion::Status;
use crate::event::Event;
use crate::packet::Transport;

impl QueuePair {
    /// Goes to ERR.
    pub(super) fn fail(&mut self, card: &mut Card) {
        if self.state == QueuePairState::Err {
            return;
        }
        self.state = QueuePairState::Err;
        self.requester.stop();
        if self.options.shared_receives.is_some() && card.profile.last_wqe_reached {
            card.events.push_back(Event::LastWqeReached(self.number));
        }
    }

    /// Goes to ERR without a completion that has an error.
    pub(crate) fn break_down(&mut self, card: &mut Card) {
        self.is_overrun = true;
        self.settle(card);
    }

    /// A request of the send queue failed, and its completion is in the queue.
    pub(super) fn fail_sends(&mut self, card: &mut Card) {
        match self.options.transport {
            Transport::Uc | Transport::Ud if card.profile.has_send_queue_error => {
                self.state = QueuePairState::Sqe;
                self.requester.stop();
            }
            _ => self.fail(card),
        }
    }

    /// Draws the conclusions of all that has changed; every entry point ends with it.
    pub(super) fn settle(&mut self, card: &mut Card) {
        if std::mem::take(&mut self.is_overrun) && self.state != QueuePairState::Err {
            card.events.push_back(Event::QueuePairFatal(self.number));
            self.fail(card);
        }
        match self.state {
            QueuePairState::Sqd if !self.is_drained && self.requester.is_drained() => {
                self.is_drained = true;
                card.events.push_back(Event::SendQueueDrained(self.number));
            }
            QueuePairState::Sqe | QueuePairState::Err
                if self.flush_at.is_none() && self.has_to_flush() =>
            {
                match card.profile.flush_delay.is_zero() {
                    true => self.flush(card),
                    false => self.flush_at = Some(card.now + card.profile.flush_delay),
                }
            }
            _ => {}
        }
    }

    fn has_to_flush(&self) -> bool {
        let has_receives = self.responder.receive.is_some() || !self.receives.waiting.is_empty();
        !self.requester.queue.is_empty() || self.state == QueuePairState::Err && has_receives
    }

    /// Completes all that is posted with an error.
    pub(super) fn flush(&mut self, card: &mut Card) {
        self.flush_at = None;
        if !matches!(self.state, QueuePairState::Sqe | QueuePairState::Err) {
            return;
        }
        while let Some(entry) = self.requester.pop() {
            // A window that was bound while requests before it were not answered stays so.
            let status = match entry.outcome {
                Some(Status::SUCCESS) => Status::SUCCESS,
                _ => Status::WR_FLUSH_ERR,
            };
            self.complete_entry(card, entry, status);
        }
        while self.state == QueuePairState::Err {
            let begun = self.responder.receive.take();
            let Some(receive) = begun.or_else(|| self.receives.waiting.pop_front()) else {
                break;
            };
            self.fail_receive(card, receive, Status::WR_FLUSH_ERR);
        }
        // A completion that is lost here cannot break a queue pair that is broken.
        self.is_overrun &= self.state != QueuePairState::Err;
    }
}
