//! Tasks that wait for a block of a pool, bytes that are copied into blocks, and messages in them.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;

use fake_libibverbs::{assert_all_is_well, with};
use verbs_channel::buffer::TakeWhenFree;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_SUCCESS, ibv_wc,
};
use verbs_channel::{BufferPool, Error, PoolBuffer};
use verbs_harness::WakeCounter;

use crate::fake_device::{channel, forget_the_past, pd, posted};

/// A pool of blocks of 8 bytes.
fn pool(pd: &ProtectionDomain, count: usize) -> BufferPool {
    BufferPool::new(pd, 8, count).unwrap()
}

/// Unparks a thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A future, boxed as that of a task.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that is polled where its task is woken, until it is done.
struct InPlace(Mutex<Option<Task>>);

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        let mut task = self.0.lock().unwrap().take().unwrap();
        let done = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(done.is_ready());
    }
}

fn poll(future: &mut TakeWhenFree<'_>, waker: &Waker) -> Poll<PoolBuffer> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn blocks_that_come_back_go_to_waiting_tasks_in_their_order() {
    let pool = pool(&pd(), 2);
    let mut taken = [pool.take(), pool.take()];
    let counts = [(); 3].map(|()| WakeCounter::new());
    let wakers = counts.clone().map(Waker::from);
    let mut waits = [(); 3].map(|()| Box::pin(pool.take_when_free()));
    let mut poll = |at: usize| {
        let mut context = Context::from_waker(&wakers[at]);
        waits[at].as_mut().poll(&mut context)
    };
    for at in 0..3 {
        assert!(poll(at).is_pending());
    }
    let woken = || counts.each_ref().map(|count| count.wakes());
    taken[0] = None;
    assert_eq!(woken(), [1, 0, 0]);
    assert!(pool.take().is_none(), "the block is the first task's");
    assert_eq!(pool.available(), 0);
    assert!(poll(1).is_pending() && poll(2).is_pending());
    taken[1] = None;
    assert_eq!(woken(), [1, 1, 0]);

    // A later task may be polled first.
    let Poll::Ready(second) = poll(1) else {
        panic!("it was given a block");
    };
    let Poll::Ready(first) = poll(0) else {
        panic!("it was given a block");
    };
    assert_ne!(first.as_ptr(), second.as_ptr());
    drop(second);
    assert_eq!(woken(), [1, 1, 1]);
    assert!(poll(2).is_ready());
    assert_eq!(pool.available(), 1, "no task waits any more");
    assert!(pool.take().is_some());
    drop(first);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_task_that_stops_waiting_loses_no_block_and_delays_no_task() {
    let pool = pool(&pd(), 1);
    let poll = |wait: &mut Pin<Box<TakeWhenFree<'_>>>| -> Poll<PoolBuffer> {
        Future::poll(wait.as_mut(), &mut Context::from_waker(Waker::noop()))
    };
    for stops_before in [true, false] {
        let block = pool.take().unwrap();
        let mut stops = Box::pin(pool.take_when_free());
        let mut waits = Box::pin(pool.take_when_free());
        assert!(poll(&mut stops).is_pending() && poll(&mut waits).is_pending());
        if stops_before {
            drop(stops);
            drop(block);
        } else {
            drop(block);
            drop(stops);
        }
        assert!(poll(&mut waits).is_ready());
        assert_eq!(pool.available(), 1);
    }
    // The last that waits.
    let block = pool.take().unwrap();
    let mut stops = Box::pin(pool.take_when_free());
    assert!(poll(&mut stops).is_pending());
    drop(stops);
    drop(block);
    assert!(pool.take().is_some());
}

#[test]
fn the_last_waker_of_a_task_is_woken() {
    let pool = pool(&pd(), 1);
    let block = pool.take().unwrap();
    let counts = [(); 2].map(|()| WakeCounter::new());
    let mut wait = pin!(pool.take_when_free());
    for waker in counts.clone().map(Waker::from) {
        assert!(
            wait.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    assert_eq!(Arc::strong_count(&counts[0]), 1, "the old waker is dropped");
    drop(block);
    assert_eq!(counts.map(|count| count.wakes()), [0, 1]);
}

#[test]
fn a_task_may_free_the_pool_while_its_block_is_still_given_to_it() {
    for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
        let pool = pool(&pd(), 1);
        let block = pool.take().unwrap();
        let library = fake_libibverbs::lend();
        let giver = thread::spawn(move || {
            library();
            drop(block);
        });
        let block = block_on(pool.take_when_free());
        drop(pool);
        drop(block);
        giver.join().unwrap();
    }
    assert_all_is_well();
}

#[test]
fn a_task_may_be_polled_in_its_waker_and_free_the_pool() {
    let pool = pool(&pd(), 1);
    let block = pool.take().unwrap();
    let mut task: Task = Box::pin(async move {
        let block = pool.take_when_free().await;
        drop(pool);
        drop(block);
    });
    let in_place = Arc::new(InPlace(Mutex::default()));
    let waker = Waker::from(Arc::clone(&in_place));
    assert!(
        task.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    *in_place.0.lock().unwrap() = Some(task);
    drop(block);
    assert!(in_place.0.lock().unwrap().is_none(), "it was woken");
    assert_all_is_well();
}

#[test]
fn wakers_that_poll_in_place_do_not_recurse() {
    // Nested calls of this number would overflow the stack.
    let count = if cfg!(miri) { 20 } else { 50_000 };
    let pool = pool(&pd(), 1);
    let block = pool.take().unwrap();
    let tasks: Vec<Arc<InPlace>> = (0..count)
        .map(|_| {
            let pool = pool.clone();
            let mut future = Box::pin(async move { drop(pool.take_when_free().await) });
            let task = Arc::new(InPlace(Mutex::default()));
            let waker = Waker::from(Arc::clone(&task));
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            *task.0.lock().unwrap() = Some(future);
            task
        })
        .collect();
    drop(block);
    assert!(tasks.iter().all(|task| task.0.lock().unwrap().is_none()));
    assert_eq!(pool.available(), 1);
    drop((tasks, pool));
    assert_all_is_well();
}

#[test]
fn a_waker_that_panics_stops_no_drop_and_no_other_task() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the test");
        }
    }

    let pool = pool(&pd(), 2);
    let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
    let (mut broken, mut waits) = (pool.take_when_free(), pool.take_when_free());
    let panics = Waker::from(Arc::new(Panics));
    let woken = WakeCounter::new();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(poll(&mut broken, &panics).is_pending());
    assert!(poll(&mut waits, &waker).is_pending());
    drop(first);
    drop(second);
    assert_eq!(woken.wakes(), 1);
    assert!(poll(&mut broken, Waker::noop()).is_ready());
    assert!(poll(&mut waits, Waker::noop()).is_ready());
    drop((broken, waits));
    drop(pool);
    assert_all_is_well();
}

/// A waker whose every drop panics.
fn bomb() -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| RawWaker::new(data, &TABLE),
        |_| {},
        |_| {},
        |_| panic!("a waker of the test"),
    );
    // SAFETY: the functions use no data.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) }
}

#[test]
fn a_waker_that_panics_when_it_is_dropped_loses_no_block() {
    let pool = pool(&pd(), 1);
    let taken = pool.take().unwrap();
    let mut waits = pool.take_when_free();
    let bomb = std::mem::ManuallyDrop::new(bomb());
    assert!(poll(&mut waits, &bomb).is_pending());
    drop(taken);
    // It was given the block; the clone that this poll makes is dropped with the block in hand.
    let Poll::Ready(block) = poll(&mut waits, &bomb) else {
        panic!("it is not ready");
    };
    drop((block, waits));
    // The waker of a wait that ends is the list's.
    let taken = pool.take().unwrap();
    let mut waits = pool.take_when_free();
    assert!(poll(&mut waits, &bomb).is_pending());
    drop(waits);
    drop(taken);
    assert_eq!(pool.available(), 1);
}

#[test]
fn a_block_is_filled_with_bytes_that_fit() {
    let pool = pool(&pd(), 1);
    for bytes in [&b"hello"[..], b"", b"8 bytes!"] {
        let buffer = pool.take_with(bytes).unwrap().unwrap();
        assert_eq!((&buffer[..], buffer.capacity()), (bytes, 8));
        assert!(pool.take_with(bytes).unwrap().is_none(), "none is free");
        drop(buffer);
        let block = pool.take().unwrap();
        assert_eq!(&block.filled(bytes).unwrap()[..], bytes);
    }
    let block = pool.take().unwrap();
    // Too long, whether a block is free or not.
    let too_long = |error| {
        matches!(
            error,
            Error::BlockTooShort {
                len: 9,
                block_len: 8
            }
        )
    };
    assert!(too_long(pool.take_with(b"too long.").unwrap_err()));
    assert!(too_long(block.filled(b"too long.").unwrap_err()));
    assert!(too_long(pool.take_with(b"too long.").unwrap_err()));
    assert_eq!(pool.available(), 1);
}

#[test]
fn the_message_of_a_receive_is_what_arrived_in_its_range() {
    let mut channel = channel();
    let pool = pool(channel.pd(), 1);
    let mut completed = |is_receive: bool, opcode, status| {
        forget_the_past();
        let buffer = pool.take().unwrap().into_range(2..).unwrap();
        let ticket = if is_receive {
            channel.start_receive(buffer).unwrap()
        } else {
            channel.start_send(buffer).unwrap()
        };
        let wr_id = posted()[0];
        let done = ibv_wc {
            wr_id,
            status,
            opcode,
            byte_len: 3,
            ..Default::default()
        };
        with(|library| library.done.push_back(done));
        let mut completed = channel.poll(ticket).unwrap().unwrap();
        completed
            .buffer
            .as_mut()
            .unwrap()
            .copy_from_slice(b"abcdef");
        completed
    };
    let message = completed(true, IBV_WC_RECV, IBV_WC_SUCCESS);
    assert_eq!(message.message(), Some(&b"abc"[..]));
    drop(message);
    let written = completed(true, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS);
    assert_eq!(written.message(), None);
    drop(written);
    let sent = completed(false, IBV_WC_SEND, IBV_WC_SUCCESS);
    assert_eq!(sent.message(), None);
    drop(sent);
    let failed = completed(true, IBV_WC_RECV, IBV_WC_LOC_LEN_ERR);
    assert_eq!(failed.message(), None);
}
