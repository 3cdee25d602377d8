//! Notifiers: they report that a descriptor is readable, the one thing that async code needs from a
//! runtime.
//!
//! | notifier | needs | wakes from |
//! |---|---|---|
//! | [`TokioNotifier`] (feature `tokio`) | to be created in a tokio runtime that has I/O enabled | that runtime |
//! | [`AsyncIoNotifier`] (feature `async-io`) | nothing: it works with smol and any other executor | async-io's reactor |
//! | [`ThreadNotifier`] | nothing | a thread that all notifiers of this kind share |
//!
//! # Wakers
//!
//! A task must have a waker that works on any thread, as `Waker: Send + Sync` requires. It may be woken from the
//! thread in the table above, from each thread that polls something of this crate, and, if it connects, closes or
//! awaits a destruction, from helper threads. The wakers of tokio, smol and pollster work so. Those of
//! monoio do only with its feature `sync`: without that they panic on another thread, or wake nothing.
//!
//! If a waker panics, its task may sleep on. That is logged, and wakes of other tasks are not affected. If it was
//! registered with a notifier itself, that notifier has failed.
//!
//! An executor whose wakers work on one thread only can still await operations, completions and
//! device events if that thread also watches the descriptors. It needs a notifier of its own for
//! each, such as `OwnLoop` below, for `CompletionChannel::poll_fd` and `Context::poll_fd`. All code
//! that uses the group or the queue runs on that thread. It cannot await the work of helper
//! threads: instead, connect with a [handshake that
//! blocks](verbs_channel::PreparedChannel::handshake) and [`AsyncGroup::join`], without watching
//! the peer, and drop each channel, when its operations have ended, instead of closing it.
//!
//! [`AsyncGroup::join`]: crate::AsyncGroup::join
//!
//! # Writing a notifier
//!
//! A notifier for another event loop has to keep these rules:
//!
//! - It owns its descriptor: a duplicate (`try_clone_to_owned`), or a handle that keeps the
//!   original open. A duplicate is readable when the original is.
//! - `Ready(Ok(()))` means that the descriptor may be readable; there may also be nothing to read.
//!   The notifier must reset its own readiness *before* it returns that, so that everything that
//!   arrives after the return is reported again.
//! - `Pending` means that the waker will be woken when the descriptor becomes readable, without
//!   delay if it is readable already, or when the notifier fails. The notifier needs to store one
//!   waker only, that of the last call.
//! - After it has failed, for example because its event loop has ended or its waker has panicked, every call returns an
//!   error. No call panics or is pending then.
//! - While it wakes, it holds no lock that `poll_readable` takes. A waker may call `poll_readable`
//!   on the same notifier from within `wake`, so `poll_readable` itself wakes no waker.
//!
//! This example is for a program with a loop of its own. It asks the kernel at each call, so it has
//! no readiness to reset. Everything is woken on the thread of `block_on`:
//!
//! ```
//! use std::future::Future;
//! use std::os::fd::{AsFd, OwnedFd};
//! use std::pin::pin;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::sync::{Arc, Mutex};
//! use std::task::{Context, Poll, Wake, Waker};
//! use std::{io, time::Duration};
//!
//! use rustix::event::{PollFd, PollFlags, Timespec, poll};
//! use verbs_async::verbs_core;
//! use verbs_async::verbs_core::completion::CompletionChannel;
//! use verbs_async::{AsyncCq, CqEvents, CqNotifier};
//!
//! struct OwnLoop {
//!     descriptor: OwnedFd,
//!     waker: Mutex<Option<Waker>>, // a loop that can end stores that here, too
//! }
//!
//! impl OwnLoop {
//!     fn readable_within(&self, time: Duration) -> io::Result<bool> {
//!         let mut asked = [PollFd::new(&self.descriptor, PollFlags::IN)];
//!         let time = Timespec::try_from(time).map_err(io::Error::other)?;
//!         Ok(poll(&mut asked, Some(&time))? > 0)
//!     }
//!     fn run_once(&self) -> io::Result<()> {
//!         let waker = if self.readable_within(Duration::from_secs(1))? {
//!             self.waker.lock().unwrap().take()
//!         } else {
//!             None
//!         };
//!         waker.into_iter().for_each(Waker::wake); // the lock is released
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
//! /// Runs a future, and lets the notifier wake when the future waits.
//! fn block_on<T>(own: &OwnLoop, future: impl Future<Output = T>) -> io::Result<T> {
//!     let woken = Arc::new(Woken::default());
//!     let waker = Waker::from(Arc::clone(&woken));
//!     let mut future = pin!(future);
//!     loop {
//!         if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
//!             return Ok(output);
//!         }
//!         while !woken.0.swap(false, Ordering::Relaxed) {
//!             own.run_once()?;
//!         }
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Woken(AtomicBool);
//!
//! impl Wake for Woken {
//!     fn wake(self: Arc<Self>) {
//!         self.0.store(true, Ordering::Relaxed);
//!     }
//! }
//!
//! fn example(context: &verbs_core::Context) -> verbs_async::Result<()> {
//!     let channel = CompletionChannel::create(context)?;
//!     let descriptor = channel.poll_fd()?.try_clone_to_owned()?;
//!     let own = Arc::new(OwnLoop { descriptor, waker: Mutex::default() });
//!     let cq = AsyncCq::create(&CqEvents::new(channel, Arc::clone(&own))?, 64)?;
//!     // … post a request with this `wr_id`, then:
//!     let completion = block_on(&own, cq.poll_wr_id(1))??;
//!     Ok(())
//! }
//! # use std::{io::Write, sync::atomic::AtomicU32};
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
//! own.run_once()?; // wakes
//! # assert_eq!(count.0.load(Ordering::Relaxed), 1);
//! assert!(readable.as_mut().poll(&mut cx).is_ready());
//! # Ok(())
//! # }
//! ```
// tidy: allow(circle): a notifier that has no other way to make another makes a thread's

#[cfg(feature = "async-io")]
mod async_io;
#[cfg(any(feature = "async-io", feature = "tokio"))]
mod own_process;
mod relay;
mod thread;
#[cfg(feature = "tokio")]
mod tokio;

use std::error::Error;
use std::future::{self, Future};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbs_channel::verbs_core::error::ErrorChain;

#[cfg(feature = "async-io")]
pub use self::async_io::AsyncIoNotifier;
pub use self::thread::ThreadNotifier;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioNotifier;

/// Whether a notifier has failed because its runtime has ended. That is not logged: many programs end so, and
/// operations that are awaited elsewhere return an error.
pub(crate) fn has_ended(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(<dyn Error + Send + Sync>::is::<RuntimeEnded>)
}

/// Why a notifier of tokio has failed, in words that say what happened to whom.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the tokio runtime in which its notifier was made was shut down")]
struct RuntimeEnded;

/// The same error, for another caller.
pub(crate) fn copy_of(error: &io::Error) -> io::Error {
    match has_ended(error) {
        true => io::Error::other(RuntimeEnded),
        false => io::Error::new(error.kind(), ErrorChain::new(error).to_string()),
    }
}

/// Reports when a descriptor is readable, such as that of a
/// [`CompletionChannel`](verbs_channel::verbs_core::completion::CompletionChannel).
///
/// The [module's documentation](self) lists the rules for implementations.
pub trait CqNotifier: Send + Sync {
    /// Ready if the descriptor may have become readable since this was last ready. If not, the
    /// waker of the last call is woken when it does.
    ///
    /// There is room for one waker: if two tasks call this, the later call replaces the waker of the
    /// earlier one. The waker is kept until it is woken or replaced. If it owns the notifier, both
    /// stay alive until then.
    ///
    /// # Errors
    ///
    /// The notifier has failed, for example because its runtime was shut down. All later calls
    /// fail, too.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits until the descriptor may be readable.
    ///
    /// The provided method calls [`poll_readable`](Self::poll_readable), and so uses its one waker:
    /// only one such future, or one caller of `poll_readable`, can wait at a time. The notifiers of
    /// this crate have no such limit, but each call registers the descriptor once more.
    ///
    /// # Errors
    ///
    /// Those of [`poll_readable`](Self::poll_readable).
    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(future::poll_fn(|cx| self.poll_readable(cx)))
    }

    /// Creates another notifier for this descriptor, of the same kind if possible.
    ///
    /// A group calls this for a second notifier, which watches its peers. The provided method
    /// creates a [`ThreadNotifier`].
    ///
    /// # Errors
    ///
    /// Those of creating a notifier.
    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        Ok(Box::new(ThreadNotifier::new(descriptor)?))
    }
}

/// For an event loop that keeps the other half.
impl<N: CqNotifier + ?Sized> CqNotifier for Arc<N> {
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
