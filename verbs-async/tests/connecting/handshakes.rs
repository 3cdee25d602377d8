//! Handshakes that block because their peers do not answer.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{assert_all_is_well, share};
use verbs_async::verbs_channel::{DownReason, OwnedRequest, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup, Result};

use crate::gate::{Gate, LONG, block_on, events, group, wait_for_the_end};
use crate::names;

/// Connects two channels of a group to each other, each by an exchange.
async fn pair(group: AsyncGroup) -> Result<[AsyncChannel; 2]> {
    let (left, right) = UnixStream::pair().unwrap();
    let [left, right] = [left, right].map(|end| TcpStream::from(OwnedFd::from(end)));
    let (left, right) = tokio::join!(group.exchange(left, LONG), group.exchange(right, LONG));
    Ok([left?.channel, right?.channel])
}

#[test]
fn blocked_handshakes_delay_neither_the_executor_nor_other_peers() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 20);
        // Both ends of eight pairs.
        let gate = Gate::handshakes(16);
        let blocked: Vec<_> = (0..8).map(|_| tokio::spawn(pair(group.clone()))).collect();
        while gate.held() < 16 {
            tokio::task::yield_now().await;
        }
        pair(group.clone()).await.unwrap();
        assert!(blocked.iter().all(|pair| !pair.is_finished()));
        gate.release();
        for pair in blocked {
            pair.await.unwrap().unwrap();
        }
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn handshake_abandoned_while_blocked_leaks_nothing() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 2);
        let gate = Gate::handshakes(2);
        let blocked = tokio::spawn(pair(group.clone()));
        while gate.held() < 2 {
            tokio::task::yield_now().await;
        }
        blocked.abort();
        assert!(blocked.await.unwrap_err().is_cancelled());
        gate.release();
        // Both places are free.
        pair(group).await.unwrap();
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn manual_handshake_blocks_on_a_helper_thread() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 2);
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        let gate = Gate::handshakes(1);
        let joining = {
            let group = group.clone();
            tokio::spawn(async move { group.handshake(member, &endpoint).await })
        };
        while gate.held() < 1 {
            tokio::task::yield_now().await;
        }
        gate.release();
        assert!(!joining.await.unwrap().unwrap().is_down());
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn queue_pairs_are_prepared_on_helper_threads() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 2);
        let gate = Gate::preparations(2);
        let preparing = tokio::spawn(pair(group.clone()));
        // Until both block, while this thread goes on.
        while gate.held() < 2 {
            tokio::task::yield_now().await;
        }
        gate.release();
        drop(preparing.await.unwrap().unwrap());
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn names_are_resolved_on_helper_threads() {
    let _shared = share();
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
    wait_for_the_end();
    assert_all_is_well();
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
    let _shared = share();
    block_on(async {
        let group = group(&events(), 4);
        let (left, _right) = group.loopback().unwrap();
        let held = names::hold();
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
        drop(held);
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn blocked_handshakes_hold_up_no_destroys() {
    let _shared = share();
    block_on(async {
        let events = events();
        let (left, _right) = group(&events, 2).loopback().unwrap();
        // More than there are threads for handshakes.
        let gate = Gate::handshakes(80);
        let groups: Vec<_> = (0..5).map(|_| group(&events, 16)).collect();
        let blocked: Vec<_> = (0..40)
            .map(|at| tokio::spawn(pair(groups[at % groups.len()].clone())))
            .collect();
        while gate.held() < 64 {
            tokio::task::yield_now().await;
        }
        ends_in_time(&left).await;
        gate.release();
        for pair in blocked {
            pair.await.unwrap().unwrap();
        }
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn channels_that_met_over_a_stream_watch_each_other() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 2);
        let [channel, peer] = pair(group.clone()).await.unwrap();
        let buffer = group.pd().reg_mr(vec![0_u8; 8]).unwrap();
        let receive = channel.receive(buffer);
        drop(peer);
        let (result, _buffer) = receive.await;
        let ended = TransportError::Aborted(DownReason::PeerClosed);
        assert!(matches!(result, Err(error) if error == ended), "{result:?}");
    });
    wait_for_the_end();
    assert_all_is_well();
}
