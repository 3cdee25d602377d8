//! Wakers, drops and log lines: all of it happens without a lock, and panics are contained.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use log::Level;

/// Wakes all of them, without a lock. A waker that panics does not stop the others.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panicked = 0_usize;
    for waker in wakers {
        panicked += usize::from(panics(|| waker.wake()));
    }
    if panicked > 0 {
        log_error(format_args!(
            "the wakers of {panicked} tasks panicked, and these tasks may sleep on: a waker must work on any \
             thread, see the documentation of verbs_async::notifier"
        ));
    }
}

/// Logs an error.
pub(crate) fn log_error(line: fmt::Arguments<'_>) {
    log(Level::Error, line);
}

/// Writes to the log. A panic of the logger is contained.
pub(crate) fn log(level: Level, line: fmt::Arguments<'_>) {
    let _panicked = panics(|| log::log!(level, "{line}"));
}

/// Drops a value. A panic of its drop is contained.
pub(crate) fn drop_guarded<T>(what: T) {
    let _panicked = panics(|| drop(what));
}

/// Calls a function. Returns whether it panicked, and contains the panic.
pub(crate) fn panics(what: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(what)) else {
        return false;
    };
    #[expect(clippy::mem_forget, reason = "dropping it may panic again")]
    mem::forget(panic);
    true
}

/// An owner of a notifier, called when its descriptor is readable.
pub(crate) trait OnReadable: Send + Sync + 'static {
    /// Reads until the notifier is pending, and so has the waker again.
    fn on_readable(&self);
}

/// A waker that calls [`on_readable`](OnReadable::on_readable) of `target`, while it exists.
pub(crate) fn self_waker<T: OnReadable>(target: &Weak<T>) -> Waker {
    Waker::from(Arc::new(SelfWaker(Weak::clone(target))))
}

struct SelfWaker<T>(Weak<T>);

impl<T: OnReadable> Wake for SelfWaker<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(target) = self.0.upgrade() {
            target.on_readable();
        }
    }
}
