//! Deadlines of connecting, which the notifier of a group's events waits for.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use verbs_channel::exchange::ExchangeError;

use crate::error::{Error, Result};
use crate::events::CqEvents;

/// A deadline, and the timeout from which it was computed.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    events: CqEvents,
    begun: Instant,
    timeout: Duration,
    // A listener has one timer for all of its peers.
    has_timer: bool,
}

impl Deadline {
    pub(super) fn after(timeout: Duration, events: &CqEvents) -> Self {
        Self {
            events: events.clone(),
            begun: Instant::now(),
            timeout,
            has_timer: true,
        }
    }

    /// The deadline of a peer of a listener, which drops what serves the peer then.
    pub(super) fn of_listener(timeout: Duration, events: &CqEvents) -> Self {
        Self {
            has_timer: false,
            ..Self::after(timeout, events)
        }
    }

    /// When the time began.
    pub(super) const fn begun(&self) -> Instant {
        self.begun
    }

    pub(super) const fn events(&self) -> &CqEvents {
        &self.events
    }

    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The time left until the deadline; zero if it has passed.
    pub(super) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.begun.elapsed())
    }

    /// Sleeps until then.
    pub(super) async fn sleep_until(&self, until: Instant) -> Result<()> {
        let time = until.saturating_duration_since(Instant::now());
        let never = std::future::pending::<()>();
        self.within(time, never).await.map(drop)
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
        let mut future = pin!(future);
        let mut timer = None;
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(Some(value)));
            }
            if !has_timer {
                return Poll::Pending;
            }
            let timer = match &mut timer {
                Some(timer) => timer,
                none => none.insert(Timer::new(time, &self.events).map_err(no_timer)?),
            };
            timer.poll(cx).map_ok(|()| None).map_err(no_timer)
        })
        .await
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

/// The error of a peer that did not do this in time.
pub(super) fn late_by(timeout: Duration, what: &'static str) -> Error {
    let after = Some(timeout);
    ExchangeError::TimedOut { what, after }.into()
}

/// A timer that a notifier waits for.
pub(super) struct Timer(Pin<Box<dyn Future<Output = io::Result<()>> + Send>>);

impl Timer {
    pub(super) fn new(time: Duration, events: &CqEvents) -> io::Result<Self> {
        let at = Instant::now().checked_add(time);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // A timer of zero would never expire.
        let time = time.clamp(Duration::from_nanos(1), LONGEST);
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(time).unwrap_or_default(),
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
        let notifier = events.another_notifier(timer)?;
        Ok(Self(Box::pin(async move {
            while at.is_none_or(|at| Instant::now() < at) {
                notifier.readable().await?;
            }
            Ok(())
        })))
    }

    pub(super) fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll(cx)
    }
}

/// A timer for the first of many things that are due.
#[derive(Default)]
pub(super) struct FirstDue(Option<(Instant, Timer)>);

impl FirstDue {
    /// Waits until the first is due; pending if there is none.
    pub(super) fn poll(
        &mut self,
        due: Option<Instant>,
        events: &CqEvents,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Result<()>> {
        let Some(due) = due else {
            self.0 = None;
            return Poll::Pending;
        };
        // A timer that is a little early is started anew.
        let set = self.0.take().filter(|(at, _)| *at <= due);
        let (_, timer) = self.0.insert(match set {
            Some(set) => set,
            None => {
                let time = due.saturating_duration_since(Instant::now());
                (
                    due,
                    Timer::new(time.max(SHORTEST), events).map_err(no_timer)?,
                )
            }
        });
        let expired = ready!(timer.poll(cx));
        self.0 = None;
        Poll::Ready(expired.map_err(no_timer))
    }
}

/// The error of a timer that cannot be started, or has failed.
fn no_timer(source: io::Error) -> Error {
    let what = "set a deadline for";
    ExchangeError::Tcp { what, source }.into()
}

/// The shortest time of a timer that is started anew: so that one that is early does not spin.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest time of a timer.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use std::future::pending;

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
            let deadline = Deadline::of_listener(time * 3 / 2, &events);
            let wait = deadline.within(time, pending::<()>());
            let waited = bounded(LONG, || pollster::block_on(wait));
            assert!(waited.unwrap().is_none());
        });
    }
}
