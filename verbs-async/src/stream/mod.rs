//! Byte streams: a channel that is read and written as a TCP connection is.
//!
//! # The protocol
//!
//! A side has `depth + 1` blocks to send from, and posts `depth + 4` receives, all before it sends
//! anything. The immediate of each message says what it is; see `wire.rs` for the bits.
//!
//! ```text
//! HELLO     magic, version, block length, depth   the first message of each side
//! DATA      at most as many bytes as the shorter block
//! CREDIT    nothing                               when no data goes that way
//! FIN       nothing                               after the last data
//! FIN_SEEN  nothing                               answers a FIN: all before it was, or can be, read
//! FIN_LOST  nothing                               answers a FIN: some of it was not read, nor will be
//! CLOSE     nothing                               the stream was dropped, and all that came was read
//! RESET     nothing                               the stream was dropped, and not all of it was
//! ```
//!
//! **Credits.** A DATA message costs a credit, which is one posted receive of the peer's. A side
//! begins with as many as the peer's HELLO announces, and gets one back for each DATA message whose
//! block is posted again. What is to be given back goes with whatever is sent next, and in a CREDIT
//! once it is half of the depth.
//!
//! **Small messages.** A block is posted again when its message has been read. If more than half of
//! the depth are held by the reader, a message of at most half a block is copied into memory of its
//! own, and its block posted again at once. There is room for a quarter of `depth * block_len` bytes
//! of them. So the window is counted in bytes: if messages are short it holds that quarter (72 KiB as
//! [`AsyncChannel::into_stream`] makes it), however short; if they are long it holds half of the
//! depth times half a block, or more.
//!
//! **Joining.** What is written is sent at once if fewer than 4 DATA messages are in flight. Else, or
//! without a credit, it is joined with what is written next, in the blocks to send from. It is sent
//! when the block is full, when less is in flight, or when the task flushes.
//!
//! **A message always finds a receive.** HELLO, CREDIT, FIN, its answer, CLOSE and RESET cost no
//! credit: four receives are kept for them. Of CLOSE and RESET there is one, and nothing after it. FIN
//! and its answer are sent once. A HELLO or CREDIT is sent only when the peer has confirmed the one
//! before, by a bit of whatever it sends after it has received that.
//!
//! **Neither side waits forever.** Let A wait for a credit, while B's reader holds at most half of
//! the depth: it has read the rest, or copied it. Then B has at least half of the depth to give
//! back. If B may send a CREDIT, it does. If not, its last HELLO or CREDIT is unconfirmed. Either that
//! is on its way, and brings A a credit. Or A has received it, got at least one credit by it, and used
//! that up, as it waits: so A has sent DATA since, which confirms it, and B will receive that, since a
//! message always finds a receive. B does all this whenever a message arrives, even if none of its
//! tasks polls the stream: then the keeper (`keeper.rs`) drives it, milliseconds later. So A waits
//! only while B's reader holds more than half of the depth, which is a full window: as with TCP, it
//! waits for B to read.
//!
//! What a flush waits for is that data arrives, for which that holds. What a shutdown waits for is
//! that, and the answer to its FIN, which costs no credit.
//!
//! **The end.** A stream that was dropped sends what was written, as credits come, and then CLOSE, or
//! RESET if something was not read. When that has arrived it is destroyed. CLOSE gives back all
//! credits of what was read, so the peer knows whether it sent anything that was not.

mod error;
mod flow;
mod half;
mod io;
mod keeper;
mod machine;
mod protocol;
mod shared;
mod tasks;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use verbs_channel::verbs_core::Error as CoreError;
use verbs_channel::{BufferPool, OwnedBuffer, Queue};

use crate::channel::AsyncChannel;
use crate::error::Result;
pub use error::StreamError;
pub use half::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
use half::{ReadSide, WriteSide};
use shared::Shared;
use wire::{HELLO_LEN, Settings};

/// Bytes in a block, unless set.
const BLOCK_LEN: usize = 16 << 10;
/// DATA messages in flight or unread, unless set.
const DEPTH: u16 = 16;
/// Receives beside those for DATA: for HELLO or CREDIT, FIN, its answer, and CLOSE or RESET.
const SPARE: u16 = 4;

/// A channel as a stream of bytes: what reads and writes TCP reads and writes this.
///
/// Made by [`AsyncChannel::into_stream`], at both ends of the channel. It implements [`AsyncRead`],
/// [`AsyncWrite`] and [`AsyncBufRead`] of futures-io, and tokio's with feature `tokio`. One task can
/// read while another writes, by [`into_split`](Self::into_split).
///
/// - **Writing** copies into a registered block. A lone write is sent at once; small ones that follow
///   while it is in flight are joined. It waits while all blocks are full, which is when the peer's
///   reader is behind: as [`into_stream`](AsyncChannel::into_stream) makes it, at least 64 KiB can be
///   written, in writes of any size, before anybody has to read.
/// - **Flushing** waits until all that was written has arrived in the peer's memory. Its reader may
///   not have seen it. If more was written than the peer has room for, it waits for its reader.
/// - **Shutting down** (or closing) ends the data, and waits until the peer's stream has confirmed
///   that. `Ok` means that every byte written has been read, or can be, followed by the end; the peer
///   had not dropped its reading half before the end arrived there. If it had, and had not read
///   everything, that is [`StreamError::Reset`]. The other direction goes on. The peer's task need not
///   poll its stream for this, but what runs its notifier has to run.
/// - **Dropping** it does not wait. As with TCP, what was written is still sent, and then the end. If
///   the peer had sent something that was not read, or does so afterwards, the peer gets
///   [`StreamError::Reset`] after what was written. In no case does it read an end before the last
///   byte that was written. This is done in the background, in this process: one that is to end
///   awaits a shutdown before.
///
/// What was dropped keeps its channel, and its place in the group, until it has sent what it has to,
/// but no longer than [`set_linger`](Self::set_linger) allows. [`abort`](Self::abort) waits for
/// nothing.
///
/// Of a peer that has dropped its stream, what it had written can be read, and then the end or
/// [`StreamError::Reset`]. Writing to it fails.
///
/// A failure of the transport is an error of what is written or flushed next, and of reads after
/// all that has arrived. A peer that dies is noticed if the channel
/// [watches its peer](AsyncChannel::watch_peer), as one that was connected over TCP does: an
/// [`io::ErrorKind::ConnectionReset`](std::io::ErrorKind::ConnectionReset) if its process has ended,
/// an [`io::ErrorKind::TimedOut`](std::io::ErrorKind::TimedOut) if its host does not answer.
///
/// Its memory is `2 * depth + 5` blocks, registered when it is made, and a quarter of `depth` blocks
/// for small messages; nothing is allocated later.
///
/// [`AsyncRead`]: futures_io::AsyncRead
/// [`AsyncWrite`]: futures_io::AsyncWrite
/// [`AsyncBufRead`]: futures_io::AsyncBufRead
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn example(group: verbs_async::AsyncGroup) -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
///
/// let (channel, _) = group.connect_tokio("server:7471", b"").await?;
/// let mut stream = channel.into_stream()?;
/// stream.write_all(b"how are you?\n").await?;
/// stream.shutdown().await?;
/// let mut answers = BufReader::new(stream).lines();
/// while let Some(answer) = answers.next_line().await? {
///     println!("{answer}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct ByteStream {
    // Its halves are dropped in this order.
    read: ReadSide,
    write: WriteSide,
}

impl AsyncChannel {
    /// Makes it a stream of bytes, with 16 blocks of 16 KiB each way. The peer does the same.
    ///
    /// At least 64 KiB of small writes are accepted before anybody has to read.
    ///
    /// # Errors
    ///
    /// As [`into_stream_with`](Self::into_stream_with).
    pub fn into_stream(self) -> Result<ByteStream> {
        self.into_stream_with(BLOCK_LEN, DEPTH)
    }

    /// Makes it a stream of bytes, with `depth` blocks of `block_len` bytes each way. The peer's may
    /// be others: a message is as long as the shorter block at most, and as many are in flight as
    /// the sender has blocks and the receiver has room for.
    ///
    /// Nothing else may have been begun on the channel, by either side.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](CoreError::OutOfRange) for blocks below 20 bytes or longer than the port's
    /// longest message, and for a depth of 0 or one whose `depth + 4` receives exceed the channel's
    /// `max_recv_wr`; those of [`BufferPool::new`]. The channel is closed then.
    pub fn into_stream_with(self, block_len: usize, depth: u16) -> Result<ByteStream> {
        let context = self.pd().context();
        let max_len = match self.endpoint() {
            Some(endpoint) => context.query_port(endpoint.port_num())?.max_msg_sz(),
            None => u32::MAX,
        };
        let block_len = in_range("block_len", block_len as u64, HELLO_LEN as u64, max_len)?;
        let receives = self.credits(Queue::Receive).saturating_sub(SPARE.into());
        let depth = in_range("depth", depth.into(), 1, receives)?;
        let depth = u16::try_from(depth).unwrap_or(u16::MAX);
        ByteStream::new(self.unbounded(), Settings { block_len, depth })
    }
}

impl ByteStream {
    fn new(channel: AsyncChannel, ours: Settings) -> Result<Self> {
        let block_len = usize::try_from(ours.block_len).unwrap_or(usize::MAX);
        // To send from, for the HELLO, and to receive into.
        let count = 2 * usize::from(ours.depth) + usize::from(SPARE) + 1;
        let pool = BufferPool::new(channel.pd(), block_len, count)?;
        let blocks = std::iter::from_fn(|| pool.take()).map(OwnedBuffer::from);
        let shared = Shared::new(channel, ours, blocks.collect());
        Ok(Self {
            read: ReadSide::new(Arc::clone(&shared)),
            write: WriteSide { shared },
        })
    }

    /// Ends it at once: what was written and has not arrived is lost, and the place in the group is
    /// free when this returns.
    ///
    /// The peer gets [`StreamError::Reset`] if that can be had without waiting; else it notices as it
    /// would if this process had died.
    pub fn abort(self) {
        self.write.shared.abort();
    }

    /// Lets it linger so long when it is dropped, at most; 10 seconds unless set.
    ///
    /// What was written and has not arrived by then is lost, and the peer reads an error. With zero,
    /// dropping it is an [`abort`](Self::abort).
    pub fn set_linger(&self, linger: Duration) {
        self.write.shared.run(|state| state.linger = linger);
    }

    /// The peer's address, if the channel was connected over TCP. It stays when the stream is down.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.write.shared.peer_addr()
    }

    /// Whether nothing can be written any more: the transport has failed, or the peer has dropped
    /// its stream. What has arrived can still be read.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.write.shared.is_down()
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByteStream")
            .field(&self.write.shared)
            .finish()
    }
}

fn in_range(what: &'static str, value: u64, min: u64, max: u32) -> Result<u32> {
    let max = u64::from(max);
    match u32::try_from(value) {
        Ok(fits) if (min..=max).contains(&value) => Ok(fits),
        _ => Err(CoreError::OutOfRange {
            what,
            value,
            min,
            max,
        }
        .into()),
    }
}
