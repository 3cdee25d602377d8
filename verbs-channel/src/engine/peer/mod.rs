//! Peers: how the end of one is noticed.
//!
//! A reliable connection has no keepalive: with nothing in flight towards it, a device never finds
//! out that its peer is gone. So a channel keeps a descriptor that does, the socket over which the
//! peers met, or one that the user hands over. Nothing is read from it: what counts is that the
//! system reports its end, which it does when the peer closes its own, when its process ends, and,
//! by TCP's keepalive, when its host dies. Peers that met by `rdma_cm` have its connection instead,
//! whose event reports that the peer has disconnected, or that its process has ended. Those that
//! agreed on that over TCP have both: the socket for a host that dies. The connection of iWARP
//! delivers what the peer has sent before it ends, and the socket may end earlier. So an end of the
//! socket in order waits for that of the connection.
//!
//! ```text
//! a poll finds the queue empty, some milliseconds after the last check
//!   ▼
//! epoll set of all descriptors of the engine ── none has ended ──► nothing
//!   │ one has
//!   ▼
//! poll until the queue is empty: what the peer sent is delivered
//!   ▼
//! wait for what this side sent, for GRACE at most
//!   ▼
//! flush: the channel is down ── not flushed within drain_timeout ──► destroy
//! ```
//!
//! A channel that is down for another reason is at the last step at once.
//!
//! No step waits. The set is one descriptor, which a layer above can wait for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::error::DownReason;
use link::CONNECTION;
pub(crate) use link::Link;

mod link;

/// How long what was sent to a peer that has left may still take to complete. A peer that received
/// something and left at once has acknowledged it, and the acknowledgement may be slower than the
/// end of its socket.
const GRACE: Duration = Duration::from_millis(20);

/// A member's peer.
#[derive(Debug)]
pub(crate) struct Peer {
    link: Link,
    // Token of its descriptors in the set; 0 without one.
    token: u64,
    timer: Timer,
    /// How far its end has come, if it has left, or the member has failed.
    pub(super) stage: Option<Stage>,
}

impl Peer {
    pub(crate) const fn address(&self) -> Option<SocketAddr> {
        self.link.address()
    }

    /// The descriptor with this token had an event. Returns whether it is this peer's. If it shows the end of the
    /// peer, its stage begins: a socket that has ended has `timeout` until its connection ends.
    pub(super) fn on_event(&mut self, token: u64, now: Instant, timeout: Option<Duration>) -> bool {
        let (token, mark) = (token & !CONNECTION, token & CONNECTION);
        // A member that is down has closed its descriptor.
        if self.token != token || !self.link.is_open() {
            return false;
        }
        let Some(reason) = self.link.reason(token, mark) else {
            return true;
        };
        let is_beside = self.link.is_of_manager() && mark == 0;
        let grace = match timeout {
            // Messages of the peer may still be on their way.
            Some(timeout) if is_beside && reason == DownReason::PeerClosed => timeout,
            _ => GRACE,
        };
        let stage = Stage::Sending(reason, after(now, grace));
        // The end of its socket may have come before.
        let is_first = |before: Stage| stage.deadline() < before.deadline();
        if self.stage.is_none_or(is_first) {
            self.stage = Some(stage);
        }
        true
    }

    /// Whether something may arrive still, though a socket has ended.
    pub(super) fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Its descriptor: the peer notices that this side is down when that is closed.
    #[must_use]
    pub(super) fn close(&mut self) -> Option<Link> {
        self.link.close()
    }

    /// Has a check find soon that the member is down: that bounds how long it is flushed.
    pub(super) fn check_soon(&self) {
        self.timer.0.is_needed.store(true, Ordering::Relaxed);
        self.timer.set(Duration::ZERO);
    }
}

/// The peers of an engine's members.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    // Created with the first watched peer; each watched peer has a clone.
    pub(super) set: Option<Arc<OwnedFd>>,
    pub(super) timer: Timer,
    last_token: u64,
    pub(super) leaving: Leaving,
}

/// Announces that something is to be done for a peer that has left, or for a member that has failed. All members
/// share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Timer(Arc<Announced>);

#[derive(Debug, Default)]
struct Announced {
    // Makes the set readable. It is created for a layer above that waits for the set.
    timer: OnceLock<OwnedFd>,
    // A member has failed since the last check.
    is_needed: AtomicBool,
}

/// Result of the last check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaving {
    /// When the next member is due whose peer has left, or that has failed with something in flight.
    pub(super) next: Option<Instant>,
    /// Some peer has left, and its member waits only for what it has sent itself.
    pub(super) is_urgent: bool,
}

/// The end of a peer, or of a member, while something is in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// It goes down for this reason when what it sent has completed, then at the latest.
    Sending(DownReason, Instant),
    /// It is down, and its queue pair is destroyed then.
    Flushing(Instant),
}

impl Timer {
    pub(super) fn is_there(&self) -> bool {
        self.0.timer.get().is_some()
    }

    /// Whether a member has failed since the last check.
    #[inline]
    fn is_needed(&self) -> bool {
        self.0.is_needed.load(Ordering::Relaxed)
    }

    /// All members that have failed were found.
    pub(super) fn all_found(&self) {
        self.0.is_needed.store(false, Ordering::Relaxed);
    }

    pub(super) fn set(&self, left: Duration) {
        // Zero would be never.
        self.set_to(left.max(Duration::from_micros(1)));
    }

    pub(super) fn stop(&self) {
        self.set_to(Duration::ZERO);
    }

    fn set_to(&self, left: Duration) {
        let at = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(left).unwrap_or_default(),
        };
        if let Some(timer) = self.0.timer.get() {
            // It fails for a time that is none, and this is one.
            drop(timerfd_settime(timer, TimerfdTimerFlags::empty(), &at));
        }
    }
}

impl Stage {
    pub(super) const fn deadline(&self) -> Instant {
        match self {
            Self::Sending(_, deadline) | Self::Flushing(deadline) => *deadline,
        }
    }
}

impl Leaving {
    /// Adds a member at this stage, and whether something may arrive from its peer still.
    pub(super) fn add(&mut self, stage: Stage, is_connected: bool) {
        let deadline = stage.deadline();
        self.next = Some(self.next.map_or(deadline, |next| next.min(deadline)));
        self.is_urgent |= matches!(stage, Stage::Sending(..)) && !is_connected;
    }
}

impl Peers {
    /// No peer, or one without a descriptor.
    pub(super) fn unwatched(&self) -> Peer {
        Peer {
            link: Link::without_descriptor(None, false),
            token: 0,
            timer: self.timer.clone(),
            stage: None,
        }
    }

    /// Watches a member's peer through this link, or its socket beside the connection that the peer has. Returns the link that
    /// was replaced.
    ///
    /// # Errors
    ///
    /// Those of epoll, with what was given. Then the link of before is watched on.
    pub(crate) fn watch(
        &mut self,
        peer: &mut Peer,
        mut link: Link,
    ) -> Result<Option<Link>, (io::Error, Link)> {
        let is_beside = peer.link.is_of_manager() && !link.is_of_manager();
        if !is_beside {
            self.last_token += 1;
        }
        let token = if is_beside {
            peer.token
        } else {
            self.last_token
        };
        if link.is_watched() {
            let set = self.set().cloned();
            if let Err(error) = set.and_then(|set| link.add_to(&set, token)) {
                return Err((error, link));
            }
        }
        peer.token = token;
        if !is_beside {
            // An end of the link of before does not count any more.
            peer.stage = None;
        }
        let replaced = peer.link.replace(link);
        Ok(replaced.is_open().then_some(replaced))
    }

    fn set(&mut self) -> io::Result<&Arc<OwnedFd>> {
        let set = match self.set.take() {
            Some(set) => set,
            None => Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        Ok(self.set.insert(set))
    }

    /// A duplicate of the set, which is readable whenever `Engine::check_peers` has something to do.
    pub(super) fn announce(&mut self) -> io::Result<OwnedFd> {
        let set = Arc::clone(self.set()?);
        if !self.timer.is_there() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            epoll::add(&set, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
            self.timer.0.timer.get_or_init(|| timer);
        }
        set.try_clone()
    }

    /// Whether peers are to be checked where a poll finds nothing: some are watched or are leaving, or a member has
    /// failed. Also where a layer above waits for the set: it cannot check them during a wait.
    #[inline]
    pub(super) fn awaits_check(&self) -> bool {
        let set = self.set.as_ref();
        self.leaving.next.is_some()
            || self.timer.is_needed()
            || set.is_some_and(|set| Arc::strong_count(set) > 1)
    }
}

/// A time after another; far away for one that no clock has. A clock that ends before even that has
/// reached every time.
pub(super) fn after(now: Instant, timeout: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let after = now.checked_add(timeout).or_else(|| now.checked_add(FAR));
    after.unwrap_or(now)
}

/// The timer's token; no peer has it.
pub(super) const TIMER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
    use std::os::unix::net::UnixStream;

    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
    fn an_error_of_the_network_is_a_peer_that_is_lost() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let socket = socket.unwrap();
        let unused = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        net::connect(&socket, &unused).unwrap_err();
        let mut peers = Peers::default();
        // It is not connected, so it has no peer's address, and no keepalive.
        let link = Link::new(socket, Some(Duration::ZERO)).unwrap();
        let mut peer = peers.unwatched();
        assert!(peers.watch(&mut peer, link).unwrap().is_none());
        let mut events = [const { MaybeUninit::uninit() }; 1];
        let (seen, _) = epoll::wait(peers.set().unwrap(), &mut events, None).unwrap();
        let (token, now) = (seen[0].data.u64(), Instant::now());
        assert!(!peer.on_event(token + 1, now, None));
        assert!(peer.stage.is_none());
        assert!(peer.on_event(token, now, None));
        let stage = peer.stage.unwrap();
        assert!(matches!(stage, Stage::Sending(DownReason::PeerLost, _)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    fn a_layer_above_is_woken_when_a_peer_that_leaves_is_due() {
        let mut peers = Peers::default();
        // The member joined before.
        let peer = peers.unwatched();
        let descriptor = peers.announce().unwrap();
        assert_eq!(seen(&descriptor, Timespec::default()), [0; 0]);
        peer.check_soon();
        assert_eq!(seen(&descriptor, LONG), [TIMER]);
        peers.timer.stop();
        assert_eq!(seen(&descriptor, Timespec::default()), [0; 0]);
    }

    /// Far longer than anything here takes.
    const LONG: Timespec = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };

    /// The tokens of what the set reports within this time.
    fn seen(set: &OwnedFd, within: Timespec) -> Vec<u64> {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let (seen, _) = epoll::wait(set, &mut events, Some(&within)).unwrap();
        seen.iter().map(|event| event.data.u64()).collect()
    }

    fn watched(peers: &mut Peers) -> (Peer, OwnedFd, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let duplicate = ours.try_clone().unwrap();
        let link = Link::new(ours.into(), Some(Duration::ZERO)).unwrap();
        let mut peer = peers.unwatched();
        assert!(peers.watch(&mut peer, link).unwrap().is_none());
        (peer, duplicate.into(), theirs)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
    fn an_end_is_reported_once_and_not_after_its_descriptor_was_closed() {
        let mut peers = Peers::default();
        let (first, _duplicate, theirs) = watched(&mut peers);
        let (second, _other_duplicate, others) = watched(&mut peers);
        let set = peers.set.clone().unwrap();
        drop(theirs);
        assert_eq!(seen(&set, LONG), [first.token]);
        assert_eq!(seen(&set, Timespec::default()), [0; 0]);
        // The user's duplicate is open still, and would be reported.
        drop(second);
        drop(others);
        assert_eq!(seen(&set, Timespec::default()), [0; 0]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
    fn peers_are_checked_while_one_is_watched_or_leaving() {
        let mut peers = Peers::default();
        assert!(!peers.awaits_check(), "there is no set");
        let (peer, _duplicate, _theirs) = watched(&mut peers);
        assert!(peers.awaits_check());
        drop(peer);
        assert!(!peers.awaits_check(), "none is watched");
        peers.leaving.add(Stage::Flushing(Instant::now()), false);
        assert!(peers.awaits_check(), "one is leaving");
    }
}
