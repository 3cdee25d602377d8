//! Any task can drive: one that sleeps, does not poll again or was leaked stops no other.

use std::future::pending;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Builder;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{BufferPool, Channel};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{begin, device_name, peer_name};

use super::ends::{
    PATIENCE, WAYS, Way, alone, block, buffer, connect, events, narrow_pair, pair, poll_once, run,
    within,
};

/// Lets others run for a while.
async fn moment() {
    within(Duration::from_millis(20), pending::<()>()).await;
}

/// Rounds of ping-pong, on each notifier.
const ROUNDS: u32 = 2000;

/// One message at a time: each end sleeps for each, in a race between the completion and the arming.
async fn rally(channel: &AsyncChannel, group: &AsyncGroup, serves: bool) {
    let word = || buffer(group.pd(), &[0; 4]);
    let (mut spare, mut own) = (word(), word());
    let mut receiving = channel.receive(word());
    for round in 0..ROUNDS {
        own[..].copy_from_slice(&round.to_le_bytes());
        if serves {
            let (sent, bytes) = channel.send(own).await;
            sent.unwrap();
            own = bytes;
        }
        let (received, bytes) = receiving.await;
        received.unwrap();
        assert_eq!(bytes[..], round.to_le_bytes());
        receiving = channel.receive(spare);
        spare = bytes;
        if !serves {
            let (sent, bytes) = channel.send(own).await;
            sent.unwrap();
            own = bytes;
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_wake_up_is_missed_in_thousands_of_rounds() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        let side = move |stream, device: String, serves| async move {
            let group = alone(way, &device);
            let stream = TcpStream::from(OwnedFd::from(stream));
            let channel = group.exchange(stream, PATIENCE).await.unwrap().channel;
            rally(&channel, &group, serves).await;
            // The other side may not have polled its last message yet.
            channel
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peer = thread::spawn(move || run(way, side(theirs, peer_name(), false)));
        let channel = run(way, side(ours, device_name(), true));
        drop((channel, peer.join().unwrap()));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn tasks_that_are_polled_once_stop_no_other() {
    let _test = begin!();
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = pair(way);
            let pd = group.pd();
            // Each task has been the last to arm, and will not drive again.
            let mut sleepers = Vec::new();
            for round in 0..20_u8 {
                let mut sleeper = right.receive(buffer(pd, &[0; 8]));
                assert!(!poll_once(&mut sleeper));
                let mut receiving = right.receive(buffer(pd, &[0; 8]));
                assert!(!poll_once(&mut receiving));
                let mut first = left.send(buffer(pd, &[round; 8]));
                poll_once(&mut first);
                let second = left.send(buffer(pd, &[round; 8]));
                second.await.0.unwrap();
                let (received, bytes) = receiving.await;
                received.unwrap();
                assert_eq!(bytes[..], [round; 8]);
                sleepers.push((round, sleeper));
            }
            // They get their outcomes when they poll again.
            for (round, sleeper) in sleepers {
                let (received, bytes) = sleeper.await;
                received.unwrap();
                assert_eq!(bytes[..], [round; 8]);
            }
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn woken_task_that_does_not_poll_stops_no_other() {
    let _test = begin!();
    for way in WAYS {
        run(way, async move {
            // Nothing else drives the queue there.
            let (here, there) = (alone(way, &device_name()), alone(way, &peer_name()));
            let (sender, receiver) = connect(&here, &there);
            for round in 0..8_u8 {
                let mut first = receiver.receive(buffer(there.pd(), &[0; 8]));
                assert!(!poll_once(&mut first));
                let second = receiver.receive(buffer(there.pd(), &[0; 8]));
                let waits = within(Duration::from_secs(10), second);
                let waits = thread::spawn(|| pollster::block_on(waits));
                moment().await;
                for _ in 0..2 {
                    let sending = sender.send(buffer(here.pd(), &[round; 8]));
                    sending.await.0.unwrap();
                    moment().await;
                }
                let (received, bytes) = waits.join().unwrap().expect("it sleeps on");
                received.unwrap();
                assert_eq!(bytes[..], [round; 8]);
            }
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
#[expect(clippy::mem_forget, reason = "the test leaks operations")]
fn leaked_operations_stop_no_other() {
    let _test = begin!();
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = narrow_pair(way, 4);
            let pool = BufferPool::new(group.pd(), 8, 64).unwrap();
            let places = right.credits(Queue::Receive) as usize;
            let leaked = places + 2;
            // In flight and in the backlog; polled and never polled.
            for at in 0..leaked {
                let mut leaked = right.receive(block(&pool, &[0; 8]));
                if at % 2 == 0 {
                    poll_once(&mut leaked);
                }
                std::mem::forget(leaked);
            }
            let mut receiving = right.receive(block(&pool, &[0; 8]));
            let send = async |count| {
                let sends = (0..count).map(|_| left.send(block(&pool, b"abcd")));
                for (sent, _) in join_all(sends.collect::<Vec<_>>()).await {
                    sent.unwrap();
                }
            };
            if is_iwarp() {
                // It lacks sends that wait for a receive: the others come when all of the backlog is posted.
                send(places).await;
                while right.credits(Queue::Receive) == 0 {
                    assert!(!poll_once(&mut receiving));
                    moment().await;
                }
                send(leaked + 1 - places).await;
            } else {
                send(leaked + 1).await;
            }
            assert_eq!(&receiving.await.1[..4], b"abcd");
            left.close().await.unwrap();
            right.close().await.unwrap();
            // Only the leaked operations keep their buffers.
            assert_eq!(pool.available(), 64 - leaked);
        });
    }
}

/// Sends and receives on a pair of channels, as long as it is polled, and counts the round trips.
async fn round_trips(group: AsyncGroup, trips: Arc<AtomicU32>) {
    let (left, right) = group.loopback().unwrap();
    let (mut to, mut from) = (buffer(group.pd(), &[1; 8]), buffer(group.pd(), &[0; 8]));
    loop {
        for (sender, receiver) in [(&left, &right), (&right, &left)] {
            let receiving = receiver.receive(from);
            let (sent, bytes) = sender.send(to).await;
            sent.unwrap();
            to = bytes;
            let (received, bytes) = receiving.await;
            received.unwrap();
            from = bytes;
        }
        trips.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_tokio_task_gets_its_share_and_timers_tick() {
    let _test = begin!();
    let runtimes = [1, 3].map(|workers| {
        let mut builder = match workers {
            1 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(workers).enable_all().build();
        (workers, runtime.unwrap())
    });
    for (workers, runtime) in runtimes {
        let trips = [(); 4].map(|()| Arc::<AtomicU32>::default());
        let ticks = Arc::<AtomicU32>::default();
        let ticked = Arc::clone(&ticks);
        let time = Duration::from_secs(3);
        let context = verbs_harness::context();
        runtime.block_on(async {
            let pd = context.alloc_pd().unwrap();
            let events = events(Way::Tokio, pd.context());
            let channels = Channel::builder(&pd).peer_timeout(None);
            let group = AsyncGroup::new(channels, 8, &events).unwrap();
            for trips in &trips {
                tokio::spawn(round_trips(group.clone(), Arc::clone(trips)));
            }
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    ticked.fetch_add(1, Ordering::Relaxed);
                }
            });
            tokio::time::sleep(time).await;
        });
        drop(runtime);
        let trips = trips.map(|trips| trips.load(Ordering::Relaxed));
        let ticks = ticks.load(Ordering::Relaxed);
        println!("{workers} workers: {trips:?} round trips, {ticks} ticks");
        let all = trips.iter().sum::<u32>();
        assert!(all > 0);
        let least = all / 4 / 4;
        assert!(trips.iter().all(|trips| *trips >= least), "{trips:?}");
        // A round trip is four operations.
        let budgets = 4 * all / 128;
        assert!(ticks >= budgets / 8, "{ticks} ticks in {budgets} budgets");
    }
}
