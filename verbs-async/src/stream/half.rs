//! The halves of a stream: each for a task of its own.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::ByteStream;
use super::flow::{Segment, State};
use super::shared::Shared;
use super::tasks::Half;
use crate::coop;

/// The reading half of a [`ByteStream`], made by [`ByteStream::into_split`].
///
/// Dropping it while the other half lives discards what arrives from then on: the peer is not held
/// up, and learns at its shutdown that bytes were not read.
pub struct OwnedReadHalf {
    pub(super) side: ReadSide,
}

/// The writing half of a [`ByteStream`], made by [`ByteStream::into_split`].
///
/// Dropping it ends the data, as a shutdown does that is not waited for.
pub struct OwnedWriteHalf {
    pub(super) side: WriteSide,
}

/// That two halves are of different streams: both come back.
#[derive(Debug, thiserror::Error)]
#[error("the halves are of different streams")]
#[expect(clippy::exhaustive_structs, reason = "it is what was given")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

/// What reads.
pub(super) struct ReadSide {
    pub(super) shared: Arc<Shared>,
    /// What is being read, and how much of it has been.
    current: Option<Segment>,
    read: usize,
}

/// What writes.
pub(super) struct WriteSide {
    pub(super) shared: Arc<Shared>,
}

impl ByteStream {
    /// Splits it in two, for two tasks.
    ///
    /// Better than a split that others make, such as `tokio::io::split`: each half is polled without
    /// a lock of the other's, and is woken directly.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.read.shared.tasks.set_undivided(false);
        let (read, write) = (self.read, self.write);
        (OwnedReadHalf { side: read }, OwnedWriteHalf { side: write })
    }
}

impl OwnedReadHalf {
    /// The peer's address, as [`ByteStream::peer_addr`].
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.side.shared.peer_addr()
    }

    /// Puts both halves together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] if they are of different streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<ByteStream, ReuniteError> {
        if !Arc::ptr_eq(&self.side.shared, &other.side.shared) {
            return Err(ReuniteError(self, other));
        }
        self.side.shared.tasks.set_undivided(true);
        let (read, write) = (self.side, other.side);
        Ok(ByteStream { read, write })
    }
}

impl OwnedWriteHalf {
    /// The peer's address, as [`ByteStream::peer_addr`].
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.side.shared.peer_addr()
    }

    /// Puts both halves together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] if they are of different streams.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<ByteStream, ReuniteError> {
        other.reunite(self)
    }
}

impl ReadSide {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        let (current, read) = (None, 0);
        Self {
            shared,
            current,
            read,
        }
    }

    /// What can be read at once, without what comes in the next message.
    pub(super) fn unread(&self) -> &[u8] {
        let current = self.current.as_ref().map_or(&[][..], Segment::bytes);
        current.get(self.read..).unwrap_or_default()
    }

    /// Waits until there is something to read: `true`, or `false` at the end.
    pub(super) fn poll_readable(&mut self, cx: &Context<'_>) -> Poll<io::Result<bool>> {
        in_turn(cx, || {
            if !self.unread().is_empty() {
                return Poll::Ready(Ok(true));
            }
            let next = (self.shared).poll(Half::Read, cx, State::poll_next);
            self.current = ready!(next)?;
            self.read = 0;
            Poll::Ready(Ok(self.current.is_some()))
        })
    }

    /// So much has been read, by a task with this waker.
    pub(super) fn consume(&mut self, count: usize, waker: Option<&Waker>) {
        let left = self.unread().len();
        self.read += count.min(left);
        if count < left || left == 0 {
            return;
        }
        self.read = 0;
        let read = self.current.take();
        self.current = self.shared.next(read, waker);
    }

    /// Reads what has arrived, until `take` takes no more.
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

impl WriteSide {
    pub(super) fn poll_write_with(
        &self,
        cx: &Context<'_>,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        in_turn(cx, || {
            (self.shared).poll(Half::Write, cx, |state| state.poll_write(fill))
        })
    }

    pub(super) fn poll_flush(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        in_turn(cx, || {
            (self.shared).poll(Half::Write, cx, State::poll_flush)
        })
    }

    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        in_turn(cx, || (self.shared).poll(Half::Write, cx, State::poll_end))
    }
}

impl Drop for ReadSide {
    fn drop(&mut self) {
        let is_unread = !self.unread().is_empty();
        if let Some(current) = self.current.take() {
            self.shared.run(|state| state.give_back(current));
        }
        self.shared.let_go(Half::Read, is_unread);
    }
}

impl Drop for WriteSide {
    fn drop(&mut self) {
        self.shared.let_go(Half::Write, false);
    }
}

/// Polls, unless it is the turn of other tasks.
fn in_turn<T>(cx: &Context<'_>, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
    if coop::is_over(cx) {
        return Poll::Pending;
    }
    let polled = poll();
    if polled.is_ready() {
        coop::spend();
    }
    polled
}

impl fmt::Debug for OwnedReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedReadHalf")
            .field(&self.side.shared)
            .finish()
    }
}

impl fmt::Debug for OwnedWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedWriteHalf")
            .field(&self.side.shared)
            .finish()
    }
}
