//! A stream that fails when nothing moves for too long.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose reads and writes fail when there is no progress for this time.
pub(crate) struct Patient<S> {
    stream: S,
    limit: Duration,
    over: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            over: Box::pin(sleep(limit)),
            waiting: false,
        }
    }

    /// Checks the timer if there is no progress.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.waiting = false;
            return moved;
        }
        if !self.waiting {
            self.waiting = true;
            self.over.as_mut().reset(Instant::now() + self.limit);
        }
        self.over.as_mut().poll(cx).map(|()| {
            let limit = self.limit.as_secs();
            let words =
                format!("nothing came from the peer for {limit} s (--timeout waits longer)");
            Err(io::Error::new(io::ErrorKind::TimedOut, words))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.judge(cx, moved)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, moved)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, moved)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, moved)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, moved)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_given_up_and_a_slow_one_is_not() {
        let limit = Duration::from_secs(30);
        let (here, mut there) = tokio::io::duplex(8);
        let mut here = Patient::new(here, limit);
        for _ in 0..3 {
            let slow = async {
                sleep(limit - Duration::from_secs(1)).await;
                there.write_all(b"x").await.unwrap();
            };
            let (read, ()) = tokio::join!(here.read_u8(), slow);
            assert_eq!(read.unwrap(), b'x');
        }
        let error = here.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = here.write_all(&[0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
