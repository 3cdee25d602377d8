//! State shared by the tasks of an endpoint: its engine, and the lines in which they sleep.
//!
//! Each poll that finds nothing drives, and so does each event. Both poll the queue until it is
//! empty, and wake the tasks that can continue. If tasks sleep after that, the queue is armed and
//! polled once more.
//!
//! *Invariant:* while the lock is free and a task sleeps, the queue is armed, or an event is on its way, or
//! the endpoint is down and the task is woken.
//!
//! *Invariant:* under the lock, no waker is cloned, woken or dropped, no buffer is dropped, no queue pair or
//! address handle is destroyed, no queue pair is attached or detached, and nothing is logged.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use verbs_channel::datagrams::{DatagramEnding, DatagramEngine};
use verbs_channel::verbs_core::{
    AddressHandle, AsyncEvent, DatagramEndpoint, ErrorChain, EventType, Process, ProtectionDomain,
};
use verbs_channel::{BufferPool, DownReason, OwnedBuffer, TransportError};

use super::wait_queue::Line;
use crate::engine::destroying::Destroyed;
use crate::error::Error;
#[cfg(feature = "rdmacm")]
use crate::events::CqEvents;
use crate::events::watcher::{DeviceListener, Failed};
use crate::events::{CqListener, Subscription};
use crate::notifier;
use crate::task::deferred::{self, Deferred, Defers};
use crate::task::sync::{Mutex, MutexGuard};
use crate::task::wake;
use crate::threads;

pub(super) struct Shared {
    pub(super) process: Process,
    pub(super) state: Mutex<State>,
    /// Pool of the receives' blocks.
    pub(super) pool: BufferPool,
    pub(super) pd: ProtectionDomain,
    pub(super) endpoint: DatagramEndpoint,
    pub(super) max_payload: u32,
    #[cfg(feature = "rdmacm")]
    pub(super) port_num: u8,
    #[cfg(feature = "rdmacm")]
    pub(super) events: CqEvents,
    pub(super) end: Arc<End>,
    /// Held by a helper thread while it attaches or detaches the queue pair, and no longer. It is taken before
    /// the state's.
    #[cfg(feature = "rdmacm")]
    pub(super) changes: Mutex<()>,
}

pub(super) struct State {
    // First: the registration is dropped before the queue.
    subscription: Subscription,
    pub(super) engine: DatagramEngine,
    is_armed: bool,
    lines: [Line; 3],
    // For when the lock is free: wake-ups, and the buffers of what has left.
    deferred: Deferred<OwnedBuffer>,
    /// Address handles that are not used again, and that datagrams in flight may need.
    pub(super) retired: Vec<Arc<AddressHandle>>,
    owner: Weak<Shared>,
}

/// The event that a task waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// Room in the send queue.
    Room,
    Datagram,
    /// The end of all that was sent.
    Flushed,
}

const AWAITED: [Awaited; 3] = [Awaited::Room, Awaited::Datagram, Awaited::Flushed];

impl State {
    pub(super) fn new(
        subscription: Subscription,
        engine: DatagramEngine,
        owner: Weak<Shared>,
    ) -> Self {
        Self {
            subscription,
            engine,
            is_armed: false,
            lines: Default::default(),
            deferred: Deferred::new(),
            retired: Vec::new(),
            owner,
        }
    }

    /// For how many tasks there is something.
    pub(super) fn available(&self, what: Awaited) -> usize {
        let is_down = self.engine.down_reason().is_some();
        match what {
            Awaited::Room | Awaited::Datagram if is_down => usize::MAX,
            Awaited::Room => self.engine.room(),
            Awaited::Datagram => self.engine.arrived(),
            Awaited::Flushed => {
                // A block that was sent is free in its pool then.
                let is_released = self.deferred.is_dropped();
                let is_flushed = self.engine.sends_in_flight() == 0 && is_released;
                if is_flushed { usize::MAX } else { 0 }
            }
        }
    }

    const fn line(&mut self, what: Awaited) -> &mut Line {
        &mut self.lines[what as usize]
    }

    /// The task sleeps until there is something. Returns its previous waker, to be dropped without the lock.
    pub(super) fn sleep(
        &mut self,
        what: Awaited,
        key: &mut Option<u64>,
        waker: Waker,
    ) -> Option<Waker> {
        self.line(what).sleep(key, waker)
    }

    /// The task does not wait any more. Returns its waker, to be dropped without the lock.
    pub(super) fn leave(&mut self, what: Awaited, key: Option<u64>) -> Option<Waker> {
        self.line(what).leave(key?)
    }

    /// Polls until the queue is empty, and wakes whom there is something for.
    pub(super) fn drive(&mut self) {
        // No more than what is in flight.
        while !self.engine.drive() {}
        self.settle();
    }

    /// Arms the queue if tasks sleep, and polls once more.
    pub(super) fn arm(&mut self) {
        let has_sleepers = self.lines.iter().any(|line| !line.is_empty());
        if self.is_armed || !has_sleepers || self.engine.down_reason().is_some() {
            return;
        }
        match self.subscription.arm() {
            Ok(()) => self.is_armed = true,
            Err(error) => self.engine.fail(reason(&error)),
        }
        self.drive();
    }

    /// Takes the buffers of what has left, and wakes whom there is something for.
    fn settle(&mut self) {
        self.engine.take_sent(self.deferred.garbage());
        self.retired.extend(self.engine.take_retired());
        for what in AWAITED {
            let available = self.available(what);
            let line = &mut self.lines[what as usize];
            self.deferred.extend(line.wake(available));
        }
    }
}

impl Shared {
    /// Whether this is the child of a fork: the endpoint is its parent's.
    pub(super) fn is_in_child(&self) -> bool {
        !self.process.is_current()
    }

    /// Unlocks after doing what is due.
    pub(super) fn unlock<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if let Some(ending) = state.engine.take_ending() {
            // First: users' code, which runs when what has left is released, may wait for it.
            drop(state);
            self.end.destroy(ending);
            state = self.state.lock();
        }
        state.settle();
        if state.is_due() {
            deferred::wake_after_unlock(&self.state, state);
        }
    }
}

impl Defers for State {
    type Garbage = OwnedBuffer;
    type Owner = Arc<Shared>;

    fn deferred(&mut self) -> &mut Deferred<OwnedBuffer> {
        &mut self.deferred
    }

    fn is_due(&self) -> bool {
        self.deferred.is_due()
    }

    /// Also wakes those who wait until all has been dropped.
    fn defer_due<'a>(
        _lock: &'a Mutex<Self>,
        mut state: MutexGuard<'a, Self>,
    ) -> MutexGuard<'a, Self> {
        state.settle();
        state
    }

    fn owner(&self) -> Option<Arc<Shared>> {
        self.owner.upgrade()
    }

    fn continue_elsewhere(owner: Arc<Shared>) -> bool {
        threads::try_detach(move || deferred::continue_waking(&owner.state))
    }
}

impl Drop for Shared {
    /// Leaving a multicast group may block, and so may destroying the queue pair and address handles.
    fn drop(&mut self) {
        if self.is_in_child() {
            return;
        }
        let State {
            engine, retired, ..
        } = self.state.get_mut();
        engine.fail(DownReason::Closed);
        if let Some(ending) = engine.take_ending() {
            self.end.destroy(ending);
        }
        retired.extend(engine.take_retired());
        let retired = mem::take(retired);
        if !retired.is_empty() {
            threads::detach(move || drop(retired));
        }
    }
}

/// The end of the queue pair. It has nothing of the device: who waits for it may close that next.
pub(super) struct End {
    is_stuck: AtomicBool,
    destroyed: Destroyed<()>,
}

impl End {
    pub(super) fn new() -> Arc<Self> {
        let destroyed = Destroyed::new();
        // Until it has been destroyed.
        destroyed.start(());
        Arc::new(Self {
            is_stuck: AtomicBool::new(false),
            destroyed,
        })
    }

    /// Has a helper thread destroy the queue pair, and log an error: the call may block.
    fn destroy(self: &Arc<Self>, ending: DatagramEnding) {
        let end = Arc::clone(self);
        threads::detach(move || {
            // A buffer's drop may panic: by then, the queue pair is gone.
            let _panicked = wake::panics(|| {
                if let Err(leak) = ending.destroy() {
                    end.is_stuck.store(true, Ordering::Relaxed);
                    wake::log_error(format_args!("{leak}"));
                }
            });
            end.destroyed.finish(&());
        });
    }

    /// Waits until the queue pair of an endpoint that is down has been destroyed.
    pub(super) async fn wait(&self) -> Result<(), TransportError> {
        let is_over = || (!self.destroyed.is_pending(None)).then_some(());
        let mut waits = self.destroyed.waits_for(None);
        poll_fn(|cx| waits.poll(cx, is_over)).await;
        match self.is_stuck.load(Ordering::Relaxed) {
            true => Err(TransportError::Stuck),
            false => Ok(()),
        }
    }
}

impl CqListener for Shared {
    fn on_event(&self) {
        let mut state = self.state.lock();
        state.is_armed = false;
        state.drive();
        state.arm();
        self.unlock(state);
    }

    fn on_notifier_failed(&self, error: &io::Error) {
        let mut state = self.state.lock();
        if state.engine.down_reason().is_none() && !notifier::has_ended(error) {
            let error = ErrorChain::new(error);
            state.deferred.log(Box::new(format!(
                "the notifier has failed, taking a datagram endpoint down: {error}"
            )));
        }
        state.engine.fail(DownReason::NotifierFailed);
        self.unlock(state);
    }
}

impl DeviceListener for Shared {
    fn since(&self, _: Failed) -> Instant {
        self.state.lock().subscription.since()
    }

    fn on_device_event(&self, event: AsyncEvent) {
        let mut state = self.state.lock();
        if event.event_type() == EventType::GID_CHANGE {
            // The next datagrams look for the address again.
            state.engine.forget_all();
        }
        let has_failed = match Failed::of(event) {
            Some(Failed::Device) => true,
            Some(Failed::Cq(handle)) => handle == state.subscription.cq().handle(),
            Some(Failed::Qp(qp_num)) => qp_num == self.endpoint.qp_num(),
            Some(Failed::Srq(_)) | None => false,
        };
        if has_failed {
            state.engine.fail(DownReason::Event(event.event_type()));
        }
        self.unlock(state);
    }

    fn on_events_ended(&self, reason: DownReason) {
        let mut state = self.state.lock();
        state.engine.fail(reason);
        self.unlock(state);
    }
}

/// Why an endpoint is down whose queue cannot be armed.
fn reason(error: &Error) -> DownReason {
    match error {
        Error::Down(reason) => *reason,
        _ => DownReason::NotifierFailed,
    }
}
