//! Waking others: a thread that came for something else is done with it after a while.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Instant;

use fake_libibverbs::{assert_all_is_well, share, with};
use verbs_async::verbs_channel::{BufferPool, Channel, PoolBuffer};
use verbs_async::{AsyncChannel, AsyncGroup, Operation};

use crate::bench::{Bench, bounded, done, join};
use crate::gate::{LONG, wait_for_the_end};

/// Sends whenever it is woken, on the thread that wakes it. The send has completed by then: so that thread
/// finds the next task to wake, which is this one again.
struct Endless {
    channel: AsyncChannel,
    send: Mutex<Option<Operation>>,
    // Nothing comes: polling one drives the channel.
    receives: Mutex<Vec<Operation>>,
    wakes: AtomicUsize,
    // After some wakes, a send of it is abandoned, and completes.
    block: Mutex<Option<PoolBuffer>>,
    is_over: AtomicBool,
}

impl Endless {
    fn sends(self: &Arc<Self>) {
        let Ok(mut own) = self.send.try_lock() else {
            // A poll in here has yielded: it is repeated.
            return;
        };
        if let Some(ended) = own.take() {
            let (result, buffer) = take(ended);
            result.unwrap();
            let wakes = self.wakes.fetch_add(1, Ordering::Relaxed);
            if wakes == ABANDONED
                && let Some(block) = self.block.lock().unwrap().take()
            {
                let abandoned = self.channel.send(block);
                let id = posted();
                drop(abandoned);
                done([id]);
            }
            *own = Some(self.channel.send(buffer));
        }
        let Some(send) = own.as_mut() else {
            return;
        };
        let id = posted();
        let waker = Waker::from(Arc::clone(self));
        for _ in 0..POLLS {
            assert!(poll(send, &waker).is_pending());
        }
        if self.is_over.load(Ordering::Relaxed) {
            *own = None;
        }
        drop(own);
        done([id]);
        self.drives();
    }

    /// Finds what has completed. A few polls: those that yield do not.
    fn drives(&self) {
        let one = self.receives.lock().unwrap().pop();
        let mut one = one.expect("it recurses");
        for _ in 0..POLLS {
            assert!(poll(&mut one, Waker::noop()).is_pending());
        }
        self.receives.lock().unwrap().push(one);
    }
}

impl Wake for Endless {
    fn wake(self: Arc<Self>) {
        self.sends();
    }
}

/// At most two polls yield, one after another.
const POLLS: usize = 3;

const ABANDONED: usize = 10;

/// More than threads that drive, and wakers on each of them.
const RECEIVES: u32 = 16;

fn poll(operation: &mut Operation, waker: &Waker) -> Poll<<Operation as Future>::Output> {
    Pin::new(operation).poll(&mut Context::from_waker(waker))
}

/// The output of an operation that has completed.
fn take(mut ended: Operation) -> <Operation as Future>::Output {
    for _ in 0..POLLS {
        if let Poll::Ready(output) = poll(&mut ended, Waker::noop()) {
            return output;
        }
    }
    panic!("it was woken before it has completed");
}

/// The id of the last request that was posted.
fn posted() -> u64 {
    with(|library| {
        let posted = library.posted.last().and_then(|posted| posted.last());
        let id = posted.unwrap().wr_id;
        library.posted.drain(..library.posted.len() - 1);
        id
    })
}

#[test]
fn thread_that_polls_leaves_endless_waking_to_helper_threads() {
    let _shared = share();
    bounded(|| {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(4).max_recv_wr(RECEIVES);
        let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
        let channel = join(&group);
        let pool = BufferPool::new(&pd, 8, RECEIVES as usize + 2).unwrap();
        let receives = (0..RECEIVES).map(|_| channel.receive(pool.take().unwrap()));
        let receives = Mutex::new(receives.collect());
        let send = channel.send(pool.take().unwrap());
        let endless = Arc::new(Endless {
            channel,
            send: Mutex::new(None),
            receives,
            wakes: AtomicUsize::new(0),
            block: Mutex::new(pool.take()),
            is_over: AtomicBool::new(false),
        });
        *endless.send.lock().unwrap() = Some(send);
        done([posted()]);
        // This returns, though there is always another task to wake.
        endless.sends();
        let until = |is_there: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is_there() {
                assert!(begun.elapsed() < LONG, "nobody continues");
                thread::yield_now();
            }
        };
        let wakes = || endless.wakes.load(Ordering::Relaxed);
        // Meanwhile, too, the block of an abandoned send is returned.
        until(&|| pool.available() == 1);
        // Also beyond that which one call to a helper thread does.
        let before = wakes();
        until(&|| wakes() > before + if cfg!(miri) { 200 } else { 10_000 });
        endless.is_over.store(true, Ordering::Relaxed);
        until(&|| endless.send.try_lock().is_ok_and(|send| send.is_none()));
        drop(endless);
    });
    wait_for_the_end();
    assert_all_is_well();
}
