//! What the halves of a stream share: its state behind a lock, and who drives it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use verbs_channel::OwnedBuffer;

use super::flow::{Remains, Segment, State};
use super::keeper::{self, Kept};
use super::tasks::{Event, Half, Tasks};
use super::wire::Settings;
use crate::channel::AsyncChannel;
use crate::sync::Mutex;
use crate::wake;

/// What the halves of a stream share; what is left of it lingers when they are dropped.
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) tasks: Tasks,
    group: Arc<crate::shared::Shared>,
    peer_addr: Option<SocketAddr>,
}

impl Shared {
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
            state: Mutex::new(State::new(channel, ours, blocks, is_urgent, |event| {
                let stream = Weak::clone(shared);
                Waker::from(Arc::new(Signal { stream, event }))
            })),
        });
        // From here on it is known when something arrives.
        shared.run(State::drive);
        shared
    }

    /// Does something to the state; then wakes, where nothing is locked, those of other operations
    /// that were found to be done.
    pub(super) fn run<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        let held = wake::hold();
        let mut state = self.state.lock();
        let value = what(&mut state);
        drop(state);
        drop(held);
        self.group.driver.settle();
        value
    }

    /// Polls for the task of one half.
    pub(super) fn poll<T>(
        &self,
        half: Half,
        cx: &Context<'_>,
        what: impl FnOnce(&mut State) -> Poll<T>,
    ) -> Poll<T> {
        self.tasks.begin(half, cx.waker());
        let (polled, mut found) = self.run(|state| {
            let polled = what(state);
            (polled, state.found())
        });
        // What concerns the half itself is in what it returns.
        found[half as usize] = false;
        self.tasks.found(found);
        let ready = polled.is_ready().then_some(half);
        self.tasks.end(ready, Some(cx.waker()));
        polled
    }

    /// The next bytes for the reader, without waiting; those that it is done with come back.
    pub(super) fn next(&self, read: Option<Segment>, waker: Option<&Waker>) -> Option<Segment> {
        self.tasks.enter();
        let (next, found) = self.run(|state| (state.next(read), state.found()));
        self.tasks.found(found);
        self.tasks.end(None, waker);
        next
    }

    /// Drives it for nobody's poll.
    pub(super) fn drive(self: &Arc<Self>) {
        let (found, ended) = self.run(|state| {
            state.drive();
            (state.found(), state.take_if_over())
        });
        self.tasks.found(found);
        self.bury(ended);
    }

    /// A half is dropped; with the second the stream is, and lingers if it is not over.
    pub(super) fn let_go(self: &Arc<Self>, half: Half, unread: bool) {
        self.tasks.forget(half);
        let (found, ended, linger) = self.run(|state| {
            state.let_go(half, unread, self.tasks.is_undivided());
            let ended = state.take_if_over();
            (
                state.found(),
                ended,
                state.is_dropped().then_some(state.linger),
            )
        });
        self.tasks.found(found);
        self.bury(ended);
        match linger {
            None => {}
            Some(Duration::ZERO) => self.abort(),
            Some(linger) => self.linger(linger),
        }
    }

    /// Has the keeper drive what was dropped, for so long at most.
    fn linger(self: &Arc<Self>, linger: Duration) {
        let kept: Arc<dyn Kept> = Arc::<Self>::clone(self);
        let now = Instant::now();
        let until = now.checked_add(linger).unwrap_or_else(|| now + FOREVER);
        let Some(key) = keeper::linger(kept, until) else {
            self.abort();
            return;
        };
        // It may be over by now.
        let is_left = self.run(|state| {
            state.lingers = Some(key);
            state.is_dropped()
        });
        if !is_left {
            keeper::release(key);
        }
    }

    /// Ends it at once; the peer learns of it if that can be had without waiting.
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

    /// Whether nothing can be sent any more.
    pub(super) fn is_down(&self) -> bool {
        self.tasks.enter();
        let (is_down, found) = self.run(|state| {
            state.drive();
            (state.is_down(), state.found())
        });
        self.tasks.found(found);
        self.tasks.end(None, None);
        is_down
    }

    fn bury(&self, ended: Option<Remains>) {
        if let Some(ended) = ended {
            let lingered = self.run(|state| state.lingers.take());
            drop(ended);
            if let Some(lingered) = lingered {
                keeper::release(lingered);
            }
        }
    }
}

impl Kept for Shared {
    fn drive(self: Arc<Self>) {
        self.tasks.kicked();
        Self::drive(&self);
    }

    fn expire(self: Arc<Self>) {
        self.abort();
    }
}

/// Wakes the tasks of a stream.
struct Signal {
    stream: Weak<Shared>,
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
        if let Some(at) = stream.tasks.happened(self.event) {
            let weak: Weak<Shared> = Weak::clone(&self.stream);
            if !keeper::drive(weak, at) {
                stream.tasks.kicked();
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Stream");
        if let Some(state) = self.state.try_lock() {
            debug
                .field("channel", &state.channel())
                .field("protocol", state.protocol());
        }
        debug.finish_non_exhaustive()
    }
}

/// What nobody lives to see the end of.
const FOREVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);
