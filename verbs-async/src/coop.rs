//! Turns: a task whose operations are always done gives others a turn now and then.
//!
//! An executor polls a task until it is not ready, and only then runs its timers and other tasks. So
//! what is ready is counted, and after [`TURN`] of them on a thread the next poll is not ready,
//! whatever it would have found, and wakes its task at once. No runtime is needed for that, and no
//! other operation is delayed. That the count is the thread's, and not a task's, costs a task that has
//! just begun one poll.

use std::cell::Cell;
use std::task::Context;

/// How many operations are ready until others have a turn: some ten microseconds.
const TURN: u32 = 64;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(TURN) };
}

/// Whether it is the turn of others: then the task is woken, to be polled again.
#[inline(always)]
pub(crate) fn is_over(cx: &Context<'_>) -> bool {
    let is_over = LEFT.get() == 0;
    if is_over {
        yield_now(cx);
    }
    is_over
}

/// Counts something that was ready.
#[inline(always)]
pub(crate) fn spend() {
    // A waker that polls in place may have spent the last one meanwhile.
    LEFT.set(LEFT.get().saturating_sub(1));
}

#[cold]
#[inline(never)]
fn yield_now(cx: &Context<'_>) {
    LEFT.set(TURN);
    cx.waker().wake_by_ref();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ready_after_the_last_of_a_turn_does_not_prolong_it() {
        LEFT.set(1);
        spend();
        // By a task that is polled within a waker, and looked before.
        spend();
        assert!(is_over(&Context::from_waker(std::task::Waker::noop())));
        assert!(!is_over(&Context::from_waker(std::task::Waker::noop())));
    }
}
