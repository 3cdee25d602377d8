//! Closing a channel in two steps, for layers that keep the engine under a lock.

use std::sync::Arc;

use verbs_core::QueuePair;

use super::{Engine, SharedQueue};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Result};

/// The queue pair of a channel that is being closed, taken out of its engine.
///
/// Created by [`Engine::start_close`]. The operations in flight end only after it has been
/// [destroyed](Self::destroy) and [returned to the engine](Engine::finish_close). If it is
/// dropped instead, they do not end, and the channel keeps its place. Then the engine leaks
/// their buffers when it is dropped, and logs that.
#[derive(Debug)]
#[must_use = "operations in flight end when this has been destroyed and returned to the engine"]
pub struct Closing {
    channel: ChannelId,
    // `None` if it had been destroyed before.
    qp: Option<QueuePair>,
    // After `qp`, which may be on it.
    _shared: Option<Arc<SharedQueue>>,
}

/// The outcome of destroying a queue pair, for [`Engine::finish_close`].
#[derive(Debug)]
#[must_use = "operations in flight end when this is returned to the engine"]
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

impl Engine {
    /// The first half of [`remove`](Self::remove), for layers that keep the engine under a lock.
    ///
    /// The channel is down for this reason, unless it was down before. Its queue pair is returned, to
    /// be [destroyed](Closing::destroy) without the lock. The operations in flight end in
    /// [`finish_close`](Self::finish_close).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`](crate::Error::UnknownChannel).
    pub fn start_close(&mut self, channel: ChannelId, reason: DownReason) -> Result<Closing> {
        let at = self.place_of(channel)?;
        let qp = self.take_qp(at, reason);
        let shared = self.shared.as_deref();
        Ok(Closing {
            channel,
            qp,
            _shared: shared.map(|shared| Arc::clone(&shared.queue)),
        })
    }

    /// The second half of [`remove`](Self::remove): ends the operations that were in flight.
    ///
    /// If `is_removed`, the channel's place is reused once its outcomes have been taken.
    ///
    /// # Errors
    ///
    /// `closed` itself, if the channel belongs to another engine.
    pub fn finish_close(&mut self, closed: Closed, is_removed: bool) -> Result<(), Closed> {
        let Some(at) = self.place(closed.channel) else {
            return Err(closed);
        };
        if let Some(destroyed) = closed.destroyed {
            self.closed(at, destroyed);
            self.dispatch_all();
            self.end_closed(at);
        }
        if is_removed {
            self.remove_at(at);
        }
        Ok(())
    }
}
