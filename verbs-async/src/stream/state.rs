//! State shared by the halves of a stream, behind a lock, and how it is driven.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use verbs_channel::OwnedBuffer;

use super::half::Half;
use super::io_loop::{Remains, Segment, StreamState};
use super::tasks::{Event, Tasks};
use super::wire::Settings;
use crate::channel::AsyncChannel;
use crate::task::sync::Mutex;
use crate::task::{deferred, wake};
use crate::threads;

/// The state that the halves of a stream share. It lingers after both are dropped.
pub(super) struct SharedStream {
    state: Mutex<StreamState>,
    pub(super) tasks: Tasks,
    group: Arc<crate::engine::SharedEngine>,
    peer_addr: Option<SocketAddr>,
}

impl SharedStream {
    pub(super) fn must_yield(&self, cx: &Context<'_>) -> bool {
        self.group.must_yield(cx)
    }

    pub(super) fn new(
        channel: AsyncChannel,
        ours: Settings,
        blocks: Vec<OwnedBuffer>,
    ) -> Arc<Self> {
        let is_urgent = Arc::<AtomicBool>::default();
        let tasks = Tasks::new(Arc::clone(&is_urgent));
        let shared = Arc::new_cyclic(|shared| Self {
            group: Arc::clone(channel.group()),
            peer_addr: channel.peer_addr(),
            tasks,
            state: Mutex::new(StreamState::new(
                channel,
                ours,
                blocks,
                is_urgent,
                |event| {
                    let stream = Weak::clone(shared);
                    Waker::from(Arc::new(Signal { stream, event }))
                },
            )),
        });
        // From here on the oldest receive has a waker.
        shared.run(StreamState::drive);
        shared
    }

    /// Whether this is the child of a fork: the stream is its parent's.
    pub(super) fn is_in_child(&self) -> bool {
        self.group.driver.is_in_child()
    }

    /// Uses the state. Then wakes, without the lock, tasks of other operations that were found
    /// completed.
    pub(super) fn run<T>(&self, f: impl FnOnce(&mut StreamState) -> T) -> T {
        deferred::hold(|| f(&mut self.state.lock()))
    }

    /// The same, and wakes the tasks of the halves for which something has changed.
    fn run_and_wake<T>(&self, f: impl FnOnce(&mut StreamState) -> T) -> T {
        let (value, changed) = self.run(|state| (f(state), state.take_changed()));
        self.tasks.wake(changed);
        value
    }

    /// Polls for the task of one half.
    pub(super) fn poll<T>(
        &self,
        half: Half,
        cx: &Context<'_>,
        f: impl FnOnce(&mut StreamState) -> Poll<T>,
    ) -> Poll<T> {
        self.tasks.begin_poll(half, cx.waker());
        let (polled, changed) = self.run(|state| {
            let polled = f(state);
            (polled, state.take_changed())
        });
        // This task itself gets the returned value.
        self.tasks.wake(changed.without(half));
        let ready = polled.is_ready().then_some(half);
        self.tasks.end_poll(ready, Some(cx.waker()));
        polled
    }

    /// The next bytes for the reader, without waiting. Takes back those that it has read.
    pub(super) fn next_segment(
        &self,
        read: Option<Segment>,
        waker: Option<&Waker>,
    ) -> Option<Segment> {
        self.tasks.begin_call();
        let next = self.run_and_wake(|state| state.next_segment(read));
        self.tasks.end_poll(None, waker);
        next
    }

    /// Drives the stream without a task's poll.
    pub(super) fn drive(self: &Arc<Self>) {
        let remains = self.run_and_wake(|state| {
            state.drive();
            state.take_if_over()
        });
        self.finish(remains);
    }

    /// Drops a half. After the second, the stream lingers if it has something to send.
    pub(super) fn drop_half(self: &Arc<Self>, half: Half, unread: bool) {
        self.tasks.remove(half);
        let (remains, linger) = self.run_and_wake(|state| {
            state.drop_half(half, unread, self.tasks.is_undivided());
            let remains = state.take_if_over();
            (remains, state.is_dropped().then_some(state.linger))
        });
        self.finish(remains);
        match linger {
            None => {}
            Some(Duration::ZERO) => self.abort(),
            Some(linger) => self.linger(linger),
        }
    }

    /// Keeps the dropped stream until it is over, for this time at most.
    fn linger(self: &Arc<Self>, linger: Duration) {
        let stream = Arc::clone(self);
        let now = Instant::now();
        let until = now.checked_add(linger).unwrap_or_else(|| now + FOREVER);
        let Some(key) = threads::at(until, move || stream.abort()) else {
            wake::log_error(format_args!(
                "a stream that was dropped is aborted: no helper thread can be started"
            ));
            self.abort();
            return;
        };
        // It may have ended by now.
        let is_left = self.run(|state| {
            state.linger_key = Some(key);
            state.is_dropped()
        });
        if !is_left {
            threads::withdraw(key);
        }
    }

    /// Ends the stream at once. The peer gets a RESET if that can be sent without waiting.
    pub(super) fn abort(&self) {
        let remains = self.run(|state| {
            state.send_reset();
            state.take()
        });
        drop(remains);
    }

    pub(super) const fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer_addr
    }

    /// Whether nothing more can be sent.
    pub(super) fn is_down(&self) -> bool {
        self.tasks.begin_call();
        let is_down = self.run_and_wake(|state| {
            state.drive();
            state.is_down()
        });
        self.tasks.end_poll(None, None);
        is_down
    }

    fn finish(&self, remains: Option<Remains>) {
        if let Some(remains) = remains {
            let key = self.run(|state| state.linger_key.take());
            drop(remains);
            if let Some(key) = key {
                threads::withdraw(key);
            }
        }
    }
}

/// The waker of a stream's operations.
struct Signal {
    stream: Weak<SharedStream>,
    event: Event,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(stream) = self.stream.upgrade() else {
            return;
        };
        let Some(at) = stream.tasks.on_event(self.event) else {
            return;
        };
        let weak = Weak::clone(&self.stream);
        let drives = move || {
            if let Some(stream) = Weak::upgrade(&weak) {
                stream.tasks.background_drive_begins();
                stream.drive();
            }
        };
        if threads::at(at, drives).is_none() {
            // Now and here: what a write has accepted is sent though there is no thread.
            stream.tasks.background_drive_begins();
            stream.drive();
        }
    }
}

impl fmt::Debug for SharedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ByteStream");
        debug.field("peer_addr", &self.peer_addr);
        if let Some(state) = self.state.try_lock() {
            debug.field("channel", &state.channel());
        }
        debug.finish_non_exhaustive()
    }
}

/// A linger time beyond the range of the clock.
const FOREVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);
