//! Lingering: what a stream that was dropped has still to say, said without a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::sync::Mutex;

/// A future that is polled by whoever wakes it, and lives as long as somebody may.
struct Lingering(Mutex<State>);

struct State {
    // `None` while it is polled, and when it is done.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    polled: bool,
    // Woken while it was polled.
    again: bool,
}

/// Runs a future of this crate's operations to its end, without a runtime.
pub(super) fn linger(future: impl Future<Output = ()> + Send + 'static) {
    let state = State {
        future: Some(Box::pin(future)),
        polled: false,
        again: false,
    };
    Arc::new(Lingering(Mutex::new(state))).wake();
}

impl Wake for Lingering {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        loop {
            let mut state = self.0.lock();
            if state.polled {
                state.again = true;
                return;
            }
            let Some(mut future) = state.future.take() else {
                return;
            };
            state.polled = true;
            state.again = false;
            drop(state);
            // Nothing is locked: it may be woken in here, or drop what wakes others.
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            let mut state = self.0.lock();
            state.polled = false;
            if polled.is_ready() {
                drop(state);
                drop(future);
                return;
            }
            state.future = Some(future);
            if !state.again {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;

    /// Wakes its task where it is polled, `left` times, and counts.
    struct Restless {
        left: usize,
        polls: Arc<AtomicUsize>,
    }

    impl Future for Restless {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.polls.fetch_add(1, Ordering::Relaxed);
            if self.left == 0 {
                return Poll::Ready(());
            }
            self.left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    #[test]
    fn woken_while_polled_is_polled_again() {
        let polls = Arc::new(AtomicUsize::new(0));
        linger(Restless {
            left: 3,
            polls: Arc::clone(&polls),
        });
        assert_eq!(polls.load(Ordering::Relaxed), 4);
        assert_eq!(Arc::strong_count(&polls), 1, "it was dropped at its end");
    }

    #[test]
    fn it_lives_as_long_as_its_waker() {
        let kept = Arc::new(Mutex::new(None));
        let woken = Arc::clone(&kept);
        let (alive, ends) = (Arc::new(()), Arc::new(()));
        let weak = Arc::downgrade(&ends);
        linger(async move {
            let mut first = true;
            std::future::poll_fn(|cx| {
                *woken.lock() = Some(cx.waker().clone());
                if std::mem::take(&mut first) {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            })
            .await;
            drop((alive, ends));
        });
        assert!(weak.upgrade().is_some());
        let waker: Option<Waker> = kept.lock().take();
        waker.unwrap().wake();
        assert!(weak.upgrade().is_none());
    }
}
