//! When peers are looked at, what their end is compared with, and how soon TCP finds it out.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use verbs_channel::{Channel, DownReason, PreparedChannel};

use crate::card::{
    DRAIN, bounded, called, calls, connected, flushes, pd, posted, region, succeeds,
};
use crate::peers::{CLOSED, ENDED, LONG, watched};
use crate::peers_over_tcp::tcp;

/// Longer than what was sent to a peer that has left is waited for.
const GRACE: Duration = Duration::from_millis(40);

/// Lets time pass in which the peers are looked at, and nothing is in the queue.
fn look(channel: &mut Channel, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        assert!(channel.next_completed().is_none());
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn the_end_of_a_connection_that_was_replaced_ends_nothing() {
    let (mut channel, theirs) = watched();
    let _receive = channel.start_receive(region(&channel)).unwrap();
    let send = channel.start_send(region(&channel)).unwrap();
    drop(theirs);
    // Its end is seen, and the send is waited for.
    look(&mut channel, Duration::from_millis(1));
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    look(&mut channel, GRACE);
    assert_eq!(channel.down_reason(), None);
    succeeds(posted()[1]);
    let sent = bounded(|| channel.wait(send, None)).unwrap().unwrap();
    sent.result.unwrap();
    // The new one counts.
    drop(theirs);
    look(&mut channel, GRACE);
    assert_eq!(channel.down_reason(), Some(CLOSED));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn a_channel_that_goes_down_for_another_reason_while_its_peer_leaves_ends_by_that() {
    let builder = Channel::builder(&pd()).max_send_wr(4).max_recv_wr(4);
    let mut channel = connected(builder.drain_timeout(LONG).build().unwrap());
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    let _send = channel.start_send(region(&channel)).unwrap();
    drop(theirs);
    look(&mut channel, Duration::from_millis(1));
    channel.shut_down();
    look(&mut channel, GRACE);
    assert_eq!(channel.down_reason(), Some(DownReason::Closed));
    let moves = calls().into_iter().filter(|call| *call == "ibv_modify_qp");
    assert_eq!(moves.count(), 1, "it is moved to ERROR once");
}

/// A way to take what is there, which need not look at any peer.
type Take = fn(&mut Channel);

const FOUND: [(&str, Take); 5] = [
    ("poll", |channel| {
        let ticket = channel.start_receive(region(channel)).unwrap();
        posted().into_iter().for_each(succeeds);
        assert!(channel.poll(ticket).unwrap().is_some());
    }),
    ("wait", |channel| {
        let ticket = channel.start_receive(region(channel)).unwrap();
        posted().into_iter().for_each(succeeds);
        assert!(channel.wait(ticket, None).unwrap().is_some());
    }),
    ("next_completed", |channel| {
        let _ticket = channel.start_receive(region(channel)).unwrap();
        posted().into_iter().for_each(succeeds);
        assert!(channel.next_completed().is_some());
    }),
    ("spin_poll", |channel| {
        let mut into = region(channel);
        let ended = channel.scope(|scope| {
            let element = into.scatter_element(..).unwrap();
            let work = scope.post_receive(element).unwrap();
            posted().into_iter().for_each(succeeds);
            Ok::<_, ()>(work.spin_poll().is_ok())
        });
        assert!(ended.unwrap());
    }),
    ("a scope's poll", |channel| {
        let mut into = region(channel);
        let ended = channel.scope(|scope| {
            let element = into.scatter_element(..).unwrap();
            let _work = scope.post_receive(element).unwrap();
            posted().into_iter().for_each(succeeds);
            Ok::<_, ()>(scope.poll())
        });
        assert_eq!(ended.unwrap(), 1);
    }),
];

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn a_call_that_finds_what_it_waits_for_looks_at_no_peer() {
    for (name, take) in FOUND {
        let (mut channel, theirs) = watched();
        drop(theirs);
        take(&mut channel);
        assert_eq!(channel.down_reason(), None, "{name}");
        // A poll that finds nothing looks.
        assert!(channel.next_completed().is_none());
        assert_eq!(channel.down_reason(), Some(CLOSED), "{name}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
fn tcp_finds_out_within_ten_seconds_unless_another_time_is_set() {
    let set = |builder: PreparedChannel| {
        let mut channel = connected(builder);
        let (ours, _theirs, _) = tcp();
        let duplicate = ours.try_clone().unwrap();
        channel.watch_peer(ours).unwrap();
        let is_kept = sockopt::socket_keepalive(&duplicate).unwrap();
        is_kept.then(|| sockopt::tcp_user_timeout(&duplicate).unwrap())
    };
    let pd = pd();
    let timeout = |timeout| Channel::builder(&pd).peer_timeout(timeout).build().unwrap();
    // Of which the last interval between probes is a part.
    assert_eq!(set(Channel::builder(&pd).build().unwrap()), Some(8000));
    assert_eq!(set(timeout(Some(Duration::from_secs(3)))), Some(2000));
    assert_eq!(set(timeout(None)), None);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn a_drain_timeout_without_end_ends_with_the_flushes() {
    let builder = Channel::builder(&pd()).max_send_wr(4).max_recv_wr(4);
    let mut channel = connected(builder.drain_timeout(Duration::MAX).build().unwrap());
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    drop(theirs);
    bounded(|| {
        while !channel.is_down() {
            assert!(channel.poll(ticket).unwrap().is_none());
        }
    });
    // However late they come: it is asked often enough for whatever has a bound to end.
    let start = Instant::now();
    while start.elapsed() < 2 * DRAIN {
        assert!(channel.poll(ticket).unwrap().is_none());
    }
    assert!(!called("ibv_destroy_qp"));
    flushes(posted()[0]);
    let ended = bounded(|| channel.wait(ticket, None)).unwrap().unwrap();
    assert_eq!(ended.result.unwrap_err(), ENDED);
}
