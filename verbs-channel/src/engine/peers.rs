//! Checks the peers, and takes those channels down whose peer has left.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdTimerFlags, timerfd_settime};
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;

use super::Engine;
use super::peer::{BESIDE, GRACE, Leaving, Link, NEVER, Stage, TIMER, after};
use crate::error::{DownReason, Queue, Result};
use crate::exchange::ExchangeError;

impl Engine {
    /// Watches a member's peer through this descriptor.
    pub(crate) fn watch_peer_at(&mut self, at: u32, descriptor: OwnedFd) -> Result<()> {
        let link = Link::new(descriptor, self.limits.peer_timeout);
        let link = link.map_err(ExchangeError::not_watched)?;
        self.watch_link(at, link)
    }

    /// Watches a member's peer through this connection, which `dispose` drops at the end.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn watch_connection_at(
        &mut self,
        at: u32,
        connection: Connection,
        dispose: fn(Connection),
    ) -> Result<()> {
        let is_watched = self.limits.peer_timeout.is_some();
        self.watch_link(at, Link::of_manager(connection, dispose, is_watched))
    }

    fn watch_link(&mut self, at: u32, link: Link) -> Result<()> {
        let Some(member) = self.members.get_mut(at as usize) else {
            return Ok(());
        };
        // A member that is down needs none; operations that still end on it use the previous one.
        if member.down().is_some() {
            return Ok(());
        }
        // If it cannot be watched, the one before stays: that it is closed would show the peer an end.
        let beside = self.peers.watch_beside(&mut member.peer, link);
        if let Some(link) = beside.map_err(ExchangeError::not_watched)? {
            let watched = self.peers.watch(link).map_err(|(error, _)| error);
            member.peer = watched.map_err(ExchangeError::not_watched)?;
        }
        Ok(())
    }

    /// A descriptor to wait on: it is readable when [`check_peers`](Self::check_peers) has something to
    /// do.
    ///
    /// # Errors
    ///
    /// The errno, such as `EMFILE`.
    pub fn peers_fd(&mut self) -> io::Result<OwnedFd> {
        self.peers.announce()
    }

    /// Whether peers are to be checked where a poll finds nothing.
    #[inline]
    pub(crate) fn awaits_check(&self) -> bool {
        self.peers.awaits_check()
    }

    /// Whether the next check is due at once: for a peer that has left. One whose socket only has ended may take
    /// much longer, so it is checked as often as the others.
    pub(crate) fn has_leaving_peers(&self) -> bool {
        let mut leaving = self.peers.leaving.iter();
        leaving.any(|leaving| {
            let member = self.members.get(leaving.at as usize);
            let peer = member.map(|member| &member.peer);
            !peer.is_some_and(|peer| peer.token == leaving.token && peer.is_connected())
        })
    }

    /// Takes channels down whose peer has left, once everything that the peer sent has been delivered. Destroys the
    /// queue pairs of watched channels that are down and are not flushed within the drain timeout.
    ///
    /// It does not wait. If it has to look again at some channel, the [descriptor](Self::peers_fd)
    /// becomes readable again; a layer without the descriptor calls it every few milliseconds.
    /// `now` is of the same clock in all calls.
    #[cold]
    #[inline(never)]
    pub fn check_peers(&mut self, now: Instant) {
        if self.find_ended(now) {
            self.find_unflushed(now);
        }
        if self.peers.leaving.is_empty() {
            return;
        }
        // What they have sent is in the queue, if it was delivered at all.
        for _ in 0..=self.cq.min_capacity() {
            if self.drive() == 0 {
                break;
            }
        }
        let mut next = 0;
        while let Some(leaving) = self.peers.leaving.get(next).copied() {
            match self.next_stage(leaving, now) {
                Some(stage) => {
                    if let Some(leaving) = self.peers.leaving.get_mut(next) {
                        leaving.stage = stage;
                    }
                    next += 1;
                }
                None => drop(self.peers.leaving.swap_remove(next)),
            }
        }
        // Also those that have failed just now: the timer is set for the earliest of all.
        self.find_unflushed(now);
        self.peers.set_timer(now);
    }

    /// Finds the peers whose descriptor has ended. Returns whether the timer was due.
    fn find_ended(&mut self, now: Instant) -> bool {
        let mut is_due = false;
        let Some(set) = self.peers.set.clone() else {
            return is_due;
        };
        let mut events = [const { MaybeUninit::uninit() }; 16];
        // As often as there can be something: the set is not ours alone if it was handed out.
        for _ in 0..=self.members.len() {
            let seen = match epoll::wait(&set, &mut events, Some(&Timespec::default())) {
                Ok((seen, _)) => seen,
                Err(Errno::INTR) => continue,
                // Of a set that is one, with room for events: there is no other error.
                Err(_) => return is_due,
            };
            if seen.is_empty() {
                return is_due;
            }
            for event in seen {
                match event.data.u64() {
                    TIMER => {
                        self.stop_timer();
                        is_due = true;
                    }
                    token => self.on_end(token, now),
                }
            }
        }
        is_due
    }

    /// Finds the members that are down: their operations in flight have the drain timeout to be flushed. Only
    /// those that had a watched peer: without a token, another could be mistaken for it.
    fn find_unflushed(&mut self, now: Instant) {
        let deadline = after(now, self.limits.drain_timeout);
        for (at, member) in (0..).zip(&self.members) {
            let is_flushing = member.down().is_some() && member.qp().is_some() && !member.is_idle();
            let token = member.peer.token;
            let is_known = |leaving: &Leaving| leaving.at == at && leaving.token == token;
            if is_flushing && token != 0 && !self.peers.leaving.iter().any(is_known) {
                let stage = Stage::Flushing(deadline);
                self.peers.leaving.push(Leaving { at, token, stage });
            }
        }
    }

    /// It is set again if it is still needed.
    fn stop_timer(&self) {
        if let Some(timer) = &self.peers.timer {
            drop(timerfd_settime(timer, TimerfdTimerFlags::empty(), &NEVER));
        }
    }

    /// The descriptor with this token has ended.
    fn on_end(&mut self, token: u64, now: Instant) {
        let mut members = (0..).zip(&mut self.members);
        // A member that is down has closed its descriptor.
        let Some((at, reason)) =
            members.find_map(|(at, member)| Some((at, member.peer.end(token)?)))
        else {
            return;
        };
        let grace = match (self.limits.peer_timeout, reason) {
            // What the peer has sent may be on its way still.
            (Some(timeout), DownReason::PeerClosed) if token & BESIDE != 0 => timeout,
            _ => GRACE,
        };
        let token = token & !BESIDE;
        let stage = Stage::Sending(reason, after(now, grace));
        self.peers.leaving.push(Leaving { at, token, stage });
    }

    /// Advances a member whose peer has left. Returns the next stage, if there is one.
    fn next_stage(&mut self, leaving: Leaving, now: Instant) -> Option<Stage> {
        let Leaving { at, token, stage } = leaving;
        let is_over = now >= stage.deadline();
        let drain_timeout = self.limits.drain_timeout;
        let member = self.members.get(at as usize)?;
        if member.peer.token != token {
            return None;
        }
        match stage {
            // It went down for another reason.
            Stage::Sending(..) if member.down().is_some() => {
                Some(Stage::Flushing(after(now, drain_timeout)))
            }
            Stage::Sending(reason, _) => {
                let is_sending = member.in_flight(Queue::Send) > 0;
                if (is_sending || member.peer.is_connected()) && !is_over {
                    return Some(stage);
                }
                self.shut_down_at(at, reason);
                Some(Stage::Flushing(after(now, drain_timeout)))
            }
            Stage::Flushing(_) if member.is_idle() => None,
            Stage::Flushing(_) if !is_over => Some(stage),
            Stage::Flushing(_) => {
                self.destroy_at(at, DownReason::PeerClosed);
                None
            }
        }
    }
}
