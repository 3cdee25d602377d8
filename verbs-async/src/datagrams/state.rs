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
use std::time::{Duration, Instant};

use verbs_channel::__private::{DatagramEnding, DatagramEngine};
use verbs_channel::error::CloseError;
use verbs_channel::verbs_core::__private::Process;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::device::{AsyncEvent, EventType};
use verbs_channel::verbs_core::error::ErrorChain;
use verbs_channel::verbs_core::path::{AddressHandle, DatagramEndpoint};
use verbs_channel::{BufferPool, DownReason, OwnedBuffer};

use super::wait_queue::WaitQueue;
use crate::device_events::DeviceWatcher;
use crate::engine::destroying::Destroyed;
use crate::events::CqEvents;
use crate::events::watcher::{DeviceListener, Failed};
use crate::events::{CqListener, Subscription};
use crate::notifier;
use crate::task::deferred::{Deferred, Defers, Lock, Owner};
use crate::task::sync::Mutex;
use crate::task::wake;
use crate::threads;

pub(super) struct Shared {
    pub(super) process: Process,
    pub(super) state: Lock<State>,
    /// Pool of the receives' blocks.
    pub(super) pool: BufferPool,
    pub(super) pd: ProtectionDomain,
    pub(super) endpoint: DatagramEndpoint,
    pub(super) max_payload: u32,
    pub(super) port_num: u8,
    pub(super) events: CqEvents,
    pub(super) end: Arc<End>,
    /// Held by a helper thread while it attaches or detaches the queue pair, and no longer. It is taken before
    /// the state's.
    pub(super) changes: Mutex<()>,
    pub(super) device: Arc<DeviceWatcher>,
}

pub(super) struct State {
    // First: the registration is dropped before the queue.
    subscription: Subscription,
    pub(super) engine: DatagramEngine,
    is_armed: bool,
    /// The queue was not empty when it was polled last. Whoever unlocks goes on, and a helper thread after that.
    is_behind: bool,
    /// The queue pair that has ended, until it is destroyed without the lock.
    ending: Option<DatagramEnding>,
    end: Arc<End>,
    /// Tasks behind those that were woken are woken at a time, unless they come.
    hands_on: bool,
    lines: [WaitQueue; 3],
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
        end: Arc<End>,
        owner: Weak<Shared>,
    ) -> Self {
        Self {
            subscription,
            engine,
            is_armed: false,
            is_behind: false,
            ending: None,
            end,
            hands_on: false,
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

    const fn line(&mut self, what: Awaited) -> &mut WaitQueue {
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

    /// Polls until the queue is empty, a limited number of times: receives that are posted again may be filled at
    /// once. Wakes whom there is something for.
    pub(super) fn drive(&mut self) {
        self.is_behind = !self.engine.drive();
        self.settle();
    }

    /// Arms the queue if tasks sleep, and polls once more.
    pub(super) fn arm(&mut self) {
        let has_sleepers = self.lines.iter().any(|line| !line.is_empty());
        let is_over = self.engine.down_reason().is_some();
        if self.is_armed || self.is_behind || !has_sleepers || is_over {
            return;
        }
        match self.subscription.arm() {
            Ok(()) => self.is_armed = true,
            Err(_) => self.engine.fail(DownReason::NotifierFailed),
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
        if self.ending.is_none() {
            self.ending = self.engine.take_ending();
        }
        self.hand_on();
    }

    /// Has those woken that sleep behind tasks which were woken for something and do not come.
    fn hand_on(&mut self) {
        let is_late = |what: &Awaited| {
            let line = &self.lines[*what as usize];
            line.has_woken() && !line.is_empty() && self.available(*what) > 0
        };
        if self.hands_on || !AWAITED.iter().any(is_late) {
            return;
        }
        let owner = Weak::clone(&self.owner);
        let hands_on = move || {
            if let Some(shared) = owner.upgrade() {
                let mut state = shared.state.lock();
                state.hands_on = false;
                state.lines.iter_mut().for_each(WaitQueue::forget_woken);
            }
        };
        let at = Instant::now() + HAND_ON;
        self.hands_on = threads::at(at, hands_on).is_some();
    }
}

/// How long a task that was woken may take before the next is woken, too.
const HAND_ON: Duration = Duration::from_millis(10);

impl Shared {
    /// Whether this is the child of a fork: the endpoint is its parent's.
    pub(super) fn is_in_child(&self) -> bool {
        !self.process.is_current()
    }
}

impl Defers for State {
    type Garbage = OwnedBuffer;

    fn deferred(&mut self) -> &mut Deferred<OwnedBuffer> {
        &mut self.deferred
    }

    fn before_unlock(&mut self) {
        self.settle();
    }

    fn is_due(&self) -> bool {
        self.deferred.is_due() || self.is_behind || self.ending.is_some()
    }

    /// Also wakes those who wait until all has been dropped.
    fn defer_due(&mut self) {
        if self.is_behind {
            self.drive();
            self.arm();
        }
        self.settle();
    }

    fn take_ending(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        let (end, ending) = (Arc::clone(&self.end), self.ending.take()?);
        Some(Box::new(move || end.destroy(ending)))
    }

    fn owner(&self) -> Option<Arc<dyn Owner>> {
        let owner: Arc<dyn Owner> = self.owner.upgrade()?;
        Some(owner)
    }
}

impl Owner for Shared {
    fn run_due(&self) {
        self.state.run_due();
    }

    fn settle_elsewhere(self: Arc<Self>) -> bool {
        threads::try_detach(move || self.state.settle())
    }
}

impl Drop for Shared {
    /// Leaving a multicast group may block, and so may destroying the queue pair and address handles.
    fn drop(&mut self) {
        if self.is_in_child() {
            return;
        }
        let State {
            engine,
            retired,
            ending,
            ..
        } = self.state.get_mut();
        engine.fail(DownReason::Closed);
        for ending in ending.take().into_iter().chain(engine.take_ending()) {
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
    pub(super) async fn wait(&self) -> Result<(), CloseError> {
        let is_over = || (!self.destroyed.is_pending(None)).then_some(());
        let mut waits = self.destroyed.waits_for(None);
        poll_fn(|cx| waits.poll(cx, is_over)).await;
        match self.is_stuck.load(Ordering::Relaxed) {
            true => Err(CloseError::Stuck),
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
    }

    fn on_notifier_failed(&self, error: &io::Error) {
        let mut state = self.state.lock();
        if state.engine.down_reason().is_none() && !notifier::has_ended(error) {
            let error = ErrorChain::new(error);
            let line = format!("the notifier has failed, taking a datagram endpoint down: {error}");
            let logs = move || wake::log_error(format_args!("{line}"));
            state.deferred.call(logs);
        }
        state.engine.fail(DownReason::NotifierFailed);
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
    }

    fn on_events_ended(&self, reason: DownReason) {
        let mut state = self.state.lock();
        state.engine.fail(reason);
    }
}
