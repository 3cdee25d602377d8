//! Looks at the peers, and takes those channels down whose peer has left.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdTimerFlags, timerfd_settime};

use super::Engine;
use super::peer::{GRACE, Leaving, Link, NEVER, Peer, Stage, TIMER, after};
use crate::error::{DownReason, Queue};

impl Engine {
    /// Gives a member what shows its peer's end.
    pub(crate) fn watch_peer(&mut self, at: u32, link: Link) -> io::Result<()> {
        let Some(member) = self.members.get_mut(at as usize) else {
            return Ok(());
        };
        // One that is down needs none; and what still ends on it goes by the one that it had.
        if member.down().is_some() {
            return Ok(());
        }
        // The one before goes first: it may be the same connection.
        member.peer = Peer::default();
        member.peer = self.peers.watch(link).map_err(|(error, _)| error)?;
        Ok(())
    }

    /// A descriptor that is readable when [`look_at_peers`](Self::look_at_peers) has something to
    /// do.
    pub(crate) fn peers_descriptor(&mut self) -> io::Result<OwnedFd> {
        self.peers.announce()
    }

    /// Where a poll found nothing: looks at the peers now and then.
    #[inline]
    pub(crate) fn glance_at_peers(&mut self) {
        if self.peers.is_due() {
            self.look_at_peers();
        }
    }

    /// Looks at the peers, and takes those channels down whose peer has left. Waits for nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_peers(&mut self) {
        self.see_who_left();
        if self.peers.leaving.is_empty() {
            return;
        }
        // What they have sent is in the queue, if it was delivered at all.
        for _ in 0..=self.cq().min_capacity() {
            if self.drive() == 0 {
                break;
            }
        }
        let now = Instant::now();
        let mut next = 0;
        while let Some(leaving) = self.peers.leaving.get(next).copied() {
            match self.leave(leaving, now) {
                Some(stage) => {
                    if let Some(leaving) = self.peers.leaving.get_mut(next) {
                        leaving.stage = stage;
                    }
                    next += 1;
                }
                None => drop(self.peers.leaving.swap_remove(next)),
            }
        }
        self.peers.set_timer();
    }

    fn see_who_left(&mut self) {
        let Some(set) = self.peers.set.clone() else {
            return;
        };
        let mut events = [const { MaybeUninit::uninit() }; 16];
        // As often as there can be something: the set is not ours alone if it was handed out.
        for _ in 0..=self.members.len() {
            let seen = match epoll::wait(&set, &mut events, Some(&Timespec::default())) {
                Ok((seen, _)) => seen,
                Err(Errno::INTR) => continue,
                // Of a set that is one, with room for events: there is no other error.
                Err(_) => return,
            };
            if seen.is_empty() {
                return;
            }
            for event in seen {
                match event.data.u64() {
                    TIMER => self.stop_timer(),
                    token => self.has_left(token),
                }
            }
        }
    }

    /// It is set anew if it is still needed.
    fn stop_timer(&self) {
        if let Some(timer) = &self.peers.timer {
            drop(timerfd_settime(timer, TimerfdTimerFlags::empty(), &NEVER));
        }
    }

    fn has_left(&mut self, token: u64) {
        let mut members = (0..).zip(&self.members);
        // One that is down has let go of its descriptor.
        let Some((at, reason)) = members.find_map(|(at, member)| member.peer.end(at, token)) else {
            return;
        };
        let stage = Stage::Sending(reason, Instant::now() + GRACE);
        self.peers.leaving.push(Leaving { at, token, stage });
    }

    /// Goes on with a member whose peer has left; what is next, if it is not over.
    fn leave(&mut self, leaving: Leaving, now: Instant) -> Option<Stage> {
        let Leaving { at, token, stage } = leaving;
        let is_over = now >= stage.deadline();
        let drain_timeout = self.waits.drain_timeout;
        let member = self.members.get(at as usize)?;
        if member.peer.token != token {
            return None;
        }
        match stage {
            // It went down for another reason, and ends by that.
            Stage::Sending(..) if member.down().is_some() => None,
            Stage::Sending(reason, _) => {
                let is_sending = member.credits(Queue::Send) < member.capacity(Queue::Send);
                if is_sending && !is_over {
                    return Some(stage);
                }
                self.shut_down(at, reason);
                Some(Stage::Flushing(after(now, drain_timeout)))
            }
            Stage::Flushing(_) if member.is_idle() => None,
            Stage::Flushing(_) if !is_over => Some(stage),
            Stage::Flushing(_) => {
                self.destroy(at, DownReason::PeerClosed);
                None
            }
        }
    }
}
