//! Incoming messages: a window of receives that stays posted.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future as _, poll_fn};
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{OwnedBuffer, TransportError};

use super::AsyncChannel;
use super::operation::Operation;
use crate::task::sync::Mutex;

/// The messages that arrive on a channel, in the order of their arrival.
///
/// Created by [`AsyncChannel::incoming`]. One receive is posted per buffer, so one message per
/// buffer can arrive before a task asks for it. The buffer of an [`IncomingMessage`] is posted again when
/// the message is dropped. [`next`](Self::next) can be cancelled: the next call returns a message
/// that arrives meanwhile.
///
/// The messages end with the first failure, which takes the channel down. Dropping this value
/// abandons the receives: messages that they receive are lost.
///
/// # Examples
///
/// ```no_run
/// # async fn example(channel: verbs_async::AsyncChannel) -> verbs_async::Result<()> {
/// use verbs_async::verbs_channel::{BufferPool, DownReason};
///
/// // It takes all blocks: to send, use another pool.
/// let pool = BufferPool::new(channel.pd(), 4096, 16)?;
/// let mut incoming = channel.into_incoming(std::iter::from_fn(|| pool.take()));
/// while let Some(message) = incoming.next().await {
///     match message {
///         Ok(message) => println!("{} bytes", message.len()),
///         Err(error) if error.down_reason().is_some_and(DownReason::is_peer_closed) => break,
///         Err(error) => return Err(error.into()),
///     }
/// }
/// incoming.channel().close().await?;
/// # Ok(())
/// # }
/// ```
pub struct IncomingMessages {
    window: Arc<Window>,
    // The oldest posted receive, while it is awaited.
    first: Option<Operation>,
    ended: bool,
}

/// A received message: its bytes, as a slice. When it is dropped, its buffer is posted again.
pub struct IncomingMessage {
    window: Arc<Window>,
    success: WorkSuccess,
    buffer: OwnedBuffer,
}

struct Window {
    channel: Arc<AsyncChannel>,
    state: Mutex<ReceiveState>,
}

struct ReceiveState {
    // In the order in which they were posted, which is that of their completions.
    posted: VecDeque<Operation>,
    // To be posted again.
    unposted: Vec<OwnedBuffer>,
    // A thread posts: one at a time, since the order matters, and without the lock.
    posting: bool,
    // No more receives are posted.
    closed: bool,
    // Woken when a receive is posted.
    waiter: Option<Waker>,
}

impl AsyncChannel {
    /// Posts a receive into each of these buffers, using the whole buffer, and returns the
    /// messages that arrive in them.
    ///
    /// Don't call [`receive`](Self::receive) meanwhile: its messages would be missing here. If there
    /// are more buffers than the channel's `max_recv_wr`, the rest wait in the backlog.
    ///
    /// The [prepared receives](Self::prepared_receives), which were posted when the channel joined, come
    /// first: their messages arrive before the others, and their buffers are posted again, too. So a peer
    /// may send at once, and `buffers` may be empty.
    ///
    /// The [`IncomingMessages`] keep the channel alive. They end when the channel is
    /// [closed](Self::close) or [aborted](Self::abort).
    pub fn incoming<B: Into<OwnedBuffer>>(
        self: &Arc<Self>,
        buffers: impl IntoIterator<Item = B>,
    ) -> IncomingMessages {
        let unposted: Vec<_> = buffers.into_iter().map(Into::into).collect();
        let mut posted = VecDeque::from(self.prepared_receives());
        posted.reserve(unposted.len());
        let ended = unposted.is_empty() && posted.is_empty();
        let state = ReceiveState {
            posted,
            unposted,
            posting: false,
            closed: false,
            waiter: None,
        };
        let window = Arc::new(Window {
            channel: Arc::clone(self),
            state: Mutex::new(state),
        });
        window.post();
        let first = None;
        IncomingMessages {
            window,
            first,
            ended,
        }
    }
}

impl AsyncChannel {
    /// Like [`incoming`](Self::incoming), but takes the channel, which is then available as
    /// [`IncomingMessages::channel`].
    pub fn into_incoming<B: Into<OwnedBuffer>>(
        self,
        buffers: impl IntoIterator<Item = B>,
    ) -> IncomingMessages {
        Arc::new(self).incoming(buffers)
    }
}

impl IncomingMessages {
    /// The channel on which they arrive.
    #[must_use]
    pub fn channel(&self) -> &Arc<AsyncChannel> {
        &self.window.channel
    }

    /// Waits for the next message. `None` after a failure, and if there are no buffers.
    ///
    /// If the peer closes the channel cleanly, the messages also end with an error: after the last
    /// message, one whose [`down_reason`](TransportError::down_reason)
    /// [`is_peer_closed`](verbs_channel::DownReason::is_peer_closed).
    ///
    /// While all buffers are held by messages, it waits until one of them is dropped.
    ///
    /// # Errors
    ///
    /// Those of the receive: the message was longer than its buffer, the peer is gone, or the
    /// channel is down. No message comes after that.
    pub async fn next(&mut self) -> Option<Result<IncomingMessage, TransportError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<IncomingMessage, TransportError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.first.is_none() {
            self.first = self.window.take_first(cx.waker());
        }
        let Some(first) = &mut self.first else {
            return Poll::Pending;
        };
        let Poll::Ready((result, mut buffer)) = Pin::new(first).poll(cx) else {
            return Poll::Pending;
        };
        self.first = None;
        let message = result.and_then(|success| {
            // No driver that can be relied on reports one that is longer than its buffer.
            TransportError::check_message(&success, &buffer)
                .inspect_err(|_| self.channel().abort())?;
            // The bytes of a write with immediate are not in this buffer.
            let len = success.message_in(&buffer).map_or(0, <[u8]>::len);
            let _is_within = buffer.set_range(..len);
            Ok(IncomingMessage {
                window: Arc::clone(&self.window),
                success,
                buffer,
            })
        });
        if message.is_err() {
            self.ended = true;
            self.window.close();
        }
        Poll::Ready(Some(message))
    }
}

impl IncomingMessage {
    /// The completion of the receive: the immediate data, and whether it is a message or the
    /// notification of a write with immediate.
    #[must_use]
    pub const fn success(&self) -> &WorkSuccess {
        &self.success
    }

    /// Takes the buffer out of the message, and posts `with` instead. The returned buffer's range
    /// is the message.
    #[must_use]
    pub fn replace(mut self, with: impl Into<OwnedBuffer>) -> OwnedBuffer {
        mem::replace(&mut self.buffer, with.into())
    }
}

impl Window {
    /// Posts the buffers that have come back.
    fn post(&self) {
        loop {
            let mut state = self.state.lock();
            if state.posting {
                return;
            }
            if state.closed {
                let dropped = (mem::take(&mut state.posted), mem::take(&mut state.unposted));
                drop(state);
                drop(dropped);
                return;
            }
            let Some(mut buffer) = state.unposted.pop() else {
                return;
            };
            state.posting = true;
            drop(state);
            // The full range always fits.
            drop(buffer.set_range(..));
            let receive = self.channel.receive_unbounded(buffer);
            let mut state = self.state.lock();
            state.posting = false;
            state.posted.push_back(receive);
            let waiter = state.waiter.take();
            drop(state);
            crate::task::wake::wake_all(waiter);
        }
    }

    /// Takes the oldest posted receive. If there is none, the waker is woken when there is one.
    fn take_first(&self, waker: &Waker) -> Option<Operation> {
        let waker = waker.clone();
        let mut state = self.state.lock();
        let first = state.posted.pop_front();
        let replaced = match first {
            Some(_) => Some(waker),
            None => state.waiter.replace(waker),
        };
        drop(state);
        crate::task::wake::drop_guarded(replaced);
        first
    }

    /// Posts no more receives, and abandons those that are posted.
    fn close(&self) {
        self.state.lock().closed = true;
        self.post();
    }
}

impl Deref for IncomingMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for IncomingMessage {
    fn drop(&mut self) {
        if self.window.channel.driver().is_in_child() {
            return;
        }
        let buffer = mem::take(&mut self.buffer);
        self.window.state.lock().unposted.push(buffer);
        self.window.post();
    }
}

impl Stream for IncomingMessages {
    type Item = Result<IncomingMessage, TransportError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(&mut self, cx)
    }
}

impl Drop for IncomingMessages {
    fn drop(&mut self) {
        if self.window.channel.driver().is_in_child() {
            return;
        }
        self.window.close();
    }
}

impl fmt::Debug for IncomingMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IncomingMessages")
            .field(&self.window.channel)
            .finish()
    }
}

impl fmt::Debug for IncomingMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IncomingMessage")
            .field(&self.success)
            .finish()
    }
}
