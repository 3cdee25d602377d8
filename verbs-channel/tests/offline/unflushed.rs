//! Channels that have failed and are not flushed end after the drain timeout: in polls, in waits, and in layers above.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_channel::engine::Engine;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_REM_ACCESS_ERR;
use verbs_channel::{Channel, DownReason, Ticket, TransportError};

use crate::fake_device::{DRAIN, bounded, channel, ends, posted, region};
use crate::peers::group;

/// A send fails, and the receive before it is not flushed.
fn fails(channel: &mut Channel) -> Ticket {
    let receive = channel.start_receive(region(channel)).unwrap();
    let send = channel.start_send(region(channel)).unwrap();
    ends(posted()[1], IBV_WC_REM_ACCESS_ERR);
    let failed = channel.engine_mut().poll(send).unwrap().unwrap();
    failed.result.unwrap_err();
    receive
}

/// Whether an operation has ended, aborted by the failure.
fn is_aborted(engine: &mut Engine, ticket: Ticket) -> bool {
    let Some(ended) = engine.poll(ticket).unwrap() else {
        return false;
    };
    let error = ended.result.unwrap_err();
    assert!(
        matches!(error, TransportError::Aborted(DownReason::Work { .. })),
        "{error:?}"
    );
    true
}

fn is_readable(set: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(set, PollFlags::IN)];
    let within = Timespec::try_from(within).unwrap();
    poll(&mut fds, Some(&within)).unwrap() == 1
}

/// A channel whose peer is watched or not, with the peer's end.
fn channel_with_peer(is_watched: bool) -> (Channel, Option<UnixStream>) {
    let mut channel = channel();
    let theirs = is_watched.then(|| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        channel.watch_peer(ours).unwrap();
        theirs
    });
    (channel, theirs)
}

#[test]
fn checks_alone_end_what_is_not_flushed() {
    for is_watched in [false, true] {
        let (mut channel, _theirs) = channel_with_peer(is_watched);
        let receive = fails(&mut channel);
        let engine = channel.engine_mut();
        let start = Instant::now();
        engine.check_peers(start);
        engine.check_peers(start + DRAIN - Duration::from_millis(1));
        assert!(!is_aborted(engine, receive), "{is_watched}: too early");
        engine.check_peers(start + DRAIN);
        assert!(is_aborted(engine, receive), "{is_watched}");
    }
}

#[test]
fn polls_and_waits_alone_end_what_is_not_flushed() {
    for is_watched in [false, true] {
        let (mut channel, _theirs) = channel_with_peer(is_watched);
        let receive = fails(&mut channel);
        let ended = bounded(|| {
            loop {
                if let Some(ended) = channel.poll(receive).unwrap() {
                    break ended;
                }
            }
        });
        ended.result.unwrap_err();

        let (mut channel, _theirs) = channel_with_peer(is_watched);
        let receive = fails(&mut channel);
        let waited = bounded(|| channel.wait(receive, Some(Duration::from_secs(5))));
        let ended = waited.unwrap().expect("it ends before the deadline");
        ended.result.unwrap_err();
    }
}

#[test]
fn descriptor_announces_what_is_not_flushed_whenever_it_was_requested() {
    for is_watched in [false, true] {
        for is_late in [false, true] {
            let (mut channel, _theirs) = channel_with_peer(is_watched);
            let early = (!is_late).then(|| channel.engine_mut().peers_fd().unwrap());
            let receive = fails(&mut channel);
            let engine = channel.engine_mut();
            let set = early.unwrap_or_else(|| engine.peers_fd().unwrap());
            bounded(|| {
                while !is_aborted(engine, receive) {
                    let announced = is_readable(&set, Duration::from_secs(5));
                    assert!(announced, "watched: {is_watched}, late: {is_late}");
                    engine.check_peers(Instant::now());
                }
            });
            assert!(!is_readable(&set, Duration::ZERO), "nothing is left to do");
        }
    }
}

#[test]
fn wait_for_other_channels_ends_what_is_not_flushed() {
    let (mut group, _theirs) = group(2);
    let first = group.channels().next().unwrap();
    let mut channel = group.channel(first).unwrap();
    let buffers = [0; 2].map(|_| channel.pd().reg_mr(vec![0_u8; 64]).unwrap());
    let [to_send, into] = buffers;
    let receive = channel.start_receive(into).unwrap();
    let _send = channel.start_send(to_send).unwrap();
    ends(posted()[1], IBV_WC_REM_ACCESS_ERR);
    let failed = bounded(|| group.wait_completed(None)).unwrap();
    failed.result.unwrap_err();
    let aborted = bounded(|| group.wait_completed(None)).unwrap();
    assert_eq!(aborted.ticket, receive);
    assert_eq!(group.len(), 1, "the other one is not affected");
}
