//! Groups whose channels share their receives.

use std::sync::Arc;

use verbs_core::CompletionQueue;
use verbs_core::completion::CompletionChannel;
use verbs_core::shared_receive_queue::SharedReceiveQueue;

use super::{ChannelGroup, MemberFactory};
use crate::buffer::BufferPool;
use crate::channel::channel_builder;
use crate::channel::{ChannelBuilder, ChannelConfig};
use crate::engine::{Engine, Shared, SharedQueue};
use crate::error::{Error, Result};
use crate::waiting::Poller;

/// Settings of groups whose channels share their receives, from
/// [`ChannelConfig::shared_receives`] or [`ChannelConfig::shared_immediates`].
#[derive(Clone, Debug)]
#[must_use = "it is only data until `group` or `engine` is called"]
pub struct SharedReceivesConfig {
    config: ChannelConfig,
    pool: Option<BufferPool>,
    count: u32,
}

impl<S: channel_builder::IsComplete> ChannelBuilder<S> {
    /// Creates a group with room for this number of channels: as [`ChannelConfig::group`].
    ///
    /// # Errors
    ///
    /// Those of [`ChannelConfig::group`].
    pub fn group(self, channels: u32) -> Result<ChannelGroup> {
        self.config().group(channels)
    }

    /// Settings of a group with shared receives: as [`ChannelConfig::shared_receives`].
    pub fn shared_receives(self, pool: &BufferPool, count: u32) -> SharedReceivesConfig {
        self.config().shared_receives(pool, count)
    }

    /// Settings of a group with shared receives without memory: as [`ChannelConfig::shared_immediates`].
    pub fn shared_immediates(self, count: u32) -> SharedReceivesConfig {
        self.config().shared_immediates(count)
    }
}

impl ChannelConfig {
    /// Starts to build a group whose channels take their receives from one shared receive queue (SRQ).
    ///
    /// The queue has up to `count` blocks of this pool, so the memory for messages does not grow with the
    /// number of channels. Messages come out of [`ChannelGroup::next_message`], with the id of their
    /// channel. Dropping a message returns its block to the pool. The group posts such blocks again,
    /// several with one doorbell. The channels of the group do not post receives:
    /// [`start_receive`](crate::Channel::start_receive) and similar functions are rejected with
    /// [`RejectReason::SharedReceives`](crate::RejectReason::SharedReceives).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::verbs_core::Context;
    /// use verbs_channel::{BufferPool, Channel};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, 4096, 512)?;
    /// let mut group = Channel::builder(&pd).shared_receives(&pool, 256).group(1000)?;
    /// # let listener = std::net::TcpListener::bind("0.0.0.0:7471")?;
    /// let member = group.prepare()?.accept(&listener, Duration::from_secs(5))?.channel;
    /// group.join(member)?;
    /// while let Some(message) = group.wait_message(None) {
    ///     match (message.bytes(), message.end()) {
    ///         (Some(bytes), _) => println!("{} bytes of {}", bytes.len(), message.channel),
    ///         (None, Some(reason)) => {
    ///             println!("channel {}: {reason}", message.channel);
    ///             group.remove(message.channel)?;
    ///         }
    ///         (None, None) => println!("immediate {:?}", message.imm_data()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Slow consumers
    ///
    /// At most `count` blocks are in the queue, or in messages that were not taken. Messages that
    /// the program has taken hold further blocks of the pool. When the pool has none left, the
    /// queue runs empty. Peers then wait until blocks are returned, for as long as their
    /// [`rnr_retry`](ChannelConfig::rnr_retry) permits: forever by default. Calls on the group
    /// post returned blocks. A sleeping wait looks for them every millisecond.
    ///
    /// # What a peer can hold
    ///
    /// A peer that stalls in the middle of a message has one receive. Such receives are replaced by others, by up to
    /// the number of channels that the group is created for and at most `count`, while the pool has blocks:
    /// [`stalled_receives`](ChannelGroup::stalled_receives) counts them. They are noticed when the others have used all
    /// of the queue once, so there should be more receives than peers that may stall at once.
    ///
    /// A message that is cut, since its channel is removed, gives its receive back: removing a channel polls for that, for
    /// about a millisecond if nothing comes, as no verb tells whether it has one. If the driver does not complete it in
    /// time, the receive is lost. It is replaced in the same way, and its block returns to the pool when the queue is
    /// destroyed. Nothing shows such a loss before later messages complete; so once half of the receives may be lost,
    /// they are replaced, too, and if no channel is left, the queue is, which gives back all of them. If more are lost
    /// than can be replaced, all channels go down with
    /// [`DownReason::ReceivesLost`](crate::DownReason::ReceivesLost), and no other can
    /// [join](ChannelGroup::join). Only a driver that loses all of them, replacements included, while a channel is open
    /// and no message arrives, is not noticed.
    ///
    /// Channels that have not joined have at most three quarters of the receives. If their messages need more, the one
    /// that has the most gives all of them up, and is down with
    /// [`DownReason::TooManyEarly`](crate::DownReason::TooManyEarly) when it joins.
    ///
    /// # The end of a channel
    ///
    /// A channel that waits for messages has no operation in flight that could fail. So the end of a channel
    /// is a [message](crate::Message) of its own, the last of the channel. Blocks belong to the queue, not
    /// to a channel: after the end of a channel, the other channels use them. They return to the pool when
    /// the queue is destroyed, after the group, its factories, and all prepared channels have been dropped.
    /// If the driver fails to destroy it, the blocks are leaked, which is logged.
    ///
    /// # Immediate data of writes
    ///
    /// A write with immediate data uses a receive, too. The block of that receive is not written to, and is
    /// posted again as soon as the message is taken. If peers send nothing else, use
    /// [`shared_immediates`](Self::shared_immediates), which needs no blocks. Since a queue pair has only
    /// one receive queue, a program with both kinds of messages needs two groups to keep their receives
    /// apart.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receives(&self, pool: &BufferPool, count: u32) -> SharedReceivesConfig {
        SharedReceivesConfig {
            config: self.clone(),
            pool: Some(pool.clone()),
            count,
        }
    }

    /// Starts to build a group whose channels share `count` receives without memory.
    ///
    /// It is for peers that send only writes with immediate data, and empty messages. Any other
    /// message is an error, and takes its channel down. Otherwise it is like
    /// [`shared_receives`](Self::shared_receives). Drivers for iWARP do not support it.
    pub fn shared_immediates(&self, count: u32) -> SharedReceivesConfig {
        SharedReceivesConfig {
            config: self.clone(),
            pool: None,
            count,
        }
    }
}

impl SharedReceivesConfig {
    /// Creates a group with room for this number of channels, as [`ChannelConfig::group`] does, and posts a receive for
    /// each block of the pool.
    ///
    /// # Errors
    ///
    /// - [`verbs_core::Error::Limit`]: the device cannot have that many shared receives. If it can have those but not
    ///   others to replace them, it is no error.
    /// - [`Error::Capacity`](crate::Error::Capacity): it cannot have that many entries in a
    ///   completion queue: `max_send_wr` for each channel, and one for each shared receive.
    /// - [`Error::PeerTimeout`](crate::Error::PeerTimeout): the `peer_timeout` is shorter than 2 s.
    /// - [`verbs_core::Error::ForeignParent`]: the pool belongs to another protection domain.
    /// - [`verbs_core::Error::Unsupported`]: the device has no shared receive queues.
    pub fn group(&self, channels: u32) -> Result<ChannelGroup> {
        let completion_channel = self.config.completion_channel()?;
        let (engine, factory) = self.build(channels, completion_channel.as_ref())?;
        let poller = Poller::new(engine, self.config.waits(), completion_channel);
        Ok(ChannelGroup::new(poller, factory))
    }

    /// Creates an [`Engine`], for a layer that waits in its own way: as [`ChannelConfig::engine`].
    ///
    /// # Errors
    ///
    /// As [`group`](Self::group).
    #[doc(hidden)]
    pub fn engine(
        &self,
        channels: u32,
        events: &CompletionChannel,
    ) -> Result<(Engine, MemberFactory)> {
        self.build(channels, Some(events))
    }

    fn build(
        &self,
        channels: u32,
        events: Option<&CompletionChannel>,
    ) -> Result<(Engine, MemberFactory)> {
        let Self {
            config,
            pool,
            count,
        } = self;
        let pd = config.pd();
        if let Some(pool) = pool
            && !pool.pd().is(pd)
        {
            return Err(verbs_core::Error::ForeignParent {
                child: "the buffer pool",
                parent: "protection domain",
            }
            .into());
        }
        // Room to replace receives that are not completed, if the device has that much.
        let spare = (*count).min(channels);
        let room = |spare: u32| {
            let all = count.saturating_add(spare);
            let srq = SharedReceiveQueue::create(pd, all)?;
            let cq: CompletionQueue = config.queue_with(channels, 0, all, events)?;
            Ok::<_, Error>((spare, srq, cq))
        };
        let (spare, srq, cq) = room(spare).or_else(|_| room(0))?;
        let queue = SharedQueue::new(srq.clone());
        let places = [*count, spare];
        let shared = Shared::new(srq, Arc::clone(&queue), pool.clone(), places);
        let (mut engine, factory) = config.engine_on(cq, channels, Some(queue))?;
        engine.share(shared).map_err(verbs_core::Error::from)?;
        Ok((engine, factory))
    }
}
