//! The I/O traits of tokio.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::ByteStream;
use super::owned_half::{OwnedReadHalf, OwnedWriteHalf};

impl OwnedReadHalf {
    fn poll_read_buf(&mut self, cx: &Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let read = self.poll_read_with(cx, |unread| {
            let len = unread.len().min(into.remaining());
            into.put_slice(unread.get(..len).unwrap_or_default());
            len
        });
        read.map_ok(|_| ())
    }
}

/// Implements the reading traits for the reading half, or for what has it in this field.
macro_rules! reads {
    ($type:ty $(, $half:ident)?) => {
        impl tokio::io::AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.get_mut().$($half.)?poll_read_buf(cx, buf)
            }
        }

        impl tokio::io::AsyncBufRead for $type {
            buf_read_methods!($($half)?);
        }
    };
}

/// Implements the writing trait for the writing half, or for what has it in this field.
macro_rules! writes {
    ($type:ty $(, $half:ident)?) => {
        impl tokio::io::AsyncWrite for $type {
            write_methods!($($half)?);

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().$($half.)?poll_end(cx)
            }
        }
    };
}

reads!(ByteStream, read);
writes!(ByteStream, write);
reads!(OwnedReadHalf);
writes!(OwnedWriteHalf);
