//! Peers that leave: every wait on this side ends, after everything that the peer sent.

use std::thread;
use std::time::Instant;

use verbs_channel::verbs_core::MemoryRegion;
use verbs_channel::{
    Channel, DownReason, PollStrategy, PreparedChannel, RejectReason, ScopeError, TransportError,
};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::{Test, begin, faults};

use super::ends::{SOON, bounded, filled, here, patient, pattern, zeros};
use super::meeting::{Meeting, connect};

const ENDED: TransportError = TransportError::Aborted(DownReason::PeerClosed);

/// A channel without a deadline, whose other timeouts are too long for a test.
fn untimed(strategy: PollStrategy) -> PreparedChannel {
    let builder = Channel::builder(&here()).strategy(strategy);
    builder
        .drain_timeout(faults::drain_timeout())
        .build()
        .unwrap()
}

/// A channel without any deadline, and its peer, with which `peer` is called.
fn beside<T>(
    strategy: PollStrategy,
    test: impl FnOnce(Channel, &mut dyn FnMut()) -> T,
    peer: impl FnOnce(Channel) + Send,
) -> T {
    let meeting = Meeting::new();
    let address = meeting.address;
    thread::scope(|threads| {
        let peer = threads.spawn(move || peer(connect(address, patient)));
        let channel = meeting.accept(untimed(strategy));
        let mut peer = Some(peer);
        let mut has_left = || peer.take().unwrap().join().unwrap();
        test(channel, &mut has_left)
    })
}

const STRATEGIES: [PollStrategy; 3] = [
    PollStrategy::Spin,
    PollStrategy::SpinThenYield,
    PollStrategy::Notify { after: 10 },
];

/// A way to wait for a receive that only the end of the peer completes.
type Way = fn(&mut Channel, MemoryRegion<Vec<u8>>) -> TransportError;

const WAYS: [(&str, Way); 4] = [
    ("receive", |channel, mut into| {
        match channel.receive(into.scatter_element(..).unwrap()) {
            Err(error) => error,
            other => panic!("{other:?}"),
        }
    }),
    ("a scope's end", |channel, mut into| {
        let ended = channel.scope(|scope| {
            drop(
                scope
                    .post_receive(into.scatter_element(..).unwrap())
                    .unwrap(),
            );
            Ok::<_, ()>(())
        });
        match ended {
            Err(ScopeError::AutoPollError(error)) => error,
            other => panic!("{other:?}"),
        }
    }),
    ("wait", |channel, into| {
        let ticket = channel.start_receive(into).unwrap();
        let ended = channel.wait(ticket, None).unwrap().unwrap();
        assert!(ended.buffer.is_some());
        ended.result.unwrap_err()
    }),
    ("wait_completed", |channel, into| {
        let _ticket = channel.start_receive(into).unwrap();
        channel.wait_completed(None).unwrap().result.unwrap_err()
    }),
];

#[test]
#[ignore = "needs an RDMA device"]
fn every_wait_ends_when_the_peer_drops_its_channel() {
    let _test = begin!();
    for strategy in STRATEGIES {
        for (name, way) in WAYS {
            let wait = |mut channel: Channel, _: &mut dyn FnMut()| {
                let (into, start) = (zeros(&channel, 64), Instant::now());
                let error = bounded(|| way(&mut channel, into));
                faults::error(faults::CLOSED, "channel", &error, faults::at_once(start));
                assert_eq!(error, ENDED, "{name}, {strategy:?}");
                assert_eq!(channel.down_reason(), Some(DownReason::PeerClosed));
                let mut into = zeros(&channel, 64);
                let rejected = channel.receive(into.scatter_element(..).unwrap());
                let is_down = matches!(
                    rejected,
                    Err(TransportError::Rejected(RejectReason::Down(
                        DownReason::PeerClosed
                    )))
                );
                assert!(is_down, "{rejected:?}");
            };
            beside(strategy, wait, drop);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn everything_a_peer_sent_before_it_left_is_received() {
    const MESSAGES: usize = 40;
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for strategy in STRATEGIES {
        for has_left_before in [false, true] {
            let receive = |mut channel: Channel, has_left: &mut dyn FnMut()| {
                for _ in 0..MESSAGES + 1 {
                    let _ticket = channel.start_receive(zeros(&channel, 5000)).unwrap();
                }
                if has_left_before {
                    // This side polls only after everything has arrived and the peer has left.
                    has_left();
                }
                for seed in 0..MESSAGES {
                    let ended = bounded(|| channel.wait_completed(None)).unwrap();
                    assert_eq!(ended.result.unwrap().byte_len(), 5000, "{seed}");
                    assert!(ended.buffer.unwrap()[..] == pattern(seed, 5000));
                }
                let ended = bounded(|| channel.wait_completed(None)).unwrap();
                assert_eq!(ended.result.unwrap_err(), ENDED);
            };
            beside(strategy, receive, |mut channel| {
                for seed in 0..MESSAGES {
                    let from = filled(&channel, seed, 5000);
                    channel.send(from.gather_element(..).unwrap()).unwrap();
                }
            });
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn send_ends_when_a_peer_without_receives_leaves() {
    let _test = begin!(iwarp lacks "a send that waits for a receive");
    let send = |mut channel: Channel, _: &mut dyn FnMut()| {
        let from = filled(&channel, 1, 1000);
        // Without a receive the device retries it forever.
        let ended = bounded(|| channel.send(from.gather_element(..).unwrap()));
        assert!(ended.is_err(), "{ended:?}");
        assert!(channel.is_down());
    };
    beside(PollStrategy::default(), send, |channel| {
        thread::sleep(SOON);
        drop(channel);
    });
}

/// The peer: connects, and does nothing more until it is killed.
fn be_the_peer(address: &str, mut line: Line) {
    let channel = connect(address.parse().unwrap(), patient);
    line.write("here");
    line.is_slow();
    line.read();
    drop(channel);
}

/// A peer in a process of its own, and a channel to it.
fn meet(test: &Test) -> (Child, Channel) {
    let meeting = Meeting::new();
    let address = meeting.address;
    let mut child = Child::start(test, &address.to_string());
    let channel = meeting.accept(untimed(PollStrategy::default()));
    child.line.read();
    (child, channel)
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_wait_ends_when_the_peer_is_killed() {
    if let Some((address, line)) = role() {
        return be_the_peer(&address, line);
    }
    let test = begin!();
    for (name, way) in WAYS {
        let (mut child, mut channel) = meet(&test);
        let (into, start) = (zeros(&channel, 64), Instant::now());
        thread::scope(|threads| {
            threads.spawn(move || {
                thread::sleep(SOON / 3);
                child.kill();
            });
            let error = bounded(|| way(&mut channel, into));
            faults::error(faults::KILLED, "channel", &error, faults::at_once(start));
            assert_eq!(error, ENDED, "{name}");
        });
        assert_eq!(
            channel.down_reason(),
            Some(DownReason::PeerClosed),
            "{name}"
        );
    }
}
