//! Deadlines of connecting, with the timers of either runtime.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
#[cfg(feature = "tokio")]
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

#[cfg(feature = "rdmacm")]
use rustix::event::Timespec;
#[cfg(feature = "rdmacm")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use verbs_channel::exchange::ExchangeError;

use super::awaited::Awaited;
use super::failure::{exchange_error, tcp, with_peer};
use crate::error::{Error, Result};
#[cfg(feature = "rdmacm")]
use crate::events::CqEvents;

/// A timer of a runtime. It fails if the runtime ends.
pub(super) type Sleep = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Starts a timer.
pub(super) type Start = Arc<dyn Fn(Duration) -> io::Result<Sleep> + Send + Sync>;

/// Starts timers of tokio.
#[cfg(feature = "tokio")]
pub(super) fn tokio() -> Start {
    Arc::new(|time| {
        // There is no way to query whether timers are enabled, and tokio panics if they are not.
        let sleep = std::panic::catch_unwind(|| tokio::time::sleep(time));
        let none = |_panic| {
            io::Error::other(
                "timers are not enabled in this tokio runtime, see Builder::enable_time",
            )
        };
        let mut sleep = Box::pin(sleep.map_err(none)?);
        Ok(Box::pin(poll_fn(move |cx| {
            // As above: tokio panics if its runtime has ended meanwhile.
            let polled = std::panic::catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(cx)));
            let ended = |_panic| io::Error::other("the tokio runtime of its timer was shut down");
            polled.map_or_else(
                |panic| Poll::Ready(Err(ended(panic))),
                |polled| polled.map(Ok),
            )
        })))
    })
}

/// Starts timers of async-io.
#[cfg(feature = "async-io")]
pub(super) fn async_io() -> Start {
    Arc::new(|time| {
        let timer = async_io::Timer::after(time);
        Ok(Box::pin(async move {
            timer.await;
            Ok(())
        }))
    })
}

/// Starts timers that the notifier of these events waits for.
#[cfg(feature = "rdmacm")]
pub(super) fn of_events(events: &CqEvents) -> Start {
    let events = events.clone();
    Arc::new(move |time| {
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
        Ok(Box::pin(async move {
            while at.is_none_or(|at| Instant::now() < at) {
                notifier.readable().await?;
            }
            Ok(())
        }))
    })
}

/// A deadline, and the timeout from which it was computed.
#[derive(Clone)]
pub(super) struct Deadline {
    start: Start,
    timeout: Duration,
    // `None` if it is beyond the range of the clock.
    at: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration, start: &Start) -> Self {
        let start = Arc::clone(start);
        Self {
            start,
            timeout,
            at: Instant::now().checked_add(timeout),
        }
    }

    #[cfg(feature = "rdmacm")]
    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The time left until the deadline; `None` if it has passed.
    pub(super) fn left(&self) -> Option<Duration> {
        let Some(at) = self.at else {
            return Some(LONGEST);
        };
        let left = at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Sleeps for `time`, but not beyond the deadline.
    pub(super) async fn sleep(&self, time: Duration) -> Result<()> {
        let time = time.min(self.left().unwrap_or_default());
        self.timer(time)?.await.map_err(no_timer)
    }

    fn timer(&self, time: Duration) -> Result<Sleep> {
        start(&self.start, time)
    }

    /// The output of a future, or `None` if it takes longer than one `of`-th of the time left.
    pub(super) async fn share<T>(
        &self,
        of: usize,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>> {
        let left = self.left().unwrap_or_default();
        self.within(left / u32::try_from(of).unwrap_or(u32::MAX).max(1), future)
            .await
    }

    /// The output of a future, or `None` if it takes longer than this, whenever the deadline is.
    pub(super) async fn within<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>> {
        let mut sleep = self.timer(time)?;
        let mut future = pin!(future);
        let ended = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(Some(value))),
            Poll::Pending => sleep.as_mut().poll(cx).map_ok(|()| None),
        });
        ended.await.map_err(no_timer)
    }

    /// The output of a future that serves a peer, or an error if it takes longer than the time
    /// left: with what the peer did not do.
    pub(super) async fn bound<T>(
        &self,
        awaited: &Awaited,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let met = self.share(1, future).await?;
        let (peer, late) = awaited.get();
        met.unwrap_or_else(|| Err(self.late(late)))
            .map_err(|error| with_peer(error, Some(peer)))
    }

    /// The error of a peer that did not answer in time.
    pub(super) fn timed_out(&self) -> Error {
        self.late("answer")
    }

    /// The error of a peer that did not do this in time.
    pub(super) fn late(&self, what: &'static str) -> Error {
        let after = Some(self.timeout);
        exchange_error(ExchangeError::TimedOut { what, after })
    }
}

/// Starts a timer of a runtime.
pub(super) fn start(start: &Start, time: Duration) -> Result<Sleep> {
    start(time).map_err(no_timer)
}

/// The error of a timer that cannot be started, or has failed.
pub(super) fn no_timer(source: io::Error) -> Error {
    tcp("set a deadline for", source)
}

/// Connects to the first of these addresses that answers. If one of them refuses the connection, as
/// the peer does not listen yet, all are tried again until the deadline.
pub(super) async fn reach<S, C: Future<Output = Result<S>>>(
    addresses: &[SocketAddr],
    deadline: &Deadline,
    connect: impl Fn(SocketAddr) -> C,
) -> Result<(S, SocketAddr)> {
    let mut last = exchange_error(ExchangeError::NoAddress);
    let mut was_refused = false;
    loop {
        let mut refused = false;
        for (address, untried) in addresses.iter().zip((1..=addresses.len()).rev()) {
            // An address that does not answer leaves time for the others.
            let error = match deadline.share(untried, connect(*address)).await? {
                Some(Ok(stream)) => return Ok((stream, *address)),
                Some(Err(error)) => {
                    refused |= is_refusal(&error);
                    was_refused |= refused;
                    error
                }
                // The refusal is more specific than the timeout of a retry.
                None if was_refused => continue,
                None => deadline.timed_out(),
            };
            last = with_peer(error, Some(*address));
        }
        if !refused || deadline.left().is_none() {
            return Err(tried_for(deadline.timeout, last));
        }
        deadline.sleep(RETRY).await?;
    }
}

/// Whether the connection was refused: no process listens there.
fn is_refusal(error: &Error) -> bool {
    let Error::Channel(verbs_channel::Error::Exchange(failure)) = error else {
        return false;
    };
    matches!(failure.error, ExchangeError::NotListening { .. })
}

/// Adds the timeout to the error of connections that were refused until then.
fn tried_for(timeout: Duration, mut error: Error) -> Error {
    if let Error::Channel(verbs_channel::Error::Exchange(failure)) = &mut error
        && let ExchangeError::NotListening { after, .. } = &mut failure.error
    {
        *after = Some(timeout);
    }
    error
}

/// The pause between two attempts.
const RETRY: Duration = Duration::from_millis(10);

/// The time left for a deadline beyond the range of the clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::{pending, ready};
    use std::net::Ipv4Addr;
    #[cfg(feature = "tokio")]
    use std::task::{Context, Waker};

    use super::super::failure::not_connected;
    use super::*;

    thread_local! {
        static TIMERS: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
    }

    /// Timers that have run out as soon as they are made.
    fn at_once(time: Duration) -> io::Result<Sleep> {
        TIMERS.with_borrow_mut(|timers| timers.push(time));
        Ok(Box::pin(ready(Ok(()))))
    }

    fn timers() -> Vec<Duration> {
        TIMERS.take()
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn runtime_without_timers_is_named() {
        let none = |_time: Duration| Err(io::Error::other("timers are not enabled"));
        let start: Start = Arc::new(none);
        let deadline = Deadline::after(HOUR, &start);
        let error = pollster::block_on(deadline.sleep(HOUR)).unwrap_err();
        assert_eq!(error.to_string(), "cannot set a deadline for the peer");
        let shared = pollster::block_on(deadline.share(1, pending::<()>()));
        let chain = format!("{:?}", shared.unwrap_err());
        assert!(
            chain.starts_with("cannot set a deadline for the peer: timers are not enabled ["),
            "{chain}"
        );
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn runtime_that_ends_before_the_deadline_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let deadline = Deadline::after(HOUR, &tokio());
        let mut shared = pin!(deadline.share(1, pending::<()>()));
        let mut pause = pin!(deadline.sleep(HOUR));
        let mut cx = Context::from_waker(Waker::noop());
        {
            let _inside = runtime.enter();
            assert!(shared.as_mut().poll(&mut cx).is_pending());
            assert!(pause.as_mut().poll(&mut cx).is_pending());
        }
        drop(runtime);
        let errors = [
            pollster::block_on(shared).unwrap_err(),
            pollster::block_on(pause).unwrap_err(),
        ];
        for error in errors {
            let chain = format!("{error:?}");
            assert!(chain.contains("was shut down"), "{chain}");
        }
    }

    #[test]
    fn no_timer_is_longer_than_the_time_left() {
        let start: Start = Arc::new(at_once);
        let deadline = Deadline::after(HOUR, &start);
        pollster::block_on(deadline.sleep(2 * HOUR)).unwrap();
        let shared = pollster::block_on(deadline.share(4, pending::<()>()));
        assert!(shared.unwrap().is_none());
        let timers = timers();
        assert!(timers[0] <= HOUR && timers[1] <= HOUR / 4, "{timers:?}");
    }

    /// Connects to two addresses, of which the first fails like this. Returns how often each was tried.
    fn tries(kind: io::ErrorKind, tries_of_second: usize) -> (Result<SocketAddr>, [usize; 2]) {
        let addresses = [1, 2].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let tried = [const { Cell::new(0) }; 2];
        let connect = |address: SocketAddr| {
            let at = usize::from(address.port() - 1);
            tried[at].set(tried[at].get() + 1);
            let is_there = at == 1 && tried[at].get() == tries_of_second;
            let failure = || not_connected(kind.into());
            ready(is_there.then_some(()).ok_or_else(failure))
        };
        let start: Start = Arc::new(at_once);
        let deadline = Deadline::after(HOUR, &start);
        let reached = pollster::block_on(reach(&addresses, &deadline, connect));
        (
            reached.map(|((), address)| address),
            tried.map(Cell::into_inner),
        )
    }

    #[test]
    fn only_refused_connections_are_retried_after_a_pause() {
        let (reached, tried) = tries(io::ErrorKind::ConnectionRefused, 3);
        assert_eq!((reached.unwrap().port(), tried), (2, [3, 3]));
        let pauses = timers().into_iter().filter(|timer| *timer == RETRY);
        assert_eq!(pauses.count(), 2);
        let (reached, tried) = tries(io::ErrorKind::HostUnreachable, 3);
        assert!(reached.is_err());
        assert_eq!(tried, [1, 1]);
        assert!(!timers().contains(&RETRY));
    }
}
