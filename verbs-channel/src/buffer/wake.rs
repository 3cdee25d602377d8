//! Wakes the tasks that wait for blocks: not within each other, and without a panic.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use crate::panics::{log_error, panics};

thread_local! {
    /// Whether this thread is in [`wake`].
    static IS_WAKING: Cell<bool> = const { Cell::new(false) };
    /// The wakers that [`wake`] calls next.
    static NEXT: RefCell<VecDeque<Waker>> = const { RefCell::new(VecDeque::new()) };
}

/// Wakes a task, in a drop of a block: a panic of its waker is logged.
///
/// A task that is polled in its waker may drop the block, which wakes the next task. That is left to
/// the first call on this thread. So nothing recurses, however many tasks wait.
pub(super) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    if IS_WAKING.get() {
        let queued = NEXT.try_with(|next| next.borrow_mut().extend(waker.take()));
        // At the end of a thread there is no queue any more.
        if queued.is_ok() {
            return;
        }
    }
    let was_waking = IS_WAKING.replace(true);
    while let Some(waker_now) = waker {
        if panics(|| waker_now.wake()) {
            log_error(format_args!(
                "the waker of a task that waits for a block panicked"
            ));
        }
        let next = NEXT.try_with(|next| next.borrow_mut().pop_front());
        waker = next.ok().flatten();
    }
    IS_WAKING.set(was_waking);
}
