//! Closing channels in two steps, for layers that keep the engine under a lock.

use std::sync::Arc;

use verbs_core::QueuePair;

use super::{Afterwards, Closed, Closing, Engine, Leak, Member};
use crate::channel_id::ChannelId;

#[doc(hidden)]
impl Engine {
    /// From now on, queue pairs are not destroyed by this engine, but handed out by
    /// [`next_closing`](Self::next_closing): for layers that keep the engine under a lock.
    ///
    /// Then [`destroy`](Self::destroy), [`destroy_all`](Self::destroy_all), [`remove`](Self::remove), and
    /// all that takes channels down because something has failed, return before the operations in
    /// flight have ended. They end in [`finish_close`](Self::finish_close).
    ///
    /// Buffers that [`join`](Self::join) does not post are kept for
    /// [`take_rejected_receives`](Self::take_rejected_receives).
    ///
    /// Nothing is deferred where memory is handed back at once: after a post of unknown outcome,
    /// with borrowed buffers in flight, and when the engine is dropped. Nothing is deferred either
    /// where a [`Channel`](crate::Channel) or a [`ChannelGroup`](crate::ChannelGroup) waits: in a
    /// transfer, an abort, a reset or a close, and in any other wait. Such a wait destroys queued
    /// queue pairs, but waits for none that was handed out.
    pub fn defer_closing(&mut self) {
        self.closings.get_or_insert_default();
        self.afterwards.keeps_sockets = true;
    }

    /// Queues the queue pair of a member for [`next_closing`](Self::next_closing).
    pub(super) fn defer_destroying(&mut self, at: u32, qp: QueuePair) {
        let channel = self.member(at).map_or(ChannelId::NONE, |member| member.id);
        let shared = self.shared.as_deref();
        let shared = shared.map(|shared| Arc::clone(&shared.queue));
        // One bound for all that end together.
        let since = self.closings_refused.upgrade().unwrap_or_default();
        self.closings_refused = Arc::downgrade(&since);
        let closing = Closing::new(channel, qp, self.limits.drain_timeout, since, shared);
        self.closings.get_or_insert_default().push(closing);
        self.afterwards.is_due = true;
    }

    /// The next queue pair to be [destroyed](Closing::destroy) without the lock, and then
    /// [returned](Self::finish_close), if that is [deferred](Self::defer_closing).
    #[must_use = "operations in flight end when this has been destroyed and returned to the engine"]
    pub fn next_closing(&mut self) -> Option<Closing> {
        let closing = self.closings.as_mut()?.pop();
        self.update_deferred();
        closing
    }

    /// Ends the operations that were in flight on a channel, whose queue pair has been destroyed.
    ///
    /// # Errors
    ///
    /// `closed` itself, if the channel belongs to another engine.
    pub fn finish_close(&mut self, closed: Closed) -> Result<(), Closed> {
        if closed.channel == ChannelId::NONE {
            // It has not joined: nothing but its number is left.
            if let Err(error) = closed.destroyed {
                let leak = Leak { buffers: 0, error };
                self.afterwards.push(Afterwards::Leak(leak));
            }
            self.forget_dropped_members();
            return Ok(());
        }
        let Some(at) = self.place(closed.channel) else {
            return Err(closed);
        };
        self.closed(at, closed.destroyed);
        self.dispatch_all();
        self.end_closed(at);
        self.replace_overtaken();
        Ok(())
    }

    /// Whether the queue pair of some channel is being destroyed elsewhere. That channel counts as one
    /// of this engine until it is [returned](Self::finish_close).
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.flight.members.iter().any(Member::is_closing)
    }

    /// Whether the driver has failed to destroy the queue pair of a channel, also of one that was removed: the
    /// device may still access its memory.
    #[must_use]
    pub const fn has_stuck(&self) -> bool {
        self.stuck > 0
    }

    /// Whether [`next_closing`](Self::next_closing) or [`next_afterwards`](Self::next_afterwards) has something to do.
    #[must_use]
    #[inline]
    pub const fn has_deferred(&self) -> bool {
        self.afterwards.is_due
    }

    pub(super) fn update_deferred(&mut self) {
        let has_closings = self.closings.as_ref().is_some_and(|list| !list.is_empty());
        let afterwards = &mut self.afterwards;
        afterwards.is_due = has_closings || !afterwards.is_empty();
    }
}
