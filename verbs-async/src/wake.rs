//! Wakers, drops and log lines: all of it happens where nothing is locked, and a panic there goes no
//! further.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// Wakes all of them, where nothing is locked: one that panics does not leave the others asleep.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panicked = 0_usize;
    for waker in wakers {
        panicked += usize::from(panics(|| waker.wake()));
    }
    if panicked > 0 {
        log_error(format_args!("wakers of {panicked} tasks panicked"));
    }
}

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// Until this is dropped, drivers wake nobody on this thread: what is due stays with the driver.
///
/// For code that uses a driver under a lock of its own. After unlocking it calls the driver's
/// `settle`.
#[must_use]
pub(crate) struct Held {
    before: bool,
}

/// Holds wake-ups back on this thread.
pub(crate) fn hold() -> Held {
    let before = HELD.replace(true);
    Held { before }
}

/// Whether wake-ups are held back on this thread.
pub(crate) fn are_held() -> bool {
    HELD.get()
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

/// Writes to the log, as an error. A panic of the logger stops here.
pub(crate) fn log_error(line: fmt::Arguments<'_>) {
    let _panicked = panics(|| log::error!("{line}"));
}

/// Drops a value. A panic of its drop stops here.
pub(crate) fn drop_guarded<T>(what: T) {
    let _panicked = panics(|| drop(what));
}

/// Whether it panics; then that ends here.
pub(crate) fn panics(what: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(what)) else {
        return false;
    };
    #[expect(clippy::mem_forget, reason = "dropping it may panic once more")]
    mem::forget(panic);
    true
}

/// What acts when its notifier reports that a descriptor is readable.
pub(crate) trait OnReadable: Send + Sync + 'static {
    /// Takes what is there, until the notifier has the waker.
    fn on_readable(&self);
}

/// A waker that calls [`on_readable`](OnReadable::on_readable) of this, while it is there.
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
