//! Checks the peers, and takes those channels down whose peer has left.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;

use super::peer::{Leaving, Link, Stage, TIMER, after};
use super::{Afterwards, Engine, Member};
use crate::error::{DownReason, Queue, Result};
use crate::exchange::ExchangeError;

impl Engine {
    /// Watches a member's peer through this descriptor.
    pub(crate) fn watch_peer_at(&mut self, at: u32, descriptor: OwnedFd) -> Result<()> {
        let link = Link::new(descriptor, self.limits.peer_timeout);
        let link = link.map_err(ExchangeError::not_watched)?;
        self.watch_link(at, link)
    }

    /// Watches a member's peer through this connection.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn watch_connection_at(&mut self, at: u32, connection: Connection) -> Result<()> {
        let is_watched = self.limits.peer_timeout.is_some();
        self.watch_link(at, Link::of_manager(connection, is_watched))
    }

    fn watch_link(&mut self, at: u32, link: Link) -> Result<()> {
        let afterwards = &mut self.afterwards;
        let member = self.flight.member_mut(at);
        // A member that is down needs none; operations that still end on it use the previous one.
        let Some(member) = member.filter(|member| member.down().is_none()) else {
            afterwards.push(Afterwards::Link(link));
            return Ok(());
        };
        // If it cannot be watched, the one before stays: that it is closed would show the peer an end.
        match self.peers.watch(&mut member.peer, link) {
            Ok(before) => afterwards.close(before),
            Err((error, link)) => {
                afterwards.push(Afterwards::Link(link));
                return Err(ExchangeError::not_watched(error).into());
            }
        }
        Ok(())
    }

    /// A descriptor to wait on: it is readable when [`check_peers`](Self::check_peers) has something to
    /// do, also for channels that joined before.
    ///
    /// # Errors
    ///
    /// The errno, such as `EMFILE`.
    pub fn peers_fd(&mut self) -> io::Result<OwnedFd> {
        let descriptor = self.peers.announce()?;
        // They have failed, or their peers have left, before there was a timer.
        if self.peers.leaving.next.is_some() || self.flight.members.iter().any(Member::is_flushing)
        {
            self.peers.timer.set(Duration::ZERO);
        }
        Ok(descriptor)
    }

    /// Whether peers are to be checked where a poll finds nothing.
    #[inline]
    pub(crate) fn awaits_check(&self) -> bool {
        self.peers.awaits_check()
    }

    /// Whether the next check is due at once: for a peer that has left. One whose socket only has ended may take
    /// much longer, so it is checked as often as the others.
    pub(crate) const fn has_leaving_peers(&self) -> bool {
        self.peers.leaving.is_urgent
    }

    /// Takes channels down whose peer has left, once everything that the peer sent has been delivered. Destroys the
    /// queue pairs of channels that are down and are not flushed within the drain timeout.
    ///
    /// It does not wait. If it has to look again at some channel, the [descriptor](Self::peers_fd)
    /// becomes readable again; a layer without the descriptor calls it every few milliseconds.
    /// `now` is of the same clock in all calls.
    #[cold]
    #[inline(never)]
    pub fn check_peers(&mut self, now: Instant) {
        if let Some(device) = self.refusing_device() {
            let is_removed = device.is_removed();
            self.check_refused(is_removed, now);
        }
        self.check_watched(now);
    }

    /// Checks the peers alone.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_watched(&mut self, now: Instant) {
        // Without the timer, nothing announces that a channel has failed.
        if self.find_ended(now) || !self.peers.timer.is_there() {
            self.find_leaving(now);
        }
        if self.peers.leaving.next.is_none() {
            return;
        }
        // Their messages are in the queue, if they were delivered at all.
        for _ in 0..=self.cq.min_capacity() {
            if self.drive() == 0 {
                break;
            }
        }
        for at in self.places() {
            self.advance(at, now);
        }
        // Also those that have failed just now: the timer is set for the earliest of all.
        self.find_leaving(now);
        if let Some(next) = self.peers.leaving.next {
            self.peers.timer.set(next.saturating_duration_since(now));
        }
    }

    /// Finds the peers whose descriptor has ended. Returns whether the timer was due, or something has ended.
    fn find_ended(&mut self, now: Instant) -> bool {
        let mut is_due = false;
        let Some(set) = self.peers.set.clone() else {
            return is_due;
        };
        let timeout = self.limits.peer_timeout;
        let mut events = [const { MaybeUninit::uninit() }; 16];
        // As often as there can be something: the set is not ours alone if it was handed out.
        for _ in 0..=self.flight.members.len() {
            let seen = match epoll::wait(&set, &mut events, Some(&Timespec::default())) {
                Ok((seen, _)) => seen,
                Err(Errno::INTR) => continue,
                // EINTR: with a valid descriptor and room for events, there is no other error.
                Err(_) => return is_due,
            };
            if seen.is_empty() {
                return is_due;
            }
            is_due = true;
            for event in seen {
                match event.data.u64() {
                    // It is set again if it is still needed.
                    TIMER => self.peers.timer.stop(),
                    token => {
                        let mut members = self.flight.members.iter_mut();
                        members.any(|member| member.peer.on_event(token, now, timeout));
                    }
                }
            }
        }
        is_due
    }

    /// Finds the members that are down: their operations in flight have the drain timeout to be flushed.
    /// Records when the next of all that leave is due.
    fn find_leaving(&mut self, now: Instant) {
        let deadline = after(now, self.limits.drain_timeout);
        let mut leaving = Leaving::default();
        for member in &mut self.flight.members {
            if member.is_flushing() {
                member.peer.stage.get_or_insert(Stage::Flushing(deadline));
            }
            if let Some(stage) = member.peer.stage {
                leaving.add(stage, member.peer.is_connected());
            }
        }
        self.peers.leaving = leaving;
        self.peers.timer.all_found();
    }

    /// Takes a member whose peer has left down, or destroys its queue pair, if it is time.
    fn advance(&mut self, at: u32, now: Instant) {
        let Some(member) = self.flight.member_mut(at) else {
            return;
        };
        let Some(stage) = member.peer.stage.take() else {
            return;
        };
        let is_over = now >= stage.deadline();
        match stage {
            // Channels that are still to be flushed are found again.
            Stage::Sending(..) if member.down().is_some() => {}
            Stage::Sending(reason, _) => {
                let is_sending = member.credits.in_flight(Queue::Send) > 0;
                if (is_sending || member.peer.is_connected()) && !is_over {
                    member.peer.stage = Some(stage);
                } else {
                    self.flush_or_destroy(at, reason);
                }
            }
            Stage::Flushing(_) if member.credits.is_idle() => {}
            Stage::Flushing(_) if !is_over => member.peer.stage = Some(stage),
            Stage::Flushing(_) => self.destroy_at(at, DownReason::PeerClosed),
        }
    }
}
