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
use verbs_channel::OwnedBuffer;
use verbs_channel::verbs_core::{WcOpcode, WorkSuccess};

use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::operation::Operation;
use crate::sync::Mutex;

/// The messages that come in on a channel, in the order of their arrival.
///
/// Made by [`AsyncChannel::incoming`]. A window of receives is posted: as many messages as that can
/// come before anybody asks for them. The buffer of each is posted again when its [`Message`] is
/// dropped. To stop asking loses nothing, so [`next`](Self::next) can be cancelled: what comes is
/// there the next time.
///
/// It ends after the first failure, as a channel does. Dropping it abandons the receives: messages
/// that come in them are lost.
///
/// # Examples
///
/// ```no_run
/// # async fn example(channel: verbs_async::AsyncChannel) -> verbs_async::Result<()> {
/// use std::sync::Arc;
/// use verbs_async::verbs_channel::BufferPool;
///
/// let pool = BufferPool::new(channel.pd(), 4096, 16)?;
/// let channel = Arc::new(channel);
/// let mut incoming = channel.incoming(std::iter::from_fn(|| pool.take()));
/// while let Some(message) = incoming.next().await {
///     let message = message?;
///     println!("{} bytes, immediate {:?}", message.len(), message.success().imm_data());
/// }
/// # Ok(())
/// # }
/// ```
pub struct IncomingMessages {
    window: Arc<Window>,
    // The first of those that are posted, while it is waited for.
    first: Option<Operation>,
    ended: bool,
}

/// A message that came in: its bytes, as a slice. When it is dropped its buffer is posted again.
pub struct Message {
    window: Arc<Window>,
    success: WorkSuccess,
    buffer: OwnedBuffer,
}

struct Window {
    channel: Arc<AsyncChannel>,
    state: Mutex<State>,
}

struct State {
    // In the order in which they were posted, so in which they are done.
    posted: VecDeque<Operation>,
    // To be posted.
    back: Vec<OwnedBuffer>,
    // Somebody posts: one at a time, since the order matters, and with nothing locked.
    posting: bool,
    // Nothing is to be posted any more.
    closed: bool,
    // Waits until something is posted.
    waiting: Option<Waker>,
}

impl AsyncChannel {
    /// Posts a receive into all of each of these buffers; the messages that come in them.
    ///
    /// Nobody else may receive on the channel meanwhile: messages would be missing here. More
    /// buffers than the channel's `max_recv_wr` wait in line.
    ///
    /// The channel lives as long as they do: to [`close`](Self::close) it, drop them first and take
    /// it out of its `Arc`. [`shut_down`](Self::shut_down) ends them.
    pub fn incoming<B: Into<OwnedBuffer>>(
        self: &Arc<Self>,
        buffers: impl IntoIterator<Item = B>,
    ) -> IncomingMessages {
        let back: Vec<_> = buffers.into_iter().map(Into::into).collect();
        let ended = back.is_empty();
        let state = State {
            posted: VecDeque::with_capacity(back.len()),
            back,
            posting: false,
            closed: false,
            waiting: None,
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

impl IncomingMessages {
    /// The next message; `None` after a failure. Without buffers there is none.
    ///
    /// While all messages are kept, it waits until one is dropped.
    ///
    /// # Errors
    ///
    /// Those of the receive: the message was longer than its buffer, the peer is gone, the channel
    /// is down. No message comes after that.
    pub async fn next(&mut self) -> Option<Result<Message>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
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
            let len = usize::try_from(success.byte_len()).unwrap_or(usize::MAX);
            // A write with an immediate has a length, and none of its bytes here.
            let len = if success.opcode() == WcOpcode::RECV {
                len
            } else {
                0
            };
            buffer.set_range(..len)?;
            Ok(Message {
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

impl Message {
    /// What its completion says: the immediate, and whether it is a message or the notice of a
    /// write.
    #[must_use]
    pub const fn success(&self) -> &WorkSuccess {
        &self.success
    }

    /// Takes the message's buffer away; another is posted in its place. Its range is the message.
    #[must_use]
    pub fn replace(mut self, with: impl Into<OwnedBuffer>) -> OwnedBuffer {
        mem::replace(&mut self.buffer, with.into())
    }
}

impl Window {
    /// Posts what has come back.
    fn post(&self) {
        loop {
            let mut state = self.state.lock();
            if state.posting {
                return;
            }
            if state.closed {
                let dropped = (mem::take(&mut state.posted), mem::take(&mut state.back));
                drop(state);
                drop(dropped);
                return;
            }
            let Some(mut buffer) = state.back.pop() else {
                return;
            };
            state.posting = true;
            drop(state);
            // All of a buffer is always in it.
            drop(buffer.set_range(..));
            let receive = self.channel.receive_unbounded(buffer);
            let mut state = self.state.lock();
            state.posting = false;
            state.posted.push_back(receive);
            let waiting = state.waiting.take();
            drop(state);
            crate::wake::wake_all(waiting);
        }
    }

    /// Takes the first that is posted; without one, the waker is woken when there is.
    fn take_first(&self, waker: &Waker) -> Option<Operation> {
        let waker = waker.clone();
        let mut state = self.state.lock();
        let first = state.posted.pop_front();
        let replaced = match first {
            Some(_) => Some(waker),
            None => state.waiting.replace(waker),
        };
        drop(state);
        crate::wake::drop_guarded(replaced);
        first
    }

    /// Posts nothing any more, and abandons what is.
    fn close(&self) {
        self.state.lock().closed = true;
        self.post();
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let buffer = mem::take(&mut self.buffer);
        self.window.state.lock().back.push(buffer);
        self.window.post();
    }
}

impl Stream for IncomingMessages {
    type Item = Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(&mut self, cx)
    }
}

impl Drop for IncomingMessages {
    fn drop(&mut self) {
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

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Message").field(&self.success).finish()
    }
}
