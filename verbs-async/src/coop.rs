//! Cooperative scheduling: a task whose operations are always ready yields from time to time.
//!
//! An executor polls a task until it is pending, and only then runs its timers and other tasks. So
//! polls that are ready are counted. After [`BUDGET`] of them on a thread, the next poll is
//! pending, whatever it would have found, and wakes its task at once. This needs no runtime, and
//! delays no other operation. The count is per thread, not per task, so a task may have to yield at
//! its first poll: that costs one extra poll.
//!
//! In a task of tokio, every fourth ready poll also spends one unit of the task's budget, as each of
//! tokio's own operations does. Once that is used up, by either kind, the next poll of this crate is
//! pending, too. Every fourth, because asking tokio takes 9 of the 290 instructions of an operation.

use std::cell::Cell;
use std::task::Context;
#[cfg(feature = "tokio")]
use std::task::Poll;

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
pub(crate) fn count_ready(cx: &Context<'_>) {
    // A waker that polls in place may have used up the budget meanwhile.
    let left = BUDGET_LEFT.get().saturating_sub(1);
    BUDGET_LEFT.set(left);
    if left.is_multiple_of(4) {
        spend_runtime_budget(cx);
    }
}

#[cfg(feature = "tokio")]
#[inline(always)]
fn spend_runtime_budget(cx: &Context<'_>) {
    // Afterwards, not before the poll: then there is nothing to give back if it is not ready. It is
    // pending if the budget was used up before, and wakes the task, which costs one extra poll.
    match tokio::task::coop::poll_proceed(&mut Context::from_waker(cx.waker())) {
        Poll::Ready(unit) => unit.made_progress(),
        Poll::Pending => BUDGET_LEFT.set(0),
    }
}

#[cfg(not(feature = "tokio"))]
fn spend_runtime_budget(_cx: &Context<'_>) {}

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
        let cx = Context::from_waker(std::task::Waker::noop());
        BUDGET_LEFT.set(1);
        count_ready(&cx);
        // By a task that is polled within a waker, after its own check.
        count_ready(&cx);
        assert!(must_yield(&cx));
        assert!(!must_yield(&cx));
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn ready_polls_spend_the_budget_of_a_tokio_task() {
        const MANY: usize = 10_000;
        let ready_polls = |cx: &Context<'_>| {
            let polls = std::iter::repeat_with(|| {
                // This crate's own count is not used up here.
                BUDGET_LEFT.set(5);
                count_ready(cx);
                !must_yield(cx)
            });
            polls.take(MANY).take_while(|is_left| *is_left).count()
        };
        let task = std::future::poll_fn(move |cx| {
            let count = ready_polls(cx);
            Poll::Ready((count, tokio::task::coop::has_budget_remaining()))
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let (count, is_left) = runtime.block_on(async { tokio::spawn(task).await.unwrap() });
        assert!((1..MANY).contains(&count), "{count} polls were ready");
        assert!(!is_left, "tokio's own operations yield, too");
    }
}
