//! The traits that others read and write with.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::ByteStream;

impl ByteStream {
    /// Reads what has arrived, until `take` takes no more.
    fn poll_read_with(
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
            self.consume(taken);
            read += taken;
        }
    }

    fn poll_write_slice(&mut self, cx: &Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |room| copy(from, room))
    }

    fn poll_write_slices(
        &mut self,
        cx: &Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if from.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |room| {
            let mut filled = 0;
            for slice in from {
                filled += copy(slice, room.get_mut(filled..).unwrap_or_default());
            }
            filled
        })
    }
}

/// Copies what fits; how much that is.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    len
}

impl futures_io::AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_read_vectored(cx, &mut [IoSliceMut::new(buf)])
    }

    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut bufs = bufs.iter_mut().filter(|buf| !buf.is_empty());
        let Some(buf) = bufs.next() else {
            return Poll::Ready(Ok(0));
        };
        let mut rest: &mut [u8] = buf;
        self.poll_read_with(cx, |unread| {
            if rest.is_empty()
                && let Some(buf) = bufs.next()
            {
                rest = buf;
            }
            let len = copy(unread, rest);
            rest = std::mem::take(&mut rest).get_mut(len..).unwrap_or_default();
            len
        })
    }
}

impl futures_io::AsyncBufRead for ByteStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        // At the end there is nothing unread.
        let _more = ready!(stream.poll_readable(cx))?;
        Poll::Ready(Ok(stream.unread()))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Self::consume(&mut self, amt);
    }
}

impl futures_io::AsyncWrite for ByteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slice(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, bufs)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_arrived(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for ByteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let read = self.poll_read_with(cx, |unread| {
            let len = unread.len().min(buf.remaining());
            buf.put_slice(unread.get(..len).unwrap_or_default());
            len
        });
        read.map_ok(|_| ())
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncBufRead for ByteStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        futures_io::AsyncBufRead::poll_fill_buf(self, cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Self::consume(&mut self, amt);
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncWrite for ByteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slice(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_arrived(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)
    }
}
