//! The I/O traits of futures-io.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::ByteStream;
use super::owned_half::{OwnedReadHalf, OwnedWriteHalf};

impl OwnedReadHalf {
    fn poll_read_slices(
        &mut self,
        cx: &Context<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut into = into.iter_mut().filter(|slice| !slice.is_empty());
        let Some(slice) = into.next() else {
            return Poll::Ready(Ok(0));
        };
        let mut rest: &mut [u8] = slice;
        self.poll_read_with(cx, |unread| {
            if rest.is_empty()
                && let Some(slice) = into.next()
            {
                rest = slice;
            }
            let len = copy(unread, rest);
            rest = std::mem::take(&mut rest).get_mut(len..).unwrap_or_default();
            len
        })
    }

    pub(super) fn poll_fill(&mut self, cx: &Context<'_>) -> Poll<io::Result<&[u8]>> {
        // At the end of the data `unread` is empty.
        let _more = ready!(self.poll_readable(cx))?;
        Poll::Ready(Ok(self.unread()))
    }
}

impl OwnedWriteHalf {
    pub(super) fn poll_write_slice(
        &self,
        cx: &Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |room| copy(from, room))
    }

    pub(super) fn poll_write_slices(
        &self,
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

/// Copies the bytes that fit, and returns their number.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    len
}

/// The methods of both traits for buffered reading.
macro_rules! buf_read_methods {
    ($($half:ident)?) => {
        fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
            self.get_mut().$($half.)?poll_fill(cx)
        }

        fn consume(self: Pin<&mut Self>, amt: usize) {
            self.get_mut().$($half.)?consume(amt, None);
        }
    };
}

/// The methods that both traits for writing have.
macro_rules! write_methods {
    ($($half:ident)?) => {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().$($half.)?poll_write_slice(cx, buf)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().$($half.)?poll_write_slices(cx, bufs)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.get_mut().$($half.)?poll_flush(cx)
        }
    };
}

/// Implements the reading traits for the reading half, or for what has it in this field.
macro_rules! reads {
    ($type:ty $(, $half:ident)?) => {
        impl futures_io::AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().$($half.)?poll_read_slices(cx, &mut [IoSliceMut::new(buf)])
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().$($half.)?poll_read_slices(cx, bufs)
            }
        }

        impl futures_io::AsyncBufRead for $type {
            buf_read_methods!($($half)?);
        }
    };
}

/// Implements the writing traits for the writing half, or for what has it in this field.
macro_rules! writes {
    ($type:ty $(, $half:ident)?) => {
        impl futures_io::AsyncWrite for $type {
            write_methods!($($half)?);

            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().$($half.)?poll_end(cx)
            }
        }
    };
}

reads!(ByteStream, read);
writes!(ByteStream, write);
reads!(OwnedReadHalf);
writes!(OwnedWriteHalf);
