//! Wakers that panic when they are dropped: nothing is lost by it, and nobody else stays asleep.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use crate::bench::{Bench, Task, done};
use crate::groups::{Peer, announce, posted};

/// Panics when the last of its clones is dropped, unless it was woken by that.
#[derive(Default)]
struct Bomb {
    woken: AtomicBool,
}

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(self.woken.load(Ordering::Relaxed), "a waker's");
    }
}

/// Polls it with a waker of which the last clone stays with the operation.
fn leaves_a_bomb<F: Future>(task: &mut Task<F>) {
    let waker = Waker::from(Arc::<Bomb>::default());
    let polled = task.future().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
}

#[test]
fn what_has_ended_is_given_though_its_last_waker_panics() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut first = peer.send();
    leaves_a_bomb(&mut first);
    done(posted());
    let (result, buffer) = first.ends();
    assert!(result.is_ok());
    assert_eq!(buffer.capacity(), 64);
    // Whoever has its slot now is told.
    let mut second = peer.send().waits();
    drop(first);
    done(posted().last().copied());
    announce(&bench);
    assert_eq!(second.was_woken(), 1);
    assert!(second.ends().0.is_ok());
}

#[test]
fn what_is_abandoned_or_polled_anew_is_so_though_its_last_waker_panics() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    // In flight, and in line.
    let mut tasks = [(); 4].map(|()| peer.send());
    for task in &mut tasks {
        leaves_a_bomb(task);
        leaves_a_bomb(task);
    }
    drop(tasks);
}
