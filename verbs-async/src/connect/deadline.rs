//! Deadlines of connecting, which the notifier of a group's events waits for, and the attempts before them.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use verbs_channel::__private::{Attempt, Attempts, HostAddress};
use verbs_channel::exchange::ExchangeError;

use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::task::sync::Mutex;
use crate::threads;

/// The deadline for one peer, the timeout from which it was computed, and whether this side waits for the peer.
pub(super) struct Deadline {
    pub(super) events: CqEvents,
    pub(super) begun: Instant,
    pub(super) timeout: Duration,
    /// A listener has one timer for all of its peers.
    pub(super) has_timer: bool,
    peer: Mutex<Progress>,
}

#[derive(Clone, Copy)]
pub(super) struct Progress {
    /// The step that a late peer has not taken.
    pub(super) late: &'static str,
    /// The peer has sent its first message.
    pub(super) has_shown: bool,
    /// `None` while this side works: it prepares, or connects its queue pair.
    pub(super) waits_since: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration, events: &CqEvents) -> Self {
        Self::of_listener(timeout, events, None)
    }

    /// The deadline of a peer of a listener, which drops what serves the peer then if it has not taken a step in time.
    pub(super) fn of_listener(
        timeout: Duration,
        events: &CqEvents,
        late: Option<&'static str>,
    ) -> Self {
        let (has_shown, waits_since) = (false, None);
        Self {
            events: events.clone(),
            begun: Instant::now(),
            timeout,
            has_timer: late.is_none(),
            peer: Mutex::new(Progress {
                late: late.unwrap_or("answer"),
                has_shown,
                waits_since,
            }),
        }
    }

    /// The time left until the deadline; zero if it has passed.
    pub(super) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.begun.elapsed())
    }

    /// From now on this side waits for the peer, if it did not before.
    pub(super) fn waits(&self) {
        let mut peer = self.peer.lock();
        peer.waits_since.get_or_insert_with(Instant::now);
    }

    /// The peer has sent its first message, and this side works.
    pub(super) fn peer_has_shown(&self) {
        let mut peer = self.peer.lock();
        (peer.has_shown, peer.waits_since) = (true, None);
    }

    /// The step that is due now.
    #[cfg(feature = "rdmacm")]
    pub(super) fn expects(&self, step: &'static str) {
        self.peer.lock().late = step;
    }

    pub(super) fn progress(&self) -> Progress {
        *self.peer.lock()
    }

    /// Sleeps until then.
    pub(super) async fn sleep_until(&self, until: Instant) -> Result<()> {
        let time = until.saturating_duration_since(Instant::now());
        self.within(time, pending::<()>()).await.map(drop)
    }

    /// The output of a future, or `None` if it takes longer than `time`, which may end before the deadline or after
    /// it. A listener ends the wait at its deadline, so one that would last until then has no timer, and no `None`.
    pub(super) async fn within<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>> {
        // Decided once: the time left shrinks.
        let has_timer = self.has_timer || time < self.left();
        let due = has_timer.then(|| Instant::now() + time.min(LONGEST));
        let (mut future, mut timer) = (pin!(future), Timer::default());
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(Some(value))),
            Poll::Pending => timer.poll(due, &self.events, cx).map_ok(|()| None),
        })
        .await
    }

    /// The addresses of a name, by the deadline.
    pub(super) async fn resolve(&self, address: HostAddress) -> Result<Vec<SocketAddr>> {
        let late = address.lookup(io::ErrorKind::TimedOut.into());
        let found = self.within(self.left(), look_up(address)).await?;
        found.unwrap_or_else(|| Err(late.into()))
    }

    /// Tries the addresses of a peer in turn, and again while it does not listen yet. Each attempt has the time that it
    /// is given, and `answer` returns what is made of it, or records its failure. Returns the address, too.
    pub(super) async fn first_that_answers<F: Future, T>(
        &self,
        address: HostAddress,
        mut attempt: impl FnMut(SocketAddr, Duration) -> F,
        answer: impl Fn(&mut Attempts, F::Output) -> Option<T>,
    ) -> Result<(T, SocketAddr)> {
        let addresses = self.resolve(address).await?;
        let mut attempts = Attempts::new(addresses, self.begun, self.timeout);
        loop {
            match attempts.step().map_err(verbs_channel::Error::from)? {
                Attempt::Pause(until) => self.sleep_until(until).await?,
                Attempt::Try(address, until) => {
                    let time = until.saturating_duration_since(Instant::now());
                    match self.within(time, attempt(address, time)).await? {
                        None => attempts.timed_out(),
                        Some(ended) => {
                            if let Some(answered) = answer(&mut attempts, ended) {
                                return Ok((answered, address));
                            }
                        }
                    }
                }
            }
        }
    }

    /// The output of a future that serves a peer, or an error if it takes longer than the time left.
    pub(super) async fn bound<T>(
        &self,
        late: &'static str,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.bound_with(Duration::ZERO, late, future).await
    }

    /// The same, with time beyond the deadline for a future that has the deadline itself.
    pub(super) async fn bound_with<T>(
        &self,
        grace: Duration,
        late: &'static str,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let time = self.left().saturating_add(grace);
        let met = self.within(time, future).await?;
        met.unwrap_or_else(|| Err(late_by(self.timeout, late)))
    }
}

/// How long the helper threads may take to end an exchange whose deadline has passed.
pub(super) const GRACE: Duration = Duration::from_millis(250);

/// The error of a peer that did not do this in time.
pub(super) fn late_by(timeout: Duration, what: &'static str) -> Error {
    let after = Some(timeout);
    ExchangeError::TimedOut { what, after }.into()
}

/// The addresses of a name, which is resolved on a helper thread.
pub(super) async fn look_up(address: HostAddress) -> Result<Vec<SocketAddr>> {
    match address.known() {
        Some(addresses) => Ok(addresses),
        None => Ok(threads::look_up(move || address.resolve()).await??),
    }
}

/// A timer that a notifier waits for. It can be set for one instant after another.
#[derive(Default)]
pub(super) struct Timer(Option<(Instant, Boxed<io::Result<()>>)>);

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Timer {
    /// Waits until this is due; pending if it is nothing.
    pub(super) fn poll(
        &mut self,
        due: Option<Instant>,
        events: &CqEvents,
        cx: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        // One that was set for an earlier time stays, and its end counts: then it is set anew.
        let set = self.0.take();
        let Some(due) = due else {
            return Poll::Pending;
        };
        let set = set.filter(|(at, _)| *at <= due);
        let set = set.unwrap_or_else(|| (due, Box::pin(expired(due, events.clone()))));
        let (_, timer) = self.0.insert(set);
        let expired = ready!(timer.as_mut().poll(cx));
        self.0 = None;
        let what = "set a deadline for";
        let failed = |source| ExchangeError::Tcp { what, source }.into();
        Poll::Ready(expired.map_err(failed))
    }
}

async fn expired(due: Instant, events: CqEvents) -> io::Result<()> {
    let time = due.saturating_duration_since(Instant::now());
    if time.is_zero() {
        return Ok(());
    }
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let once = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec::try_from(time.min(LONGEST)).unwrap_or_default(),
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    let notifier = events.another_notifier(timer)?;
    while Instant::now() < due {
        notifier.readable().await?;
    }
    Ok(())
}

/// The longest time of a timer.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use soft_verbs::Fabric;
    use verbs_channel::verbs_core;
    use verbs_harness::bounded;

    use super::*;

    /// Only what hangs takes so long.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no timers with descriptors")]
    fn wait_under_a_listener_ends_before_the_deadline_when_less_is_left_than_it_takes() {
        Fabric::real_time(1).host("a").enter(|| {
            let context = verbs_core::Context::first_active().unwrap();
            let events = CqEvents::create_thread(&context).unwrap();
            // When the time has passed, less than that is left.
            let time = Duration::from_secs(1);
            let deadline = Deadline::of_listener(time * 3 / 2, &events, Some("write"));
            let wait = deadline.within(time, pending::<()>());
            let waited = bounded(LONG, || pollster::block_on(wait));
            assert!(waited.unwrap().is_none());
        });
    }
}
