//! Peers that leave: every wait and poll notices it, after what the peer sent, in bounded time.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use verbs_channel::error::Queue;
use verbs_channel::{Channel, ChannelGroup, ChannelId, DownReason, Incoming, TransportError};

use crate::fake_device::{
    DRAIN, bounded, channel, connected, flushes, forget_the_past, member, pd, posted, region,
    shut_down, succeeds,
};

pub(crate) const CLOSED: DownReason = DownReason::PeerClosed;
pub(crate) const ENDED: TransportError = TransportError::Aborted(CLOSED);

/// Far longer than a test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A channel, and the peer's end of its connection.
pub(crate) fn watched() -> (Channel, UnixStream) {
    let mut channel = channel();
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    (channel, theirs)
}

/// Whether the other end of a connection is closed.
fn has_ended(mut theirs: impl Read) -> bool {
    match theirs.read(&mut [0]) {
        Ok(0) => true,
        Ok(_) => panic!("something was sent"),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            false
        }
    }
}

/// A group of channels that are connected to themselves.
pub(crate) fn group(channels: u32) -> (ChannelGroup, Vec<UnixStream>) {
    let mut group = Channel::builder(&pd())
        .max_send_wr(4)
        .max_recv_wr(4)
        .drain_timeout(DRAIN)
        .group(channels)
        .unwrap();
    let mut theirs = Vec::new();
    for _ in 0..channels {
        theirs.push(join(&mut group).1);
    }
    (group, theirs)
}

fn join(group: &mut ChannelGroup) -> (UnixStream, UnixStream) {
    let mut member = member(group);
    let (ours, theirs) = UnixStream::pair().unwrap();
    member.watch_peer(ours.try_clone().unwrap()).unwrap();
    let _number = group.join(member).unwrap();
    forget_the_past();
    (ours, theirs)
}

#[test]
fn messages_that_arrive_while_the_channel_goes_down_are_delivered() {
    let (mut channel, theirs) = watched();
    let tickets = [(); 4].map(|()| channel.start_receive(region(&channel)).unwrap());
    drop(theirs);
    // The first poll finds nothing, and the end of the peer is seen.
    assert!(channel.next_completed().is_none());
    assert_eq!(channel.down_reason(), Some(CLOSED));
    posted().into_iter().for_each(succeeds);
    for ticket in tickets {
        let ended = bounded(|| channel.wait(ticket, None)).unwrap().unwrap();
        ended.result.unwrap();
    }
}

#[test]
fn idle_channel_goes_down_when_the_peer_has_left() {
    let (mut channel, theirs) = watched();
    drop(theirs);
    assert!(bounded(|| channel.wait_completed(Some(Duration::from_millis(1)))).is_none());
    assert_eq!(channel.down_reason(), Some(CLOSED));
}

#[test]
fn all_peers_of_a_group_may_leave_at_once() {
    let (mut group, theirs) = group(40);
    let channels: Vec<ChannelId> = group.channels().collect();
    for id in channels {
        let into = group.pd().reg_mr(vec![0_u8; 64]).unwrap();
        let mut channel = group.channel(id).unwrap();
        let _ticket = channel.start_receive(into).unwrap();
    }
    drop(theirs);
    for _ in 0..40 {
        let ended = bounded(|| group.wait_completed(None)).unwrap();
        assert_eq!(ended.result.unwrap_err(), ENDED);
    }
    assert!(bounded(|| group.wait_completed(None)).is_none());
}

/// A way for a channel to end. Returns what is left of it.
type End = fn(Channel) -> Option<Channel>;

const ENDS: [(&str, End); 5] = [
    ("dropped", |channel| {
        drop(channel);
        None
    }),
    ("aborted", |mut channel| {
        channel.abort();
        Some(channel)
    }),
    ("shut down", |mut channel| {
        shut_down(&mut channel);
        Some(channel)
    }),
    ("reset", |mut channel| {
        drop(channel.reset().unwrap());
        Some(channel)
    }),
    ("failed", |mut channel| {
        let _ticket = channel.start_receive(region(&channel)).unwrap();
        flushes(posted()[0]);
        assert!(channel.next_completed().unwrap().result.is_err());
        Some(channel)
    }),
];

#[test]
fn peer_notices_when_this_side_goes_down() {
    for (name, end) in ENDS {
        let (channel, theirs) = watched();
        theirs.set_nonblocking(true).unwrap();
        assert!(!has_ended(&theirs), "{name}: not before it ends");
        let left = end(channel);
        assert!(has_ended(&theirs), "{name}");
        drop(left);
    }
}

#[test]
fn peer_is_not_watched_without_a_peer_timeout() {
    let prepared = Channel::builder(&pd()).drain_timeout(DRAIN);
    let mut channel = connected(prepared.peer_timeout(None).build().unwrap());
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    theirs.set_nonblocking(true).unwrap();
    // It is kept so that the peer can notice its end.
    assert!(!has_ended(&theirs));
    drop(theirs);
    let mut into = region(&channel);
    let ended = channel.run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(DRAIN));
    let reason = DownReason::TimedOut {
        queue: Queue::Receive,
        after: DRAIN,
    };
    assert!(
        matches!(ended, Err(TransportError::Aborted(r)) if r == reason),
        "{ended:?}"
    );
}

#[test]
fn pipe_and_half_closed_socket_are_noticed() {
    let (reader, writer) = io::pipe().unwrap();
    let mut reads = channel();
    reads.watch_peer(reader).unwrap();
    let mut writes = channel();
    let (other_reader, other_writer) = io::pipe().unwrap();
    writes.watch_peer(other_writer).unwrap();
    let (mut half, theirs) = watched();
    drop((writer, other_reader));
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    for channel in [&mut reads, &mut writes, &mut half] {
        assert!(bounded(|| channel.wait_completed(Some(Duration::ZERO))).is_none());
        assert_eq!(channel.down_reason(), Some(CLOSED));
    }
}

#[test]
fn descriptor_for_a_channel_that_is_down_delays_no_end() {
    let (mut channel, theirs) = watched();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    drop(theirs);
    bounded(|| {
        while !channel.is_down() {
            assert!(channel.poll(ticket).unwrap().is_none());
        }
    });
    let (ours, _others) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    // Nothing is flushed: the queue pair is destroyed after the drain timeout.
    let ended = bounded(|| {
        loop {
            if let Some(ended) = channel.poll(ticket).unwrap() {
                return ended;
            }
        }
    });
    assert_eq!(ended.result.unwrap_err(), ENDED);
}
