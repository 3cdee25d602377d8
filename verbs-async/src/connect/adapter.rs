//! An adapter from the I/O traits of tokio to those of futures-io.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

/// A stream with tokio's traits, as one with those of futures-io.
pub(super) struct Tokio<S>(pub(super) S);

impl<S: AsFd> AsFd for Tokio<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<S: tokio::io::AsyncRead + Unpin> AsyncRead for Tokio<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = tokio::io::ReadBuf::new(buffer);
        let read = Pin::new(&mut self.0).poll_read(cx, &mut buffer);
        read.map_ok(|()| buffer.filled().len())
    }
}

impl<S: tokio::io::AsyncWrite + Unpin> AsyncWrite for Tokio<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
