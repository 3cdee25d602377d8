//! A card that does as it is told, and the ring that the driver sees of it.

use std::collections::VecDeque;
use std::mem;
// Not one of loom's: a count races with nothing.
use std::sync::Arc as Counter;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::task::Poll;

use crate::driver::{self, Done, Ring, Started};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Work for one of a channel's queues, where it takes up a number of places.
pub(crate) struct Work {
    pub(crate) id: usize,
    pub(crate) queue: usize,
    pub(crate) places: usize,
    pub(crate) buffer: Buffer,
}

/// How work ended, and its buffer.
pub(crate) struct Outcome {
    pub(crate) id: usize,
    pub(crate) end: End,
    // Held, and looked at by its absence alone.
    pub(crate) _buffer: Buffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Aborted,
    Refused,
}

/// Memory that is missed when it is gone; or none.
#[derive(Default)]
pub(crate) struct Buffer {
    gone: Option<Counter<AtomicUsize>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(gone) = &self.gone {
            gone.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A completion queue and what is posted to it, seen from the card's side.
pub(crate) struct Card {
    state: Mutex<State>,
    gone: Counter<AtomicUsize>,
}

#[derive(Default)]
pub(crate) struct State {
    // Of each channel's two queues.
    pub(crate) free: Vec<[usize; 2]>,
    in_flight: Vec<Option<(usize, Work)>>,
    // The numbers and ends of what the driver can find, in their order.
    done: VecDeque<(usize, End)>,
    // What a poll has found, and the driver has not asked for.
    polled: VecDeque<(usize, End)>,
    // One-shot: only what is added after the arming is announced, once.
    armed: bool,
    down: bool,
    pub(crate) arming_fails: bool,
    pub(crate) polls: usize,
    pub(crate) armings: usize,
    // Numbers that all channels share, if there are too few for all places. Work that is done has
    // its own until its outcome is taken.
    pub(crate) numbers: Option<usize>,
    // The ids of what was posted, in its order.
    pub(crate) posted: Vec<usize>,
}

/// The driver's side.
pub(crate) struct FakeRing(pub(crate) Arc<Card>);

impl Card {
    /// Channels whose two queues have this many places each.
    pub(crate) fn new(channels: usize, places: usize) -> Arc<Self> {
        let state = State {
            free: vec![[places; 2]; channels],
            ..State::default()
        };
        let gone = Counter::default();
        let state = Mutex::new(state);
        Arc::new(Self { state, gone })
    }

    /// Work that takes one place.
    pub(crate) fn work(&self, id: usize, queue: usize) -> Work {
        let gone = Some(Counter::clone(&self.gone));
        Work {
            id,
            queue,
            places: 1,
            buffer: Buffer { gone },
        }
    }

    /// How many buffers are gone.
    pub(crate) fn gone(&self) -> usize {
        self.gone.load(Ordering::Relaxed)
    }

    /// Ends what is in flight under this id. Whether that raises an event.
    #[must_use]
    pub(crate) fn complete(&self, id: usize) -> bool {
        let mut state = self.lock();
        let mut slots = state.in_flight.iter();
        let slot = slots.position(|work| matches!(work, Some((_, work)) if work.id == id));
        let slot = slot.expect("it is in flight");
        state.done.push_back((slot, End::Success));
        mem::take(&mut state.armed)
    }

    /// Whether this is in flight and has not ended.
    pub(crate) fn has(&self, id: usize) -> bool {
        let state = self.lock();
        let mut works = state.in_flight.iter().enumerate();
        works.any(|(slot, work)| {
            matches!(work, Some((_, work)) if work.id == id)
                && !state
                    .done
                    .iter()
                    .chain(&state.polled)
                    .any(|(done, _)| *done == slot)
        })
    }

    /// How many of them the driver could find.
    pub(crate) fn unseen(&self) -> usize {
        self.lock().done.len()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// As a card's: what is there is there no more.
    fn poll(&mut self) {
        self.polls += 1;
        self.polled.extend(self.done.drain(..));
    }

    fn end(&mut self, slot: usize, end: End) -> Outcome {
        let (channel, work) = self.in_flight[slot].take().expect("it was in flight");
        self.free[channel][work.queue] += work.places;
        let Work { id, buffer, .. } = work;
        Outcome {
            id,
            end,
            _buffer: buffer,
        }
    }

    /// Aborts what is in flight, and refuses what comes.
    pub(crate) fn give_up(&mut self) {
        self.down = true;
        for slot in 0..self.in_flight.len() {
            let ended = self
                .done
                .iter()
                .chain(&self.polled)
                .any(|(done, _)| *done == slot);
            if self.in_flight[slot].is_some() && !ended {
                self.done.push_back((slot, End::Aborted));
            }
        }
    }
}

impl FakeRing {
    /// For the driver's `poll`.
    pub(crate) fn take(&mut self, ticket: usize) -> Poll<Outcome> {
        let mut state = self.0.lock();
        state.poll();
        let mut polled = state.polled.iter();
        let at = polled.position(|(slot, _)| *slot == ticket);
        match at.and_then(|at| state.polled.remove(at)) {
            Some((slot, end)) => Poll::Ready(state.end(slot, end)),
            None => Poll::Pending,
        }
    }
}

impl driver::Work<FakeRing> for Work {
    fn queue(&self) -> usize {
        self.queue
    }

    fn post(&mut self, ring: &mut FakeRing, channel: usize) -> Started<FakeRing> {
        let mut state = ring.0.lock();
        if state.down {
            return Started::Refused(Outcome {
                id: self.id,
                end: End::Refused,
                _buffer: mem::take(&mut self.buffer),
            });
        }
        let numbered = state.in_flight.iter().flatten().count();
        let is_numbered = state.numbers.is_none_or(|numbers| numbered < numbers);
        let free = &mut state.free[channel][self.queue];
        if *free < self.places || !is_numbered {
            return Started::Full;
        }
        *free -= self.places;
        state.posted.push(self.id);
        let slot = state.in_flight.iter().position(Option::is_none);
        let slot = slot.unwrap_or_else(|| {
            state.in_flight.push(None);
            state.in_flight.len() - 1
        });
        let buffer = mem::take(&mut self.buffer);
        let posted = Self { buffer, ..*self };
        state.in_flight[slot] = Some((channel, posted));
        Started::Posted(slot)
    }
}

impl Ring for FakeRing {
    type Work = Work;
    type Outcome = Outcome;
    type Ticket = usize;

    fn slot(ticket: usize) -> usize {
        ticket
    }

    fn has_done(&self) -> bool {
        !self.0.lock().polled.is_empty()
    }

    fn next_done(&mut self) -> Option<Done<Self>> {
        let mut state = self.0.lock();
        if state.polled.is_empty() {
            state.poll();
        }
        let (ticket, end) = state.polled.pop_front()?;
        let outcome = state.end(ticket, end);
        Some(Done { ticket, outcome })
    }

    fn arm(&mut self) {
        let mut state = self.0.lock();
        state.armings += 1;
        if state.arming_fails {
            state.give_up();
        } else {
            state.armed = true;
        }
    }
}
