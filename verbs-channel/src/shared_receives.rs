//! Groups whose channels share their receives.

use std::sync::Arc;

use verbs_core::{CompletionChannel, CompletionQueue, SharedReceiveQueue};

use crate::buffer::BufferPool;
use crate::config::ChannelBuilder;
use crate::engine::{Engine, Shared, SharedQueue};
use crate::error::Result;
use crate::group::{ChannelGroup, Preparer};
use crate::waiting::Poller;

/// Builder for groups whose channels share their receives, from
/// [`ChannelBuilder::shared_receives`] or [`ChannelBuilder::shared_immediates`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until one of its last calls"]
pub struct SharedReceivesBuilder {
    config: ChannelBuilder,
    pool: Option<BufferPool>,
    count: u32,
}

impl ChannelBuilder {
    /// Has all channels of a group take their receives from one shared receive queue (SRQ), with up to
    /// `count` blocks of this pool.
    ///
    /// So the memory for messages does not grow with the number of channels. Messages come out of
    /// [`ChannelGroup::next_message`], with the id of their channel. To drop one returns its block to the
    /// pool, and the group posts it again, several with one doorbell. A channel of the group posts no
    /// receives: [`start_receive`](crate::Channel::start_receive) and the like are rejected with
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
    /// let member = group.prepare()?.accept(&listener, Duration::from_secs(5))?;
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
    /// The queue, and the messages that were not taken, have `count` blocks at most. Those that the
    /// program keeps come from the rest of the pool. When the pool has none left, the queue runs empty,
    /// and peers wait until blocks come back: as long as their
    /// [`rnr_retry`](ChannelBuilder::rnr_retry) permits, which is forever by default. Blocks are posted
    /// by calls on the group. A wait that sleeps looks for them each millisecond.
    ///
    /// # The end of a channel
    ///
    /// Nothing of a channel is in flight while it waits for messages, so its end is a
    /// [message](crate::Message) of its own, after all others of the channel. Blocks belong to the queue,
    /// and not to a channel: those in the queue when a channel ends are used for the others. They return
    /// to the pool when the queue has been destroyed: when the group, its preparers, and all channels that
    /// were prepared are dropped. If the driver fails to destroy it, they are leaked, which is logged.
    ///
    /// # Immediate data of writes
    ///
    /// A write with immediate data uses a receive, too. Its block is not written to, and is posted again
    /// as soon as the message is taken. For peers that send nothing else there is
    /// [`shared_immediates`](Self::shared_immediates), without blocks. A queue pair has one receive queue,
    /// so a program that has both kinds, and wants to keep their receives apart, has a group for each.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receives(&self, pool: &BufferPool, count: u32) -> SharedReceivesBuilder {
        SharedReceivesBuilder {
            config: self.clone(),
            pool: Some(pool.clone()),
            count,
        }
    }

    /// [`shared_receives`](Self::shared_receives) without memory: for writes with immediate data, and
    /// empty messages.
    ///
    /// A longer message is an error, and takes its channel down. Drivers for iWARP do not support it.
    pub fn shared_immediates(&self, count: u32) -> SharedReceivesBuilder {
        SharedReceivesBuilder {
            config: self.clone(),
            pool: None,
            count,
        }
    }
}

impl SharedReceivesBuilder {
    /// Creates a group of at most `max_channels` channels, and posts as many receives as the pool has
    /// blocks.
    ///
    /// # Errors
    ///
    /// - [`verbs_core::Error::Limit`]: a completion queue with an entry for each of `max_send_wr` requests
    ///   of each channel, and for each shared receive, exceeds the device's limits; or so many shared
    ///   receives do.
    /// - [`verbs_core::Error::ForeignParent`]: the pool belongs to another protection domain.
    /// - [`verbs_core::Error::Unsupported`]: the device has no shared receive queues.
    pub fn group(&self, max_channels: u32) -> Result<ChannelGroup> {
        let completion_channel = self.config.completion_channel()?;
        let (engine, preparer) = self.build(max_channels, completion_channel.as_ref())?;
        let poller = Poller::new(engine, self.config.waits(), completion_channel);
        Ok(ChannelGroup::new(poller, preparer))
    }

    /// Creates an [`Engine`], for a layer that waits in its own way: as [`ChannelBuilder::engine`].
    ///
    /// # Errors
    ///
    /// As [`group`](Self::group).
    pub fn engine(
        &self,
        max_channels: u32,
        events: &CompletionChannel,
    ) -> Result<(Engine, Preparer)> {
        let (mut engine, preparer) = self.build(max_channels, Some(events))?;
        engine.queue_leaks();
        Ok((engine, preparer))
    }

    fn build(
        &self,
        max_channels: u32,
        events: Option<&CompletionChannel>,
    ) -> Result<(Engine, Preparer)> {
        let Self {
            config,
            pool,
            count,
        } = self;
        let pd = config.pd();
        if let Some(pool) = pool
            && pool.pd().as_ptr() != pd.as_ptr()
        {
            return Err(verbs_core::Error::ForeignParent {
                child: "the buffer pool",
                parent: "protection domain",
            }
            .into());
        }
        let queue = SharedQueue::new(SharedReceiveQueue::create(pd, *count)?);
        let cq: CompletionQueue = config.queue_with(max_channels, 0, *count, events)?;
        let shared = Shared::new(Arc::clone(&queue), pool.clone(), *count, max_channels);
        let (mut engine, preparer) = config.engine_on(cq, max_channels, Some(queue));
        engine.share(shared).map_err(verbs_core::Error::from)?;
        Ok((engine, preparer))
    }
}
