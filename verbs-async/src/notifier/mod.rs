//! What tells that a descriptor is readable: the one thing that async code needs of a runtime.
//!
//! | notifier | needs | wakes from |
//! |---|---|---|
//! | [`TokioNotifier`] (feature `tokio`) | to be made inside a tokio runtime that has I/O enabled | that runtime |
//! | [`AsyncIoNotifier`] (feature `async-io`) | nothing: smol and any other executor will do | async-io's reactor |
//! | [`ThreadNotifier`] | nothing at all | a thread that all of them share |
//!
//! # One more
//!
//! A notifier of your own, for an event loop that is none of these, does all of this:
//!
//! - It owns its descriptor, by a duplicate (`try_clone_to_owned`) or by what keeps it open. A
//!   duplicate is as readable as the original.
//! - `Ready(Ok(()))` says that the descriptor may be readable, and that this has been noted as told
//!   *before* the call returns. Whoever then reads until nothing is left misses nothing: what comes
//!   after the return is told again. Ready without anything there is allowed.
//! - `Pending` says that the waker of the last call is going to be woken: when the descriptor becomes
//!   readable, or is already, or when nobody watches it any more. One waker is enough.
//! - Once nobody watches any more, every call returns an error; none panics, none is pending.
//! - It wakes with no lock held that `poll_readable` takes. A waker may call `poll_readable`, on the
//!   same notifier, from within `wake`; so `poll_readable` itself wakes nobody.
//!
//! This one is for a program that turns a loop by hand. It looks anew at each call, so it has
//! nothing to note:
//!
//! ```
//! use std::os::fd::{AsFd, OwnedFd};
//! use std::sync::{Arc, Mutex};
//! use std::task::{Context, Poll, Waker};
//! use std::{future, io, time::Duration};
//!
//! use rustix::event::{PollFd, PollFlags, Timespec, poll};
//! use verbs_async::CqNotifier;
//!
//! struct OwnLoop {
//!     descriptor: OwnedFd,
//!     waker: Mutex<Option<Waker>>, // a loop that can end has a word for that here
//! }
//!
//! impl OwnLoop {
//!     fn readable_within(&self, time: Duration) -> io::Result<bool> {
//!         let mut asked = [PollFd::new(&self.descriptor, PollFlags::IN)];
//!         let time = Timespec::try_from(time).map_err(io::Error::other)?;
//!         Ok(poll(&mut asked, Some(&time))? > 0)
//!     }
//!     fn turn(&self) -> io::Result<()> {
//!         let waker = if self.readable_within(Duration::from_secs(1))? {
//!             self.waker.lock().unwrap().take()
//!         } else {
//!             None
//!         };
//!         waker.into_iter().for_each(Waker::wake); // the lock is free again
//!         Ok(())
//!     }
//! }
//!
//! impl CqNotifier for OwnLoop {
//!     fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
//!         *self.waker.lock().unwrap() = Some(cx.waker().clone());
//!         match self.readable_within(Duration::ZERO) {
//!             Ok(false) => Poll::Pending,
//!             readable => Poll::Ready(readable.map(drop)),
//!         }
//!     }
//! }
//!
//! # use std::{io::Write, pin::pin, sync::atomic::{AtomicU32, Ordering}, task::Wake};
//! # #[derive(Default)]
//! # struct Count(AtomicU32);
//! # impl Wake for Count {
//! #     fn wake(self: Arc<Self>) {
//! #         self.0.fetch_add(1, Ordering::Relaxed);
//! #     }
//! # }
//! # fn main() -> io::Result<()> {
//! let (reader, mut writer) = io::pipe()?;
//! let descriptor = reader.as_fd().try_clone_to_owned()?;
//! let own = OwnLoop { descriptor, waker: Mutex::default() };
//! let mut readable = own.readable();
//! # let count = Arc::new(Count::default());
//! # let waker = Waker::from(Arc::clone(&count));
//! # let mut cx = Context::from_waker(&waker);
//! assert!(readable.as_mut().poll(&mut cx).is_pending());
//! writer.write_all(b"!")?;
//! own.turn()?; // wakes
//! # assert_eq!(count.0.load(Ordering::Relaxed), 1);
//! assert!(readable.as_mut().poll(&mut cx).is_ready());
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "async-io")]
mod async_io;
mod relay;
mod thread;
#[cfg(feature = "tokio")]
mod tokio;

use std::future::{self, Future};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "async-io")]
pub use self::async_io::AsyncIoNotifier;
pub use self::thread::ThreadNotifier;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioNotifier;

/// Tells when a descriptor is readable, such as that of a
/// [`CompletionChannel`](verbs_channel::verbs_core::CompletionChannel).
///
/// What an implementation promises is a list in the [module's documentation](self).
pub trait CqNotifier: Send + Sync {
    /// Ready once the descriptor may have become readable since this was last ready; else the last
    /// caller's waker is woken when it does.
    ///
    /// One place waits: two tasks that call this in turn take it from each other. The waker is kept
    /// until it is woken or another comes, so one that keeps the notifier keeps both that long.
    ///
    /// # Errors
    ///
    /// When nobody watches the descriptor any more, such as a runtime that was shut down: now and
    /// from then on.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits until the descriptor may be readable.
    ///
    /// As this trait provides it, it waits in the place of [`poll_readable`](Self::poll_readable):
    /// only one of them, and only one such future, can wait at a time. Those of this crate's
    /// notifiers have a place of their own each, at the price of a registration per call.
    ///
    /// # Errors
    ///
    /// Those of [`poll_readable`](Self::poll_readable).
    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(future::poll_fn(|cx| self.poll_readable(cx)))
    }

    /// Another notifier, if possible of the same kind, for this descriptor: a group watches its peers
    /// by one, beside that of its completions.
    ///
    /// As this trait provides it, it is a [`ThreadNotifier`].
    ///
    /// # Errors
    ///
    /// Those of making one.
    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        Ok(Box::new(ThreadNotifier::new(descriptor)?))
    }
}

impl<N: CqNotifier + ?Sized> CqNotifier for Box<N> {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(cx)
    }

    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        (**self).readable()
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        (**self).another(descriptor)
    }
}
