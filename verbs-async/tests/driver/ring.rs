//! A fake device under the control of a test, and the ring that the driver sees of it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::mem;
// Not one of loom's: the count needs no ordering.
use std::sync::Arc as Counter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use verbs_channel::Queue;

use crate::driver::{self, Driver, Ring, SharedReceives, Started, Submission};
use crate::task::deferred::LogLine;
use crate::task::sync::{Arc, Mutex, MutexGuard};

/// The queues of a channel.
pub(crate) const QUEUES: [Queue; 2] = [Queue::Send, Queue::Receive];

/// A request for one of a channel's queues, of which it takes a number of places.
pub(crate) struct Request {
    pub(crate) id: usize,
    pub(crate) queue: usize,
    pub(crate) places: usize,
    pub(crate) buffer: Buffer,
}

/// The outcome of a request, and its buffer.
pub(crate) struct Outcome {
    pub(crate) id: usize,
    pub(crate) end: End,
    // Kept only for its drop, which is counted.
    pub(crate) _buffer: Buffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Aborted,
    Rejected,
}

/// Memory whose drop is counted; or none.
#[derive(Default)]
pub(crate) struct Buffer {
    gone: Option<Counter<AtomicUsize>>,
    // Called when it is dropped.
    pub(crate) hook: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(gone) = &self.gone {
            gone.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(hook) = self.hook.take() {
            hook();
        }
    }
}

/// A completion queue and what is posted to it, seen from the device's side.
pub(crate) struct FakeDevice {
    state: Mutex<State>,
    gone: Counter<AtomicUsize>,
}

#[derive(Default)]
pub(crate) struct State {
    // Free places of each channel's two queues.
    pub(crate) free: Vec<[usize; 2]>,
    places: usize,
    // Places that are left of each channel's share.
    shares: Vec<[usize; 2]>,
    pub(crate) common: usize,
    is_held: bool,
    slots: Vec<Option<Slot>>,
    vacant: Vec<usize>,
    // The completions that a poll can return, in order.
    done: VecDeque<(Ticket, End)>,
    // The completions that were polled, and are not taken yet.
    known: VecDeque<Ticket>,
    // One-shot: only the first completion after the arming raises an event.
    armed: bool,
    down: bool,
    pub(crate) arming_fails: bool,
    // Completes just before the next arming, without an event.
    pub(crate) before_arming: Option<usize>,
    pub(crate) polls: usize,
    pub(crate) armings: usize,
    // To be dropped without the lock.
    pub(crate) closing: Vec<Buffer>,
    // The ids of the posted requests, in order.
    pub(crate) posted: Vec<usize>,
}

/// A request from its post until its outcome is taken.
struct Slot {
    ticket: Ticket,
    request: Request,
    // Places of its share, and of the room that all channels share.
    taken: [usize; 2],
    // The state in the device, and that which the driver can have seen.
    is_done: bool,
    end: Option<End>,
}

/// Identifies a request that has a slot; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: usize,
    channel: usize,
    serial: usize,
}

/// The driver's side.
pub(crate) struct FakeRing(pub(crate) Arc<FakeDevice>);

impl FakeDevice {
    /// Channels whose two queues have this many places each, of which `share` are their own: more
    /// requests need some of the common room.
    pub(crate) fn with_shares(
        channels: usize,
        places: usize,
        share: usize,
        common: usize,
    ) -> Arc<Self> {
        let state = State {
            free: vec![[places; 2]; channels],
            places,
            shares: vec![[share; 2]; channels],
            common,
            ..State::default()
        };
        let gone = Counter::default();
        let state = Mutex::new(state);
        Arc::new(Self { state, gone })
    }

    /// A request that takes one place.
    pub(crate) fn request(&self, id: usize, queue: usize) -> Request {
        let gone = Some(Counter::clone(&self.gone));
        Request {
            id,
            queue,
            places: 1,
            buffer: Buffer { gone, hook: None },
        }
    }

    /// How many buffers were dropped.
    pub(crate) fn gone(&self) -> usize {
        self.gone.load(Ordering::Relaxed)
    }

    /// Completes the request with this id. Returns whether that raises an event.
    #[must_use]
    pub(crate) fn complete(&self, id: usize) -> bool {
        let mut state = self.lock();
        state.succeed(id);
        mem::take(&mut state.armed)
    }

    /// Whether this request is in flight.
    pub(crate) fn has(&self, id: usize) -> bool {
        let state = self.lock();
        let mut slots = state.slots.iter().flatten();
        slots.any(|slot| slot.request.id == id && !slot.is_done)
    }

    /// How many of them a poll can return.
    pub(crate) fn unseen(&self) -> usize {
        self.lock().done.len()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn slot(&mut self, ticket: Ticket) -> &mut Slot {
        let slot = self.slots[ticket.slot].as_mut();
        let slot = slot.filter(|slot| slot.ticket == ticket);
        slot.expect("the driver asks for nothing that was taken")
    }

    fn succeed(&mut self, id: usize) {
        let mut slots = self.slots.iter().flatten();
        let ticket = slots.find(|slot| slot.request.id == id && !slot.is_done);
        let ticket = ticket.expect("it is in flight").ticket;
        self.end(ticket, End::Success);
    }

    fn end(&mut self, ticket: Ticket, end: End) {
        self.slot(ticket).is_done = true;
        self.done.push_back((ticket, end));
    }

    /// Polls as a device does: returned completions are removed.
    pub(crate) fn poll(&mut self) {
        self.polls += 1;
        while let Some((ticket, end)) = self.done.pop_front() {
            let slot = self.slot(ticket);
            slot.end = Some(end);
            let Request { queue, places, .. } = slot.request;
            let [of_share, of_common] = slot.taken;
            self.free[ticket.channel][queue] += places;
            self.shares[ticket.channel][queue] += of_share;
            self.common += of_common;
            self.known.push_back(ticket);
        }
    }

    fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        let end = self.slot(ticket).end?;
        self.known.retain(|known| *known != ticket);
        let Request { id, buffer, .. } = self.slots[ticket.slot].take()?.request;
        self.vacant.push(ticket.slot);
        Some(Outcome {
            id,
            end,
            _buffer: buffer,
        })
    }

    /// Aborts the requests in flight, and rejects later ones.
    pub(crate) fn take_down(&mut self) {
        self.down = true;
        let slots = self.slots.iter().flatten();
        let flying: Vec<_> = slots.filter(|slot| !slot.is_done).collect();
        let flying: Vec<_> = flying.into_iter().map(|slot| slot.ticket).collect();
        flying
            .into_iter()
            .for_each(|ticket| self.end(ticket, End::Aborted));
    }
}

impl driver::End<FakeRing> for Outcome {
    type Taken = Self;

    fn poll(ring: &mut FakeRing, ticket: Ticket) -> Option<Self> {
        let mut state = ring.0.lock();
        if state.slot(ticket).end.is_none() {
            state.poll();
        }
        state.take(ticket)
    }
}

/// Polls an operation as its future does.
pub(crate) fn poll(
    driver: &Driver<FakeRing>,
    key: &Submission<Ticket>,
    cx: &mut Context<'_>,
) -> Poll<Outcome> {
    match driver.take::<Outcome>(key) {
        Some(outcome) => Poll::Ready(outcome),
        None => driver.wait(key, cx),
    }
}

impl Drop for FakeRing {
    fn drop(&mut self) {
        // Untaken outcomes are dropped with it.
        self.0.lock().slots.clear();
    }
}

impl driver::Request<FakeRing> for Request {
    fn queue(&self) -> Queue {
        QUEUES[self.queue]
    }

    fn post(&mut self, ring: &mut FakeRing, channel: usize) -> Started<FakeRing> {
        let mut state = ring.0.lock();
        if state.down {
            return Started::Rejected(());
        }
        if state.free[channel][self.queue] < self.places {
            return Started::Full;
        }
        let of_share = state.shares[channel][self.queue].min(self.places);
        let of_common = self.places - of_share;
        if of_common > if state.is_held { 0 } else { state.common } {
            return Started::Short;
        }
        state.free[channel][self.queue] -= self.places;
        state.shares[channel][self.queue] -= of_share;
        state.common -= of_common;
        state.posted.push(self.id);
        let slot = state.vacant.pop().unwrap_or_else(|| {
            state.slots.push(None);
            state.slots.len() - 1
        });
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket {
            slot,
            channel,
            serial,
        };
        let buffer = mem::take(&mut self.buffer);
        state.slots[slot] = Some(Slot {
            ticket,
            request: Self { buffer, ..*self },
            taken: [of_share, of_common],
            is_done: false,
            end: None,
        });
        Started::Posted(ticket)
    }

    fn rejected(&mut self, (): ()) -> Outcome {
        Outcome {
            id: self.id,
            end: End::Rejected,
            _buffer: mem::take(&mut self.buffer),
        }
    }
}

/// Not one of loom's: the number needs no ordering.
static SERIALS: AtomicUsize = AtomicUsize::new(0);

impl Ring for FakeRing {
    type Request = Request;
    type Outcome = Outcome;
    type Ticket = Ticket;
    type RejectReason = ();
    type Channel = usize;
    type Closing = Buffer;
    type Owner = Infallible;

    fn slot(ticket: Ticket) -> usize {
        ticket.slot
    }

    fn owner(&self) -> Option<Infallible> {
        None
    }

    fn continue_elsewhere(owner: Infallible) -> bool {
        match owner {}
    }

    fn slots(&self) -> usize {
        self.0.lock().slots.len()
    }

    fn channel(ticket: Ticket) -> usize {
        ticket.channel
    }

    fn index(channel: usize) -> usize {
        channel
    }

    fn has_completed(&self) -> bool {
        !self.0.lock().known.is_empty()
    }

    fn next_completed(&mut self) -> Option<Ticket> {
        let mut state = self.0.lock();
        if state.known.is_empty() {
            state.poll();
        }
        state.known.pop_front()
    }

    fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.0.lock().take(ticket)
    }

    fn full(_queue: Queue) {}

    fn hold_room(&mut self, is_held: bool) {
        self.0.lock().is_held = is_held;
    }

    fn has_common_room(&self) -> bool {
        self.0.lock().common > 0
    }

    fn is_idle(&mut self, channel: usize, queue: Queue) -> bool {
        let state = self.0.lock();
        state.free[channel][queue as usize] == state.places
    }

    fn has_deferred(&self) -> bool {
        !self.0.lock().closing.is_empty()
    }

    fn next_log_line(&mut self) -> Option<LogLine> {
        None
    }

    fn next_closing(&mut self) -> Option<Buffer> {
        self.0.lock().closing.pop()
    }

    fn arm(&mut self) -> Result<(), Option<LogLine>> {
        let mut state = self.0.lock();
        state.armings += 1;
        if let Some(id) = state.before_arming.take() {
            state.succeed(id);
        }
        if state.arming_fails {
            state.take_down();
            return Err(Some(Box::new("the queue cannot be armed")));
        }
        state.armed = true;
        Ok(())
    }
}

/// No messages arrive on it.
impl SharedReceives for FakeRing {
    type Message = ();

    fn next_message(&mut self) -> Option<()> {
        None
    }

    fn needs_blocks(&self) -> bool {
        false
    }
}
