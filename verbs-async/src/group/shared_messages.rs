//! The messages of a group whose channels share their receives, awaited.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use verbs_channel::buffer::TakeWhenFree;
use verbs_channel::engine::Engine;
use verbs_channel::group::SharedReceivesConfig;
use verbs_channel::{BufferPool, Message};

use super::AsyncGroup;
use crate::engine::SharedEngine;
use crate::error::Result;
use crate::events::CqEvents;
use crate::task::coop;

/// The messages that arrive on the channels of a group that share their receives, in the order of
/// arrival.
///
/// Created by [`AsyncGroup::with_shared_receives`]. Each [`Message`] has the
/// [id](crate::AsyncChannel::id) of its channel. When it is dropped, its block is posted again by
/// [`next`](Self::next).
///
/// The end of a channel is a message of its own, the last of the channel. It may be missing for a channel
/// whose [`AsyncChannel`](crate::AsyncChannel) was dropped.
///
/// Dropping this value takes no channel down. Messages that arrive later fill the receives, and then
/// peers wait.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> verbs_async::Result<()> {
/// use std::collections::HashMap;
/// use verbs_async::verbs_channel::{BufferPool, Channel, verbs_core::Context};
/// use verbs_async::{AsyncGroup, CqEvents};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let events = CqEvents::create_thread(pd.context())?;
/// let pool = BufferPool::new(&pd, 4096, 512)?;
/// let receives = Channel::builder(&pd).shared_receives(&pool, 256);
/// let (group, mut messages) = AsyncGroup::with_shared_receives(&receives, 1000, &events)?;
/// let (left, right) = group.loopback()?;
/// let mut channels = HashMap::from([(left.id(), left), (right.id(), right)]);
/// while let Some(message) = messages.next().await {
///     match (message.bytes(), message.end()) {
///         (Some(bytes), _) => println!("{} bytes of {}", bytes.len(), message.channel),
///         (None, Some(reason)) => {
///             println!("channel {}: {reason}", message.channel);
///             channels.remove(&message.channel);
///         }
///         (None, None) => println!("immediate {:?}", message.imm_data()),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "peers wait if their messages are not taken"]
pub struct SharedMessages {
    shared: Arc<SharedEngine>,
    // Pool of the blocks, unless receives have no memory.
    pool: Option<BufferPool>,
}

impl AsyncGroup {
    /// Creates a group with room for this number of channels, which share their receives, and returns their
    /// messages: see [`ChannelConfig::shared_receives`] and [`ChannelConfig::shared_immediates`].
    ///
    /// Its channels do not post receives: [`receive`](crate::AsyncChannel::receive) and
    /// [`incoming`](crate::AsyncChannel::incoming) are rejected with
    /// [`RejectReason::SharedReceives`](verbs_channel::RejectReason::SharedReceives).
    ///
    /// # Errors
    ///
    /// Those of [`SharedReceivesConfig::group`].
    ///
    /// [`ChannelConfig::shared_receives`]: verbs_channel::ChannelConfig::shared_receives
    /// [`ChannelConfig::shared_immediates`]: verbs_channel::ChannelConfig::shared_immediates
    #[doc(alias = "ibv_create_srq")]
    pub fn with_shared_receives(
        receives: &SharedReceivesConfig,
        room_for: u32,
        events: &CqEvents,
    ) -> Result<(Self, SharedMessages)> {
        let (engine, factory) = receives.engine(room_for, events.channel())?;
        let pool = engine.shared_pool().cloned();
        let group = Self::of_engine(engine, factory, events)?;
        let shared = Arc::clone(group.shared());
        let dropped = Dropped(Arc::downgrade(&shared));
        let waker = Waker::from(Arc::new(dropped));
        let listen = |engine: &mut Engine| engine.wake_when_members_drop(waker);
        shared.driver.with_engine(listen);
        Ok((group, SharedMessages { shared, pool }))
    }
}

impl SharedMessages {
    /// Waits for the next message of any channel, or the end of one. It also posts the blocks that messages
    /// have returned.
    ///
    /// While messages hold all blocks, it waits for one in turn with the other tasks that
    /// [wait for the pool](BufferPool::take_when_free). Without a channel it waits until one has joined. `None` after
    /// the ends of all channels of a group that has [failed](AsyncGroup::failure): none can join any more.
    ///
    /// Dropping the future loses no message: the next call returns it.
    pub async fn next(&mut self) -> Option<Message> {
        let Self { shared, pool } = self;
        let mut free = None;
        poll_fn(|cx| Self::poll_next(shared, pool.as_ref(), &mut free, cx)).await
    }

    fn poll_next<'p>(
        shared: &SharedEngine,
        pool: Option<&'p BufferPool>,
        free: &mut Option<TakeWhenFree<'p>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Message>> {
        if shared.must_yield(cx) {
            return Poll::Pending;
        }
        loop {
            let (polled, needs_blocks) = shared.driver.poll_message(cx);
            if let Poll::Ready(message) = &polled {
                match message {
                    Some(_) => coop::count_ready(cx),
                    // The group may have failed in this poll: wakes what waits to connect.
                    None => shared.destroyed.wake(None),
                }
                return polled;
            }
            // No completion announces a block that is back.
            let Some(pool) = pool.filter(|_| needs_blocks) else {
                *free = None;
                return Poll::Pending;
            };
            let taken = free.get_or_insert_with(|| pool.take_when_free());
            let Poll::Ready(block) = Pin::new(taken).poll(cx) else {
                return Poll::Pending;
            };
            *free = None;
            let refill = |engine: &mut Engine| engine.refill_with(block);
            drop(shared.driver.with_engine(refill));
        }
    }
}

/// Is woken when a channel of the group is dropped that has not joined.
struct Dropped(Weak<SharedEngine>);

impl Wake for Dropped {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        shared.driver.with_engine(|engine| {
            engine.forget_dropped_members();
            // Its messages may have had all receives: then none comes, for which the task would be polled.
            engine.refill();
        });
    }
}

impl Drop for SharedMessages {
    fn drop(&mut self) {
        self.shared.driver.stop_messages();
    }
}

impl fmt::Debug for SharedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedMessages").field(&self.pool).finish()
    }
}
