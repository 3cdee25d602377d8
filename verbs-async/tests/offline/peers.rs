//! Peers that leave: a second notifier takes their channels down, whether or not a task waits.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fake_libibverbs::with;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_async::verbs_channel::{
    BufferPool, Channel, DownReason, Outgoing, OwnedBuffer, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents, CqNotifier};
use verbs_core::completion::CompletionChannel;
use verbs_core::error::ErrorChain;
use verbs_core::verbs_sys::{IBV_WC_RETRY_EXC_ERR, ibv_wc};
use verbs_core::{Device, ProtectionDomain};
use verbs_harness::logged::{lines, listen};

use crate::bench::{Hand, Task, done, join, later};
use crate::groups::posted;

const LEFT: DownReason = DownReason::PeerClosed;

/// Far longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(5);

/// A notifier driven by hand, which creates others for the device and for the descriptor of the peers.
#[derive(Clone, Default)]
struct Both {
    completions: Hand,
    has_device: Arc<AtomicBool>,
    peers: Arc<Mutex<Vec<(OwnedFd, Hand)>>>,
}

impl CqNotifier for Both {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.completions.poll_readable(cx)
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        let hand = Hand::default();
        if !self.has_device.swap(true, Ordering::Relaxed) {
            return Ok(Box::new(hand));
        }
        let mut peers = self.peers.lock().unwrap();
        peers.push((descriptor, hand.clone()));
        Ok(Box::new(hand))
    }
}

impl Both {
    /// Whether the peers' descriptor becomes readable within this time; its notifier is notified then.
    fn turn(&self, within: Duration) -> bool {
        let hand = {
            let peers = self.peers.lock().unwrap();
            let [(descriptor, hand)] = &peers[..] else {
                panic!("{} notifiers for peers", peers.len());
            };
            let mut asked = [PollFd::new(descriptor, PollFlags::IN)];
            let within = Timespec::try_from(within).unwrap();
            if poll(&mut asked, Some(&within)).unwrap() == 0 {
                return false;
            }
            hand.clone()
        };
        hand.readable();
        true
    }
}

/// A group whose queue pairs have 50 ms to flush, on a device that raises no events.
fn group() -> (Both, AsyncGroup, ProtectionDomain) {
    let context = Device::by_name("fake0").unwrap().open().unwrap();
    let both = Both::default();
    let channel = CompletionChannel::create(&context).unwrap();
    let events = CqEvents::new(channel, both.clone()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let builder = Channel::builder(&pd).max_send_wr(2).max_recv_wr(2);
    let hasty = builder.drain_timeout(Duration::from_millis(50));
    let group = AsyncGroup::new(hasty, 4, &events).unwrap();
    (both, group, pd)
}

fn watched(group: &AsyncGroup) -> (AsyncChannel, UnixStream) {
    let channel = join(group);
    let (ours, theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    (channel, theirs)
}

fn buffer(pd: &ProtectionDomain) -> OwnedBuffer {
    pd.reg_mr(vec![0_u8; 64]).unwrap().into()
}

/// The runtime never looks at the notifier of the peers, as its tasks are always ready.
#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn peer_that_leaves_busy_tasks_is_noticed() {
    const MANY: usize = 400;
    for is_transfer in [true, false] {
        let (_both, group, pd) = group();
        let (channel, theirs) = watched(&group);
        let pool = BufferPool::new(&pd, 64, MANY).unwrap();
        let slow = Duration::from_millis(1);
        with(|library| (library.slow_posts, library.completes_sends) = (slow, true));
        drop(theirs);
        let before = posted().len();
        if is_transfer {
            let mut transfer = channel.transfer(MANY);
            while let Some(block) = pool.take() {
                transfer.add(channel.id(), Outgoing::send(block));
            }
            let ended = later(transfer.finish()).unwrap_err();
            assert_eq!(ended.down_reason(), Some(LEFT), "{ended}");
        } else {
            let mut sends = (0..MANY).map(|_| later(channel.send(pool.take().unwrap())).0);
            let ended = sends.find_map(Result::err).expect("it is not noticed");
            assert!(ended.to_string().contains("down"), "{ended}");
        }
        with(|library| library.slow_posts = Duration::ZERO);
        assert_eq!(channel.down_reason(), Some(LEFT));
        let posts = posted().len() - before;
        assert!(posts < MANY / 2, "{posts} posts");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn channel_goes_down_when_its_peer_leaves_and_no_task_waits() {
    let (both, group, _pd) = group();
    let (first, theirs) = watched(&group);
    let (second, others) = watched(&group);
    assert!(!both.turn(Duration::ZERO), "all are there");
    drop(theirs);
    assert!(both.turn(LONG));
    assert_eq!(
        (first.down_reason(), second.down_reason()),
        (Some(LEFT), None)
    );
    assert!(!both.turn(Duration::ZERO), "an end is reported once");
    // The next is noticed as well, and one that joins later.
    drop(others);
    assert!(both.turn(LONG));
    assert_eq!(second.down_reason(), Some(LEFT));
    let (third, theirs) = watched(&group);
    drop(theirs);
    assert!(both.turn(LONG));
    assert_eq!(third.down_reason(), Some(LEFT));
    // Closing a channel whose peer has left is not an error.
    later(third.close()).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn channel_watched_before_it_joined_is_watched_in_its_group() {
    let (both, group, _pd) = group();
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let mut member = member.handshake(&endpoint).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    member.watch_peer(ours).unwrap();
    let channel = group.join(member).unwrap();
    drop(theirs);
    assert!(both.turn(LONG));
    assert_eq!(channel.down_reason(), Some(LEFT));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn watched_descriptor_alone_ends_ops_in_bounded_time() {
    let (both, group, pd) = group();
    let (channel, theirs) = watched(&group);
    let mut received = Task::new(channel.receive(buffer(&pd))).waits();
    let mut sent = Task::new(channel.send(buffer(&pd))).waits();
    drop(theirs);
    assert!(both.turn(LONG));
    // Sends may still complete; then the queue pair may still flush. Each has a bound, and
    // the descriptor becomes readable when the bound has passed.
    for verb in ["ibv_modify_qp", "ibv_destroy_qp"] {
        with(|library| library.calls.clear());
        assert!(both.turn(LONG), "nothing is done about what is in flight");
        later(group.closed()).unwrap();
        assert!(with(|library| library.calls.contains(&verb)), "{verb}");
        assert_eq!(channel.down_reason(), Some(LEFT));
    }
    for task in [&mut received, &mut sent] {
        assert_eq!(task.was_woken(), 1);
        let (result, buffer) = task.ends();
        let ended = matches!(result, Err(TransportError::Aborted(LEFT)));
        assert!(ended, "{result:?}");
        assert_eq!(buffer.len(), 64);
    }
    assert!(!both.turn(Duration::ZERO), "there is nothing more to do");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn completions_before_the_peers_end_are_delivered_first() {
    let (both, group, pd) = group();
    let (channel, theirs) = watched(&group);
    let mut received = Task::new(channel.receive(buffer(&pd))).waits();
    let mut sent = Task::new(channel.send(buffer(&pd))).waits();
    done(posted());
    drop(theirs);
    assert!(both.turn(LONG));
    assert_eq!(
        channel.down_reason(),
        Some(LEFT),
        "nothing was left to wait for"
    );
    for task in [&mut received, &mut sent] {
        assert_eq!(task.was_woken(), 1);
        task.ends().0.unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
fn failed_peer_notifier_is_logged() {
    listen();
    let (both, group, _pd) = group();
    let (channel, _theirs) = watched(&group);
    let hand = both.peers.lock().unwrap()[0].1.clone();
    hand.over();
    let lines = lines();
    let is_logged = |line: &String| line.contains("peers that leave are no longer noticed");
    assert!(lines.iter().any(is_logged), "{lines:?}");
    assert!(!channel.is_down());
    // No other begins to rely on it.
    let (ours, _theirs) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap_err();
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timers that are descriptors")]
fn operations_that_are_not_flushed_end_in_bounded_time() {
    let (both, group, pd) = group();
    let (channel, _theirs) = watched(&group);
    let mut received = Task::new(channel.receive(buffer(&pd))).waits();
    let mut sent = Task::new(channel.send(buffer(&pd))).waits();
    let failed = ibv_wc {
        wr_id: posted()[1],
        status: IBV_WC_RETRY_EXC_ERR,
        ..Default::default()
    };
    with(|library| library.done.push_back(failed));
    assert!(sent.ends().0.is_err());
    assert!(both.turn(LONG));
    assert!(received.poll().is_pending(), "it may still be flushed");
    assert!(both.turn(LONG));
    later(group.closed()).unwrap();
    assert_eq!(received.was_woken(), 1);
    let (result, buffer) = received.ends();
    assert!(result.is_err());
    assert_eq!(buffer.capacity(), 64);
}

/// A notifier that cannot create another one, but that of the device.
#[derive(Default)]
struct Only(Hand, AtomicBool);

impl CqNotifier for Only {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(cx)
    }

    fn another(&self, _descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        match self.1.swap(true, Ordering::Relaxed) {
            false => Ok(Box::new(Hand::default())),
            true => Err(rustix::io::Errno::MFILE.into()),
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timers that are descriptors")]
fn peers_that_cannot_be_watched_are_an_error() {
    let context = Device::by_name("fake0").unwrap().open().unwrap();
    let channel = CompletionChannel::create(&context).unwrap();
    let events = CqEvents::new(channel, Only::default()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let group = AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap();
    let channel = join(&group);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let errors = [channel.watch_peer(ours).unwrap_err(), {
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        let mut member = member.handshake(&endpoint).unwrap();
        member.watch_peer(theirs).unwrap();
        group.join(member).unwrap_err().into_error().into()
    }];
    for error in errors {
        let error = ErrorChain::new(&error).to_string();
        let expected = "cannot watch the connection to the peer: Too many open files";
        assert!(error.starts_with(expected), "{error}");
    }
    // The group has a place for it still, and peers need not be watched.
    assert!(!channel.is_down());
    let _other = join(&group);
    let unwatched = Channel::builder(&pd).peer_timeout(None);
    let group = AsyncGroup::new(unwatched, 1, &events).unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    join(&group).watch_peer(ours).unwrap();
}

#[test]
fn device_that_cannot_be_watched_is_an_error() {
    let context = Device::by_name("fake0").unwrap().open().unwrap();
    let channel = CompletionChannel::create(&context).unwrap();
    let only = Only(Hand::default(), AtomicBool::new(true));
    let events = CqEvents::new(channel, only).unwrap();
    let pd = context.alloc_pd().unwrap();
    let group = AsyncGroup::new(Channel::builder(&pd), 2, &events);
    let error = ErrorChain::new(&group.unwrap_err()).to_string();
    assert!(error.contains("Too many open files"), "{error}");
}

/// The peer may wait for the end of its connection.
#[test]
fn descriptor_that_is_not_watched_any_more_is_closed_at_once() {
    let (_both, group, _pd) = group();
    let (channel, before) = watched(&group);
    let ended = |theirs: &UnixStream| {
        theirs.set_nonblocking(true).unwrap();
        let mut reader: &UnixStream = theirs;
        reader.read(&mut [0]).is_ok_and(|count| count == 0)
    };
    assert!(!ended(&before));
    let (ours, next) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    assert!(ended(&before) && !ended(&next), "it was replaced");
    channel.abort();
    let (ours, late) = UnixStream::pair().unwrap();
    channel.watch_peer(ours).unwrap();
    assert!(ended(&late), "the channel is down");
}
