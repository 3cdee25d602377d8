//! Cooperative scheduling: a task whose operations are always ready yields from time to time.
//!
//! An executor polls a task until it is pending, and only then runs its timers and other tasks. So
//! polls that are ready are counted. After [`BUDGET`] of them on a thread, the next poll is
//! pending, whatever it would have found, and wakes its task at once. This needs no runtime, and
//! delays no other operation. The count is per thread, not per task, so a task may have to yield at
//! its first poll: that costs one extra poll.

use std::cell::Cell;
use std::task::Context;

/// How many polls may be ready before a yield: some ten microseconds.
const BUDGET: u32 = 64;

thread_local! {
    static BUDGET_LEFT: Cell<u32> = const { Cell::new(BUDGET) };
}

/// Whether the task has to yield. If so, it is woken, to be polled again.
#[inline(always)]
pub(crate) fn must_yield(cx: &Context<'_>) -> bool {
    let must_yield = BUDGET_LEFT.get() == 0;
    if must_yield {
        yield_now(cx);
    }
    must_yield
}

/// Counts a poll that was ready.
#[inline(always)]
pub(crate) fn count_ready() {
    // A waker that polls in place may have used up the budget meanwhile.
    BUDGET_LEFT.set(BUDGET_LEFT.get().saturating_sub(1));
}

#[cold]
#[inline(never)]
fn yield_now(cx: &Context<'_>) {
    BUDGET_LEFT.set(BUDGET);
    cx.waker().wake_by_ref();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_polls_beyond_the_budget_do_not_prolong_it() {
        BUDGET_LEFT.set(1);
        count_ready();
        // By a task that is polled within a waker, after its own check.
        count_ready();
        assert!(must_yield(&Context::from_waker(std::task::Waker::noop())));
        assert!(!must_yield(&Context::from_waker(std::task::Waker::noop())));
    }
}
