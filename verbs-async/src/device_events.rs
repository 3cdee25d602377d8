//! Device events, awaited: what happens to ports, queue pairs and the device itself.

use std::fmt;
use std::future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use verbs_channel::verbs_core::{self, AsyncEvent};

use crate::notifier::ThreadNotifier;
use crate::{CqNotifier, Error, Result};

/// The events of a device, one after the other (`ibv_get_async_event`).
///
/// A [`Stream`] too. Each event goes to one taker: one such stream per context. The card's fatal
/// ones end nothing by themselves: who waits for an operation learns of them here, or by the
/// operation's end.
///
/// ```no_run
/// # async fn example() -> verbs_async::Result<()> {
/// use verbs_async::DeviceEvents;
/// use verbs_async::verbs_channel::verbs_core::{Context, EventType};
///
/// let context = Context::first_active()?;
/// let mut events = DeviceEvents::create_thread(&context)?;
/// while let Some(event) = events.next().await {
///     match event?.event_type() {
///         EventType::DEVICE_FATAL => break,
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_get_async_event")]
pub struct DeviceEvents {
    context: verbs_core::Context,
    notifier: Box<dyn CqNotifier>,
    ended: bool,
}

impl DeviceEvents {
    /// Takes the events of `context`, whose [`async_fd`](verbs_core::Context::async_fd) `notifier`
    /// watches.
    pub fn new(context: &verbs_core::Context, notifier: impl CqNotifier + 'static) -> Self {
        Self {
            context: context.clone(),
            notifier: Box::new(notifier),
            ended: false,
        }
    }

    /// Takes the events of `context`, watched by the tokio runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Those of [`TokioNotifier::new`](crate::notifier::TokioNotifier::new).
    #[cfg(feature = "tokio")]
    pub fn create_tokio(context: &verbs_core::Context) -> Result<Self> {
        let notifier = crate::notifier::TokioNotifier::new(context.async_fd())?;
        Ok(Self::new(context, notifier))
    }

    /// Takes the events of `context`, watched by async-io: for smol and any other executor.
    ///
    /// # Errors
    ///
    /// The errno.
    #[cfg(feature = "async-io")]
    pub fn create_async_io(context: &verbs_core::Context) -> Result<Self> {
        let notifier = crate::notifier::AsyncIoNotifier::new(context.async_fd())?;
        Ok(Self::new(context, notifier))
    }

    /// Takes the events of `context`, watched by a thread of this crate's: for any executor.
    ///
    /// # Errors
    ///
    /// The errno, if the thread can't be started.
    pub fn create_thread(context: &verbs_core::Context) -> Result<Self> {
        let notifier = ThreadNotifier::new(context.async_fd())?;
        Ok(Self::new(context, notifier))
    }

    /// Waits for the next event. `None` after an error: a device that is gone, or a notifier that
    /// no longer watches it, has no more.
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<AsyncEvent>> {
        future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// What [`next`](Self::next) does, by hand.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncEvent>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.poll_event(cx));
        self.ended = next.is_err();
        Poll::Ready(Some(next))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<AsyncEvent>> {
        loop {
            // The notifier tells of what comes after this found nothing.
            let event = self.context.get_async_event(Some(Duration::ZERO));
            if let Some(event) = event.map_err(Error::from).transpose() {
                return Poll::Ready(event);
            }
            ready!(self.notifier.poll_readable(cx))?;
        }
    }
}

impl Stream for DeviceEvents {
    type Item = Result<AsyncEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(self.get_mut(), cx)
    }
}

impl fmt::Debug for DeviceEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEvents")
            .field("context", &self.context)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
