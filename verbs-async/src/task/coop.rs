//! Cooperative scheduling: a task whose operations are always ready yields from time to time.
//!
//! An executor polls a task until it is pending, and only then runs its timers and other tasks. So
//! polls that are ready are counted. After [`BUDGET`] of them on a thread, the next poll is
//! pending, whatever it would have found, and wakes its task at once. This needs no runtime, and
//! delays no other operation.
//!
//! One such poll is not enough for a task that polls its operations with wakers of their own, such as
//! one with a `FuturesUnordered`: it goes on with the next operation, and only a second poll with
//! another waker makes it pending. So there are two at the end of every other budget, unless the first
//! waker comes again before that.
//!
//! The count is per thread, not per task, so a task may have to yield at its first poll. That costs an
//! extra poll now and then, but starves no task, in whatever order they come: it is random at
//! the end of which budgets there are two.
//!
//! In a task of tokio, a ready poll also spends one unit of the task's budget, as each of tokio's own
//! operations does. Once that is used up, by either kind, all polls of both kinds are pending, until
//! tokio polls the task anew. And there each yield is tokio's: a task that wakes itself is queued
//! ahead of timers, sockets and the tasks that they wake, which it starves.

use std::cell::Cell;
use std::task::{Context, Poll};

use runtime::{must_yield as runtime_must_yield, spend as spend_runtime_budget, yield_to_others};

/// How many polls may be ready before a yield: some ten microseconds, and half the budget of a tokio task.
const BUDGET: u32 = 64;

thread_local! {
    static BUDGET_LEFT: Cell<u32> = const { Cell::new(BUDGET) };
    // While further polls are to be pending: the waker of the last. It is compared, and no more.
    static YIELDED: Cell<Option<*const ()>> = const { Cell::new(None) };
    static RANDOM: Cell<u32> = const { Cell::new(1) };
}

/// Whether the task has to yield. If so, it is woken, to be polled again.
#[inline(always)]
pub(crate) fn must_yield(cx: &Context<'_>) -> bool {
    BUDGET_LEFT.get() == 0 && yields(cx)
}

/// Counts a poll that was ready.
#[inline(always)]
pub(crate) fn count_ready(cx: &Context<'_>) {
    // A waker that polls in place may have used up the budget meanwhile.
    let left = BUDGET_LEFT.get().saturating_sub(1);
    BUDGET_LEFT.set(if spend_runtime_budget(cx) { left } else { 0 });
}

/// Polls what a task awaits, unless the task has to yield. A poll that is ready is counted.
pub(crate) fn poll<T>(
    must_yield: bool,
    cx: &Context<'_>,
    poll: impl FnOnce() -> Poll<T>,
) -> Poll<T> {
    if must_yield {
        return Poll::Pending;
    }
    let polled = poll();
    if polled.is_ready() {
        count_ready(cx);
    }
    polled
}

/// Whether this poll yields, now that a budget is used up.
#[cold]
#[inline(never)]
fn yields(cx: &Context<'_>) -> bool {
    let waker = Some(cx.waker().data());
    let first = YIELDED.take();
    let is_spent = runtime_must_yield();
    if is_spent || (first.is_none() && toss()) {
        YIELDED.set(waker);
    } else {
        BUDGET_LEFT.set(BUDGET);
    }
    // It has yielded, and comes again.
    if first == waker && !is_spent {
        return false;
    }
    yield_to_others(cx);
    true
}

/// The budget of the tokio task that runs here.
#[cfg(feature = "tokio")]
mod runtime {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::Context;

    use tokio::task::{coop, yield_now};

    /// Spends one unit. `false` if the budget was used up before.
    #[inline(always)]
    pub(super) fn spend(cx: &Context<'_>) -> bool {
        let polled = coop::poll_proceed(&mut Context::from_waker(cx.waker()));
        polled.map(|unit| unit.made_progress()).is_ready()
    }

    /// Whether it is used up.
    #[inline(always)]
    pub(super) fn must_yield() -> bool {
        !coop::has_budget_remaining()
    }

    /// Wakes the task after other tasks and tokio's driver have run.
    pub(super) fn yield_to_others(cx: &Context<'_>) {
        let _pending = pin!(yield_now()).poll(&mut Context::from_waker(cx.waker()));
    }
}

/// Without tokio no task has such a budget.
#[cfg(not(feature = "tokio"))]
mod runtime {
    use std::task::Context;

    pub(super) const fn spend(_cx: &Context<'_>) -> bool {
        true
    }

    pub(super) const fn must_yield() -> bool {
        false
    }

    pub(super) fn yield_to_others(cx: &Context<'_>) {
        cx.waker().wake_by_ref();
    }
}

/// One of two random values.
fn toss() -> bool {
    // Xorshift, by Marsaglia: every number but zero comes once.
    let mut random = RANDOM.get();
    random ^= random << 13;
    random ^= random >> 17;
    random ^= random << 5;
    RANDOM.set(random);
    random >> 31 == 1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use super::*;

    /// A task, by its waker.
    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Task {
        fn waker() -> Waker {
            Arc::new(Self).into()
        }
    }

    /// Polls what is always ready, until it must yield, or this often. How often it was ready.
    fn polls(task: &Waker, most: u32) -> u32 {
        let cx = Context::from_waker(task);
        let ready = (0..most).take_while(|_| {
            let is_ready = !must_yield(&cx);
            if is_ready {
                count_ready(&cx);
            }
            is_ready
        });
        ready.fold(0, |count, _| count + 1)
    }

    #[test]
    fn task_that_is_alone_yields_once_for_each_budget() {
        let task = Task::waker();
        for _ in 0..10 {
            assert_eq!(polls(&task, 1000), BUDGET);
        }
    }

    #[test]
    fn tasks_that_use_up_each_budget_starve_no_other() {
        let tasks = [(); 4].map(|()| Task::waker());
        let (other, busy) = tasks.split_first().unwrap();
        for most in [BUDGET - 1, BUDGET, BUDGET + 1] {
            for count in 1..=busy.len() {
                BUDGET_LEFT.set(BUDGET);
                let mut progress = 0;
                for _turn in 0..100 {
                    for task in &busy[..count] {
                        polls(task, most);
                    }
                    progress += polls(other, 1);
                }
                assert!(
                    progress >= 20,
                    "{progress} of 100, {count} tasks, {most} polls"
                );
            }
        }
    }

    #[test]
    fn no_task_has_to_yield_for_good_after_another_was_dropped() {
        let tasks = [(); 100].map(|()| Task::waker());
        for task in &tasks {
            // Each is dropped when it has yielded.
            assert!(polls(task, 1000) <= BUDGET);
        }
        let last = Task::waker();
        let turns = [(); 3].map(|()| polls(&last, 1));
        assert!(turns.contains(&1), "{turns:?}");
    }

    #[test]
    fn ready_polls_beyond_the_budget_do_not_prolong_it() {
        let cx = Context::from_waker(Waker::noop());
        BUDGET_LEFT.set(1);
        count_ready(&cx);
        // As a task does that is polled within a waker, after its own check.
        count_ready(&cx);
        assert!(must_yield(&cx));
        assert!(!must_yield(&cx));
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn each_ready_poll_spends_one_unit_of_a_tokio_task() {
        use tokio::task::coop;

        let tokio_left = || {
            let unit = || coop::poll_proceed(&mut Context::from_waker(Waker::noop()));
            let units = std::iter::repeat_with(|| unit().map(|unit| unit.made_progress()));
            units.take_while(Poll::is_ready).count()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let left = |spent: u32| {
            runtime.block_on(std::future::poll_fn(move |cx| {
                let ready = (0..spent).map(|_| {
                    // This crate's own count is not used up here.
                    if BUDGET_LEFT.get() == 1 {
                        BUDGET_LEFT.set(BUDGET);
                    }
                    polls(cx.waker(), 1)
                });
                let ready = ready.sum::<u32>();
                Poll::Ready((ready, tokio_left(), must_yield(cx), must_yield(cx)))
            }))
        };
        let (_, all, ..) = left(0);
        let all = u32::try_from(all).unwrap();
        for spent in [1, 10, all - 1, all, all + 1, 3 * all] {
            let (ready, tokio_left, first, second) = left(spent);
            // That the budget is used up is noticed by the poll after that.
            assert_eq!(ready, spent.min(all + 1));
            assert_eq!(tokio_left, all.saturating_sub(ready) as usize);
            assert_eq!(
                [first, second],
                [spent > all; 2],
                "until tokio polls it anew"
            );
        }
    }
}
