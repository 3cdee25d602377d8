//! Handshakes that block because their peers do not answer.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use verbs_async::verbs_channel::OwnedRequest;
use verbs_async::{AsyncChannel, AsyncGroup, Result};

use crate::gate::{LONG, block_on, events, group, have_begun, held_handshakes, held_preparations};
use crate::names;

/// Connects two channels of a group to each other, each by an exchange.
async fn pair(group: AsyncGroup) -> Result<[AsyncChannel; 2]> {
    let (left, right) = UnixStream::pair().unwrap();
    let [left, right] = [left, right].map(|end| TcpStream::from(OwnedFd::from(end)));
    let (left, right) = tokio::join!(group.exchange(left, LONG), group.exchange(right, LONG));
    Ok([left?.channel, right?.channel])
}

#[test]
fn handshake_abandoned_while_blocked_leaks_nothing() {
    block_on(async {
        let group = group(&events(), 2);
        let held = held_handshakes(2);
        let blocked = tokio::spawn(pair(group.clone()));
        have_begun(&held, 2).await;
        blocked.abort();
        assert!(blocked.await.unwrap_err().is_cancelled());
        drop(held);
        // Both places are free.
        pair(group).await.unwrap();
    });
}

#[test]
fn queue_pairs_are_prepared_and_connected_on_helper_threads() {
    block_on(async {
        let group = group(&events(), 2);
        let held = held_preparations(2);
        let preparing = tokio::spawn(pair(group.clone()));
        // Until both block, while this thread goes on.
        have_begun(&held, 2).await;
        drop(held);
        drop(preparing.await.unwrap().unwrap());
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        let held = held_handshakes(1);
        let joining = tokio::spawn(async move { group.handshake(member, &endpoint).await });
        have_begun(&held, 1).await;
        drop(held);
        assert!(!joining.await.unwrap().unwrap().is_down());
    });
}

#[test]
fn names_are_resolved_on_helper_threads() {
    block_on(async {
        let group = group(&events(), 1);
        let timeout = Duration::from_secs(1);
        // Other tests have asked, too.
        drop(names::asked_by());
        let connected = group.connect(names::NONE, timeout).await;
        connected.unwrap_err();
        group.listen(names::NONE, timeout).await.unwrap_err();
        let asked_by = names::asked_by();
        assert_eq!(asked_by.len(), 2);
        assert!(!asked_by.contains(&thread::current().id()));
    });
}

/// Ends a channel with a receive in flight, and a transfer at its timeout.
async fn ends_in_time(channel: &AsyncChannel) {
    let buffer = channel.pd().reg_mr(vec![0_u8; 8]).unwrap();
    let mut transfer = channel.transfer(1);
    transfer.add(channel.id(), OwnedRequest::receive(buffer));
    let finished = transfer.finish_by(
        Instant::now() + Duration::from_millis(1),
        tokio::time::sleep,
    );
    let finished = tokio::time::timeout(LONG / 4, finished).await;
    finished.expect("the transfer hangs").unwrap_err();
    let closed = tokio::time::timeout(LONG / 4, channel.close()).await;
    let error = closed.expect("the channel hangs").unwrap_err();
    assert!(!error.is_stuck(), "{error}");
}

#[test]
fn names_without_an_answer_hold_up_neither_handshakes_nor_destroys() {
    block_on(async {
        let group = group(&events(), 4);
        let (left, _right) = group.loopback().unwrap();
        let names = names::hold();
        let attempts: Vec<_> = (0..100)
            .map(|_| {
                let (group, timeout) = (group.clone(), Duration::from_millis(50));
                tokio::spawn(async move { group.connect(names::NONE, timeout).await })
            })
            .collect();
        for attempt in attempts {
            attempt.await.unwrap().unwrap_err();
        }
        ends_in_time(&left).await;
        let pair = tokio::time::timeout(LONG / 4, pair(group.clone())).await;
        drop(pair.expect("the handshake hangs").unwrap());
        drop(names);
    });
}

#[test]
fn blocked_handshakes_hold_up_no_destroys() {
    block_on(async {
        let events = events();
        let (left, _right) = group(&events, 2).loopback().unwrap();
        // More than there are threads for handshakes.
        let held = held_handshakes(80);
        let groups: Vec<_> = (0..5).map(|_| group(&events, 16)).collect();
        let blocked: Vec<_> = (0..40)
            .map(|at| tokio::spawn(pair(groups[at % groups.len()].clone())))
            .collect();
        have_begun(&held, 64).await;
        ends_in_time(&left).await;
        drop(held);
        for pair in blocked {
            pair.await.unwrap().unwrap();
        }
    });
}
