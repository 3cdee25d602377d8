//! Closing a channel of a group in two steps, for layers that keep the group behind a lock.

use verbs_core::QueuePair;

use super::channel_group::ChannelGroup;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Result};

/// The queue pair of a channel that is being closed, taken out of its group.
///
/// Made by [`ChannelGroup::start_close`]. What was in flight ends only when it has been
/// [destroyed](Self::destroy) and [given back](ChannelGroup::finish_close). If it is dropped instead,
/// the operations in flight have no end, the channel keeps its place in the group, and the group
/// leaks those buffers when it goes, and logs that.
#[derive(Debug)]
#[must_use = "what is in flight ends when this was destroyed and given back"]
pub struct Closing {
    channel: ChannelId,
    // `None` if there was none any more.
    qp: Option<QueuePair>,
}

/// What became of a queue pair: for [`ChannelGroup::finish_close`].
#[derive(Debug)]
#[must_use = "what is in flight ends when this is given back"]
pub struct Closed {
    channel: ChannelId,
    destroyed: Option<verbs_core::Result<()>>,
}

impl Closing {
    /// Destroys the queue pair. The kernel may take a while for that.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Closed {
        Closed {
            channel: self.channel,
            destroyed: self.qp.map(QueuePair::close),
        }
    }
}

impl ChannelGroup {
    /// The first half of [`remove`](Self::remove), for layers that keep the group behind a lock: the
    /// channel is down for this reason, unless it was before, and its queue pair is taken out, to be
    /// [destroyed](Closing::destroy) where nothing is locked. What is in flight ends in
    /// [`finish_close`](Self::finish_close).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`](crate::Error::UnknownChannel).
    pub fn start_close(&mut self, channel: ChannelId, reason: DownReason) -> Result<Closing> {
        let at = self.place(channel)?;
        let qp = self.engine.take_qp(at, reason);
        Ok(Closing { channel, qp })
    }

    /// The second half: everything that was in flight on the channel has ended. If `is_removed`, its
    /// place is given to another channel when its results have been taken.
    ///
    /// # Errors
    ///
    /// What was given, if the channel is another group's: give it to that.
    pub fn finish_close(&mut self, closed: Closed, is_removed: bool) -> Result<(), Closed> {
        let Ok(at) = self.place(closed.channel) else {
            return Err(closed);
        };
        if let Some(destroyed) = closed.destroyed {
            self.engine.closed(at, destroyed);
            self.engine.dispatch_left();
            self.engine.end_closed(at);
        }
        if is_removed {
            self.engine.remove(at);
        }
        Ok(())
    }
}
