//! When peers are checked, and how their end and other failures are ordered.

use std::io::{self, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use fake_libibverbs::with;
use rustix::net::sockopt;
use verbs_channel::engine::TransferError;
use verbs_channel::error::Rejected;
use verbs_channel::{BufferPool, Channel, DownReason, Error, Outgoing, PreparedChannel, Transfer};

use crate::fake_device::{
    DRAIN, bounded, called, connected, count, flushes, pd, posted, region, shut_down, succeeds,
};
use crate::peers::{CLOSED, ENDED, LONG, group, watched};
use crate::peers_over_tcp::tcp;

/// Longer than a channel waits for sends in flight to a peer that has left.
const GRACE: Duration = Duration::from_millis(40);

/// Operations that have completed when they are first polled for, until one fails.
type Busy = fn(&mut Channel) -> Result<(), Error>;

const BUSY: [(&str, Busy); 9] = [
    ("send", |channel| {
        let from = region(channel);
        Ok(channel.send(from.gather_element(..)?)?)
    }),
    ("run_batch", |channel| {
        let from = region(channel);
        let send = || Outgoing::send(from.gather_element(..).unwrap());
        Ok(channel.run_batch([send(), send()])?)
    }),
    ("scope", |channel| {
        let from = region(channel);
        channel.scope(|scope| {
            let mut sent = scope.post_send(from.gather_element(..)?)?;
            while sent.poll().is_none() {}
            let _detached = scope.post_send(from.gather_element(..)?)?;
            Ok(())
        })?;
        Ok(())
    }),
    ("handles of a scope", |channel| {
        let from = region(channel);
        channel.scope(|scope| {
            loop {
                let mut first = scope.post_send(from.gather_element(..)?)?;
                let second = scope.post_send(from.gather_element(..)?)?;
                second.spin_poll()?;
                first.poll().transpose()?;
            }
        })?;
        Ok(())
    }),
    ("polls of a scope", |channel| {
        let from = region(channel);
        channel.scope(|scope| {
            loop {
                let _detached = scope.post_send(from.gather_element(..)?)?;
                scope.poll();
            }
        })?;
        Ok(())
    }),
    ("wait", |channel| {
        let ticket = channel
            .start_send(region(channel))
            .map_err(Rejected::into_error)?;
        let completed = channel.wait(ticket, None)?;
        completed.map_or(Ok(()), |completed| {
            completed.result.map(drop).map_err(Error::from)
        })
    }),
    ("poll", |channel| {
        let ticket = channel
            .start_send(region(channel))
            .map_err(Rejected::into_error)?;
        loop {
            if let Some(completed) = channel.poll(ticket)? {
                return Ok(completed.result.map(drop)?);
            }
        }
    }),
    ("next_completed", |channel| {
        channel
            .start_send(region(channel))
            .map_err(Rejected::into_error)?;
        loop {
            if let Some(completed) = channel.next_completed() {
                return Ok(completed.result.map(drop)?);
            }
        }
    }),
    ("transfer", |channel| {
        let pool = BufferPool::new(channel.pd(), 64, 2 * MANY).unwrap();
        let mut transfer = Transfer::default();
        while let Some(block) = pool.take() {
            transfer.add(channel.id(), Outgoing::send(block));
        }
        match channel.transfer(&mut transfer, None) {
            Ok(()) => Ok(()),
            Err(TransferError::Failed { first, .. }) => Err(first.into()),
            Err(error) => panic!("{error}"),
        }
    }),
];

/// The number of slow posts that take longer than a peer takes to be noticed.
const MANY: usize = 300;

#[test]
fn peer_that_leaves_a_busy_channel_is_noticed() {
    for (name, run) in BUSY {
        let (mut channel, theirs) = watched();
        let slow = Duration::from_millis(1);
        with(|library| (library.slow_posts, library.completes_sends) = (slow, true));
        drop(theirs);
        let error = bounded(|| (0..MANY).find_map(|_| run(&mut channel).err()));
        with(|library| (library.slow_posts, library.completes_sends) = Default::default());
        let error = error.unwrap_or_else(|| panic!("{name} goes on"));
        assert_eq!(error.down_reason(), Some(CLOSED), "{name}: {error}");
        let posts = posted().len();
        assert!(posts < MANY, "{name}: {posts} posts");
    }
}

#[test]
fn peer_that_leaves_a_busy_group_is_noticed_and_the_others_go_on() {
    let (mut group, mut theirs) = group(2);
    let ids: Vec<_> = group.channels().collect();
    let pool = BufferPool::new(group.pd(), 64, 2 * MANY).unwrap();
    let mut transfer = Transfer::default();
    for at in 0..2 * MANY {
        transfer.add(ids[at % 2], Outgoing::send(pool.take().unwrap()));
    }
    let slow = Duration::from_millis(1);
    with(|library| (library.slow_posts, library.completes_sends) = (slow, true));
    drop(theirs.remove(0));
    let ended = bounded(|| group.transfer(&mut transfer, None));
    assert_eq!(ended.unwrap_err().down_reason(), Some(CLOSED));
    let succeeded = transfer.drain().filter(|outcome| outcome.result.is_ok());
    let of_the_other = succeeded.filter(|outcome| outcome.channel == ids[1]);
    assert_eq!(of_the_other.count(), MANY, "its peer is there");
    assert_eq!(group.channel(ids[1]).unwrap().down_reason(), None);
}

/// Checks the peers at this time; nothing completes by that.
fn check_at(channel: &mut Channel, now: Instant) {
    let engine = channel.engine_mut();
    engine.check_peers(now);
    assert!(engine.next_completed().is_none());
}

#[test]
fn end_of_a_replaced_connection_is_ignored() {
    let (mut channel, theirs) = watched();
    let _receive = channel.start_receive(region(&channel)).unwrap();
    let send = channel.start_send(region(&channel)).unwrap();
    drop(theirs);
    // The end of the peer is seen, and the channel waits for the send.
    let start = Instant::now();
    check_at(&mut channel, start);
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    check_at(&mut channel, start + GRACE);
    assert_eq!(channel.down_reason(), None);
    succeeds(posted()[1]);
    let sent = channel.engine_mut().poll(send).unwrap().unwrap();
    sent.result.unwrap();
    // The end of the new connection counts.
    drop(theirs);
    check_at(&mut channel, start + GRACE);
    assert_eq!(channel.down_reason(), Some(CLOSED));
}

#[test]
fn first_down_reason_counts_while_the_peer_leaves() {
    let builder = Channel::builder(&pd()).max_send_wr(4).max_recv_wr(4);
    let mut channel = connected(builder.drain_timeout(LONG).build().unwrap());
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    let _send = channel.start_send(region(&channel)).unwrap();
    drop(theirs);
    let start = Instant::now();
    check_at(&mut channel, start);
    shut_down(&mut channel);
    check_at(&mut channel, start + GRACE);
    assert_eq!(channel.down_reason(), Some(DownReason::Closed));
    assert_eq!(count("ibv_modify_qp"), 1, "it is moved to ERROR once");
}

/// A way to take a completion that has arrived, for which no peer is checked.
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
fn call_that_finds_its_completion_checks_no_peer() {
    for (name, take) in FOUND {
        let (mut channel, theirs) = watched();
        drop(theirs);
        take(&mut channel);
        assert_eq!(channel.down_reason(), None, "{name}");
        // A poll that finds nothing checks the peer.
        assert!(channel.next_completed().is_none());
        assert_eq!(channel.down_reason(), Some(CLOSED), "{name}");
    }
}

#[test]
fn keepalive_detects_a_dead_host_within_the_peer_timeout() {
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
    // The peer timeout includes the last interval between probes.
    assert_eq!(set(Channel::builder(&pd).build().unwrap()), Some(8000));
    assert_eq!(set(timeout(Some(Duration::from_secs(3)))), Some(2000));
    assert_eq!(set(timeout(None)), None);
}

#[test]
fn infinite_drain_timeout_ends_with_the_flushes() {
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
    // However late the flushes come: polled for longer than any default timeout.
    let start = Instant::now();
    while start.elapsed() < 2 * DRAIN {
        assert!(channel.poll(ticket).unwrap().is_none());
    }
    assert!(!called("ibv_destroy_qp"));
    flushes(posted()[0]);
    let ended = bounded(|| channel.wait(ticket, None)).unwrap().unwrap();
    assert_eq!(ended.result.unwrap_err(), ENDED);
}

/// The last instant that the clock's type has.
fn end_of_time() -> Instant {
    let seconds = (0..63).rev().map(|bit| Duration::from_secs(1 << bit));
    let nanoseconds = (0..30).rev().map(|bit| Duration::from_nanos(1 << bit));
    seconds.chain(nanoseconds).fold(Instant::now(), |at, more| {
        at.checked_add(more).unwrap_or(at)
    })
}

#[test]
fn peers_can_be_checked_at_any_instant() {
    let end = end_of_time();
    let before = |seconds| end - Duration::from_secs(seconds);
    let now = Instant::now();
    // In any order: the clock may run backwards.
    let times = [
        before(3600),
        end,
        now,
        before(0),
        before(400 * 24 * 3600),
        now,
    ];
    for first in times {
        let (mut channel, theirs) = watched();
        let receive = channel.start_receive(region(&channel)).unwrap();
        let _send = channel.start_send(region(&channel)).unwrap();
        drop(theirs);
        let engine = channel.engine_mut();
        engine.check_peers(first);
        for now in times {
            engine.probe(now);
            engine.check_peers(now);
        }
        assert!(channel.is_down());
        // Its own waits end by the clock, however late the deadlines were by that one.
        channel.abort();
        assert!(channel.poll(receive).unwrap().unwrap().result.is_err());
    }
}

#[test]
fn waits_notice_the_end_of_a_peer_although_its_descriptor_was_given_out() {
    let (mut channel, theirs) = watched();
    let _set = channel.engine_mut().peers_fd().unwrap();
    let mut into = region(&channel);
    drop(theirs);
    let ended = bounded(|| channel.receive(into.scatter_element(..).unwrap()));
    assert!(ended.is_err());
    assert_eq!(channel.down_reason(), Some(CLOSED));
}

#[test]
fn connection_stays_if_another_cannot_be_watched() {
    let (mut channel, mut theirs) = watched();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let error = channel.watch_peer(file).unwrap_err();
    assert_eq!(io::Error::from(error).kind(), ErrorKind::PermissionDenied);
    theirs.set_nonblocking(true).unwrap();
    let read = theirs.read(&mut [0]).unwrap_err();
    assert_eq!(read.kind(), ErrorKind::WouldBlock, "it is closed");
    drop(theirs);
    channel.engine_mut().check_peers(Instant::now());
    assert_eq!(channel.down_reason(), Some(CLOSED));
}
