//! The halves of a stream, for two tasks.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::ByteStream;
use super::half::Half;
use super::io_loop::{Segment, StreamState};
use super::state::SharedStream;
use crate::task::coop;

/// The reading half of a [`ByteStream`], created by [`ByteStream::into_split`].
///
/// If it is dropped before the other half, data that arrives later is discarded, so the peer can
/// continue to write. If bytes were discarded, the peer's shutdown fails with
/// [`StreamError::Reset`](super::StreamError::Reset).
pub struct OwnedReadHalf {
    pub(super) shared: Arc<SharedStream>,
    // The segment that is being read, and how many of its bytes have been read.
    current: Option<Segment>,
    read: usize,
}

/// The writing half of a [`ByteStream`], created by [`ByteStream::into_split`].
///
/// Dropping it ends the data as a shutdown does, but does not wait for the peer.
pub struct OwnedWriteHalf {
    pub(super) shared: Arc<SharedStream>,
}

/// The halves belong to different streams. Both are returned in it.
#[derive(Debug, thiserror::Error)]
#[error("the halves are of different streams")]
#[expect(clippy::exhaustive_structs, reason = "it only returns the arguments")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl ByteStream {
    /// Splits the stream into two halves, for two tasks.
    ///
    /// This is better than a generic split such as `tokio::io::split`: each half is polled without
    /// a lock around the stream, and its task is woken directly.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.read.shared.tasks.set_undivided(false);
        (self.read, self.write)
    }
}

impl OwnedReadHalf {
    /// The peer's address: see [`ByteStream::peer_addr`].
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared.peer_addr()
    }

    /// Joins both halves into the stream again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] if they belong to different streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<ByteStream, ReuniteError> {
        if !Arc::ptr_eq(&self.shared, &other.shared) {
            return Err(ReuniteError(self, other));
        }
        self.shared.tasks.set_undivided(true);
        let (read, write) = (self, other);
        Ok(ByteStream { read, write })
    }
}

impl OwnedWriteHalf {
    /// The peer's address: see [`ByteStream::peer_addr`].
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared.peer_addr()
    }

    /// Joins both halves into the stream again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] if they belong to different streams.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<ByteStream, ReuniteError> {
        other.reunite(self)
    }
}

impl OwnedReadHalf {
    pub(super) const fn new(shared: Arc<SharedStream>) -> Self {
        let (current, read) = (None, 0);
        Self {
            shared,
            current,
            read,
        }
    }

    /// The bytes that can be read at once: those left in the current segment.
    pub(super) fn unread(&self) -> &[u8] {
        let current = self.current.as_ref().map_or(&[][..], Segment::bytes);
        current.get(self.read..).unwrap_or_default()
    }

    /// Waits until there is something to read. `false` at the end of the data.
    pub(super) fn poll_readable(&mut self, cx: &Context<'_>) -> Poll<io::Result<bool>> {
        coop::poll(self.shared.must_yield(cx), cx, || {
            if !self.unread().is_empty() {
                return Poll::Ready(Ok(true));
            }
            let next = (self.shared).poll(Half::Read, cx, StreamState::poll_next);
            self.current = ready!(next)?;
            self.read = 0;
            Poll::Ready(Ok(self.current.is_some()))
        })
    }

    /// Records that `count` bytes were read, by a task with this waker.
    pub(super) fn consume(&mut self, count: usize, waker: Option<&Waker>) {
        let left = self.unread().len();
        self.read += count.min(left);
        if count < left || left == 0 {
            return;
        }
        self.read = 0;
        let read = self.current.take();
        self.current = self.shared.next_segment(read, waker);
    }

    /// Reads the bytes that have arrived, until `take` takes no more.
    pub(super) fn poll_read_with(
        &mut self,
        cx: &Context<'_>,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        if !ready!(self.poll_readable(cx))? {
            return Poll::Ready(Ok(0));
        }
        let mut read = 0;
        loop {
            let taken = take(self.unread());
            if taken == 0 {
                return Poll::Ready(Ok(read));
            }
            self.consume(taken, Some(cx.waker()));
            read += taken;
        }
    }
}

impl OwnedWriteHalf {
    pub(super) fn poll_write_with(
        &self,
        cx: &Context<'_>,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        coop::poll(self.shared.must_yield(cx), cx, || {
            (self.shared).poll(Half::Write, cx, |state| state.poll_write(fill))
        })
    }

    pub(super) fn poll_flush(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        coop::poll(self.shared.must_yield(cx), cx, || {
            (self.shared).poll(Half::Write, cx, StreamState::poll_flush)
        })
    }

    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        coop::poll(self.shared.must_yield(cx), cx, || {
            (self.shared).poll(Half::Write, cx, StreamState::poll_end)
        })
    }
}

impl Drop for OwnedReadHalf {
    fn drop(&mut self) {
        if self.shared.is_in_child() {
            return;
        }
        let is_unread = !self.unread().is_empty();
        if let Some(current) = self.current.take() {
            self.shared.run(|state| state.recycle(current));
        }
        self.shared.drop_half(Half::Read, is_unread);
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shared.is_in_child() {
            return;
        }
        self.shared.drop_half(Half::Write, false);
    }
}

impl fmt::Debug for OwnedReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedReadHalf").field(&self.shared).finish()
    }
}

impl fmt::Debug for OwnedWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedWriteHalf").field(&self.shared).finish()
    }
}
