//! Queue pairs that are destroyed by layers that keep their engine under a lock.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use verbs_core::QueuePair;

use super::shared::SharedQueue;
use crate::channel_id::ChannelId;

/// The queue pair of a channel that is being closed, taken out of its engine.
///
/// Returned by [`Engine::next_closing`](super::Engine::next_closing). The operations in flight end only after it has been
/// [destroyed](Self::destroy) and [returned to the engine](super::Engine::finish_close). If it is
/// dropped instead, they do not end, and the channel keeps its place. Then the engine leaks
/// their buffers when it is dropped, and logs that.
#[derive(Debug)]
#[must_use = "operations in flight end when this has been destroyed and returned to the engine"]
pub struct Closing {
    pub(super) channel: ChannelId,
    pub(super) qp: QueuePair,
    pub(super) drain_timeout: Duration,
    // When the driver first refused one of those that end together.
    pub(super) refused_since: Arc<OnceLock<Instant>>,
    // After `qp`, which may be on it.
    pub(super) shared: Option<Arc<SharedQueue>>,
}

/// The outcome of destroying a queue pair, for [`Engine::finish_close`](super::Engine::finish_close).
#[derive(Debug)]
#[must_use = "operations in flight end when this is returned to the engine"]
pub struct Closed {
    pub(super) channel: ChannelId,
    pub(super) destroyed: verbs_core::Result<()>,
}

impl Closing {
    /// The id of the channel. It is that of no channel if this [has not joined](Self::is_unjoined).
    #[must_use]
    pub const fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Whether it was dropped before it joined, and has no id: see
    /// [`forget_dropped_members`](super::Engine::forget_dropped_members).
    #[must_use]
    pub fn is_unjoined(&self) -> bool {
        self.channel == ChannelId::NONE
    }

    /// Destroys the queue pair. The driver may take a while for that. If it refuses to with `EIO`, as for a device
    /// that is being removed, this waits for the [removal](verbs_core::Context::is_removed), for at most the
    /// [drain timeout](super::Engine::drain_timeout) after the first refusal of those that the engine has handed out or
    /// queued at the same time.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Closed {
        let is_unjoined = self.is_unjoined();
        let qp_num = self.qp.qp_num();
        let context = self.qp.pd().context().clone();
        let mut destroyed = self.qp.close();
        if let Err(error) = &destroyed
            && context.may_be_removed(error)
        {
            let since = self.refused_since.get_or_init(Instant::now);
            let left = self.drain_timeout.saturating_sub(since.elapsed());
            if context.wait_removed(left) {
                destroyed = Ok(());
            }
        }
        if is_unjoined && let Some(shared) = &self.shared {
            shared.destroyed(qp_num);
        }
        Closed {
            channel: self.channel,
            destroyed,
        }
    }
}
