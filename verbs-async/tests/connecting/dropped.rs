//! Channels that are dropped by what the driver calls.

use std::future::Future as _;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, ThreadId};

use fake_libibverbs::{posted, share, with};
use verbs_async::AsyncChannel;

use crate::bench::{Bench, announce, done};
use crate::gate::LONG;
use crate::transfer_bench::Pair;
use crate::transfers::slow;

/// Drops a channel when it is woken, and waits until the queue pair is being destroyed.
struct Drops {
    channel: Mutex<Option<AsyncChannel>>,
    threads: Mutex<mpsc::Receiver<ThreadId>>,
    destroyer: Mutex<Option<ThreadId>>,
}

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        let channel = self.channel.lock().unwrap().take();
        if channel.is_some() {
            drop(channel);
            let destroyer = self.threads.lock().unwrap().recv_timeout(LONG);
            *self.destroyer.lock().unwrap() = destroyer.ok();
        }
    }
}

#[test]
fn queue_pair_is_destroyed_though_a_waker_waits_for_that() {
    let _shared = share();
    let bench = Bench::new();
    let Pair { group, pool, a, b } = Pair::new(&bench);
    let (threads, release) = slow();
    release.send(()).unwrap();
    let drops = Arc::new(Drops {
        channel: Mutex::new(Some(b)),
        threads: Mutex::new(threads),
        destroyer: Mutex::new(None),
    });
    with(|library| library.posted.clear());
    let mut send = pin!(a.send(pool.take().unwrap()));
    let waker = Waker::from(Arc::clone(&drops));
    let mut cx = Context::from_waker(&waker);
    assert!(send.as_mut().poll(&mut cx).is_pending());
    done([posted()[0]]);
    announce(&bench);
    let destroyer = drops.destroyer.lock().unwrap().take();
    let destroyer = destroyer.expect("it was not destroyed while the waker ran");
    assert_ne!(destroyer, thread::current().id());
    assert!(send.as_mut().poll(&mut cx).is_ready());
    with(|library| library.before = None);
    drop((group, a));
}
