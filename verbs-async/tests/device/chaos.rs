//! Thousands of operations from 64 tasks, cancelled at random: nothing is lost, nothing comes twice.

use std::collections::HashSet;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use verbs_async::verbs_channel::verbs_core::{RemoteMemoryRegion, WorkSuccess};
use verbs_async::verbs_channel::{BufferPool, Incoming, OwnedBuffer, TransportError};
use verbs_async::{AsyncChannel, Operation};
use verbs_harness::begin;

use super::ends::{WAYS, Way, block, bytes, given, narrow_pair, run, within};

/// Operations of each task that sends or adds. Tasks that receive do so until the end. With the latter
/// these are more than 10,000 on the three notifiers.
const OPERATIONS: u64 = 80;

/// The numbers of tasks that send to the right, send to the left, receive there, and add.
const TASKS: u64 = 64;

/// Random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    const fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Both ends, and the records of what arrived.
struct Scene {
    left: AsyncChannel,
    right: AsyncChannel,
    pool: BufferPool,
    counter: RemoteMemoryRegion,
    // The number of tasks that send or add and have not ended.
    active: AtomicU64,
    rightward: Mail,
    leftward: Mail,
    // The previous values of the counters, from the additions that were awaited.
    before: Mutex<Vec<u64>>,
    begun: AtomicU64,
    begun_additions: AtomicU64,
    given_up_receives: AtomicU64,
}

/// Ids of messages: those known to be sent, and those received.
#[derive(Default)]
struct Mail {
    sent: Mutex<Vec<u64>>,
    received: Mutex<Vec<u64>>,
}

/// The last message to the right.
const LAST: u64 = u64::MAX;

/// Awaits an operation or drops it, at random. Returns the outcome if it was awaited.
async fn perhaps(
    mut operation: Operation,
    dice: &mut Dice,
) -> Option<(Result<WorkSuccess, TransportError>, OwnedBuffer)> {
    match dice.roll(8) {
        0 => None,
        1 => {
            // That may have completed it: then it is not polled again.
            let mut cx = Context::from_waker(Waker::noop());
            match Pin::new(&mut operation).poll(&mut cx) {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            }
        }
        2 => within(Duration::from_micros(dice.roll(2000)), operation).await,
        3 => match within(Duration::from_micros(dice.roll(500)), &mut operation).await {
            Some(ended) => Some(ended),
            // It is not polled for a while, and then again.
            None => Some(operation.await),
        },
        _ => Some(operation.await),
    }
}

impl Scene {
    async fn send(&self, task: u64, to_the_right: bool) {
        let mut dice = Dice::new(task + 1);
        let (channel, mail) = match to_the_right {
            true => (&self.left, &self.rightward),
            false => (&self.right, &self.leftward),
        };
        for at in 0..OPERATIONS {
            let id = task << 32 | at;
            self.begun.fetch_add(1, Ordering::Relaxed);
            let sending = channel.send(block(&self.pool, &id.to_le_bytes()));
            let ended = match to_the_right {
                true => perhaps(sending, &mut dice).await,
                false => Some(sending.await),
            };
            if let Some((sent, bytes)) = ended {
                sent.unwrap();
                assert_eq!(&bytes[..], id.to_le_bytes());
                mail.sent.lock().unwrap().push(id);
            }
        }
    }

    /// Until the channel is shut down.
    async fn receive(&self, task: u64, on_the_right: bool) {
        let mut dice = Dice::new(task + 101);
        let (channel, mail) = match on_the_right {
            true => (&self.right, &self.rightward),
            false => (&self.left, &self.leftward),
        };
        loop {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let receiving = channel.receive(block(&self.pool, &[0; 8]));
            let ended = match on_the_right {
                true => Some(receiving.await),
                false => perhaps(receiving, &mut dice).await,
            };
            let Some((received, bytes)) = ended else {
                self.given_up_receives.fetch_add(1, Ordering::Relaxed);
                // A task that never waits keeps other tasks from running.
                within(Duration::from_micros(50), pending::<()>()).await;
                if channel.is_down() {
                    return;
                }
                continue;
            };
            match received {
                Ok(received) => assert_eq!(received.byte_len(), 8),
                Err(error) => {
                    assert!(channel.is_down(), "{error}");
                    return;
                }
            }
            let id = u64::from_le_bytes(bytes[..].try_into().unwrap());
            mail.received.lock().unwrap().push(id);
        }
    }

    async fn add(&self, task: u64) {
        let mut dice = Dice::new(task + 201);
        for _ in 0..OPERATIONS {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.begun_additions.fetch_add(1, Ordering::Relaxed);
            let adding = self.left.run(Incoming::fetch_and_add(
                block(&self.pool, &[0; 8]),
                self.counter,
                1,
            ));
            if let Some((added, bytes)) = perhaps(adding, &mut dice).await {
                added.unwrap();
                let before = u64::from_ne_bytes(bytes[..].try_into().unwrap());
                self.before.lock().unwrap().push(before);
            }
        }
    }

    /// Ends the tasks that receive, when everything has been received.
    async fn finish(&self) {
        let last = self.left.send(block(&self.pool, &LAST.to_le_bytes()));
        last.await.0.unwrap();
        while !self.rightward.received.lock().unwrap().contains(&LAST) {
            within(Duration::from_millis(1), pending::<()>()).await;
        }
        self.right.abort();
        self.left.abort();
    }

    /// One of the 64 tasks.
    async fn play(self: Arc<Self>, task: u64) {
        match task {
            0..16 => self.send(task, true).await,
            16..28 => self.send(task, false).await,
            28..40 => self.receive(task, true).await,
            40..52 => self.receive(task, false).await,
            _ => self.add(task).await,
        }
        let receives = (28..52).contains(&task);
        if !receives && self.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.finish().await;
        }
    }
}

/// Runs the tasks at once: each by itself, or some together in a thread.
async fn play_all(way: Way, scene: &Arc<Scene>) {
    let play = |task| Arc::clone(scene).play(task);
    if way == Way::Tokio {
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(play(task))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        return;
    }
    let quarters: Vec<_> = (0..4)
        .map(|quarter| {
            let tasks: Vec<_> = (quarter..TASKS).step_by(4).map(play).collect();
            thread::spawn(move || drop(pollster::block_on(join_all(tasks))))
        })
        .collect();
    for quarter in quarters {
        quarter.join().unwrap();
    }
}

fn distinct(ids: &[u64]) -> HashSet<u64> {
    let set: HashSet<u64> = ids.iter().copied().collect();
    assert_eq!(set.len(), ids.len(), "something came twice");
    set
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_message_is_lost_or_duplicated() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let mut begun = 0;
    for way in WAYS {
        begun += run(way, async move { scene(way).await });
    }
    assert!(begun > 10_000, "{begun} operations only");
}

/// The number of operations.
async fn scene(way: Way) -> u64 {
    let (group, left, right) = narrow_pair(way, 16);
    let counter = given(group.pd(), &[0; 8]);
    // A block for each operation: those that were dropped keep theirs while the thread that drives does not run.
    let pool = BufferPool::new(group.pd(), 8, 8192).unwrap();
    let scene = Arc::new(Scene {
        left,
        right,
        pool: pool.clone(),
        counter: counter.remote(),
        active: AtomicU64::new(40),
        rightward: Mail::default(),
        leftward: Mail::default(),
        before: Mutex::default(),
        begun: AtomicU64::new(0),
        begun_additions: AtomicU64::new(0),
        given_up_receives: AtomicU64::new(0),
    });
    play_all(way, &scene).await;
    let scene = Arc::into_inner(scene).expect("all tasks have ended");
    // To the right, sends are cancelled, receives never: every message that was sent has arrived.
    let sent = distinct(&scene.rightward.sent.into_inner().unwrap());
    let received = distinct(&scene.rightward.received.into_inner().unwrap());
    assert!(sent.is_subset(&received), "{way:?}: some are lost");
    let mut others = received.difference(&sent).filter(|id| **id != LAST);
    assert!(others.all(|id| id >> 32 < 16 && id & 0xffff_ffff < OPERATIONS));
    assert!(received.len() > sent.len(), "none was cancelled in time");
    // To the left, receives are cancelled: missing messages went to cancelled receives.
    let sent = distinct(&scene.leftward.sent.into_inner().unwrap());
    let received = distinct(&scene.leftward.received.into_inner().unwrap());
    let given_up = scene.given_up_receives.into_inner();
    assert_eq!(sent.len() as u64, 12 * OPERATIONS);
    assert!(received.is_subset(&sent));
    assert!(sent.len() as u64 - received.len() as u64 <= given_up);
    // Each addition was done once, if at all.
    let before = distinct(&scene.before.into_inner().unwrap());
    let sum = u64::from_ne_bytes(bytes(&counter)[..].try_into().unwrap());
    assert!(before.iter().all(|number| *number < sum));
    assert!(sum >= before.len() as u64 && sum <= scene.begun_additions.into_inner());
    for channel in [scene.left, scene.right] {
        channel.close().await.unwrap();
    }
    drop(scene.pool);
    assert_eq!(
        pool.available(),
        pool.capacity(),
        "{way:?}: blocks are lost"
    );
    scene.begun.into_inner()
}
