//! Tests of the tokio notifier only: its runtimes, and their ends.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::task::coop;
use verbs_async::CqNotifier as _;
use verbs_async::notifier::TokioNotifier;

use crate::fixture::{WakeCounter, block_on, drain, pipe, wait_readable, within_limit, write};

/// The runtime that tests share which do not end it.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(new_runtime)
}

fn new_runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .unwrap()
}

#[test]
fn waiter_gets_an_error_when_the_runtime_ends() {
    within_limit(|| {
        let (reader, _writer) = pipe();
        let runtime = new_runtime();
        let notifier = {
            let _entered = runtime.enter();
            TokioNotifier::new(&reader).unwrap()
        };
        let (counter, waker) = WakeCounter::new();
        let polled = notifier.poll_readable(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let mut readable = notifier.readable();
        let (other, waker) = WakeCounter::new();
        let polled = readable.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let ends = thread::spawn(move || drop(runtime));
        counter.wait();
        other.wait();
        ends.join().unwrap();
        for _ in 0..3 {
            wait_readable(&notifier).unwrap_err();
            block_on(|cx| notifier.readable().as_mut().poll(cx)).unwrap_err();
        }
        block_on(|cx| readable.as_mut().poll(cx)).unwrap_err();
    });
}

#[test]
fn untaken_readiness_does_not_hide_the_runtimes_end() {
    within_limit(|| {
        let (reader, writer) = pipe();
        let runtime = new_runtime();
        let notifier = {
            let _entered = runtime.enter();
            TokioNotifier::new(&reader).unwrap()
        };
        write(&writer);
        drop(runtime);
        wait_readable(&notifier).unwrap_err();
        drain(&reader);
        wait_readable(&notifier).unwrap_err();
    });
}

#[test]
fn end_of_one_runtime_affects_no_other() {
    within_limit(|| {
        let (reader, writer) = pipe();
        let [ends, stays] = [new_runtime(), new_runtime()];
        let [of_ends, of_stays] = [&ends, &stays].map(|runtime| {
            let _entered = runtime.enter();
            TokioNotifier::new(&reader).unwrap()
        });
        drop(ends);
        write(&writer);
        wait_readable(&of_ends).unwrap_err();
        // From within the other runtime, too, it is an error.
        stays.block_on(async {
            of_ends.readable().await.unwrap_err();
            of_stays.readable().await.unwrap();
        });
    });
}

/// Calls the notifier again when it is woken, as a waker does that drives a queue.
struct CallsAgain(TokioNotifier);

impl Wake for CallsAgain {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut cx = Context::from_waker(&waker);
        assert!(!matches!(
            self.0.poll_readable(&mut cx),
            Poll::Ready(Err(_))
        ));
    }
}

#[test]
fn task_without_tokio_budget_is_not_woken_in_place() {
    within_limit(|| {
        let (reader, _writer) = pipe();
        // This task runs outside the workers: there tokio wakes a task at once when it makes it wait.
        new_runtime().block_on(async {
            let calls_again = Arc::new(CallsAgain(TokioNotifier::new(&reader).unwrap()));
            poll_fn(|cx| {
                while coop::has_budget_remaining() {
                    assert!(pin!(coop::consume_budget()).poll(cx).is_ready());
                }
                calls_again.wake_by_ref();
                Poll::Ready(())
            })
            .await;
            // Drops the waker, which keeps the notifier alive.
            let mut cx = Context::from_waker(Waker::noop());
            assert!(calls_again.0.poll_readable(&mut cx).is_pending());
        });
    });
}
