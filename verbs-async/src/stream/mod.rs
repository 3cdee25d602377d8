//! Byte streams: channels with the behaviour of a TCP connection.
//!
//! # The protocol
//!
//! A side has `depth + 1` blocks to send from. It posts `depth + 4` receives before it sends
//! anything. The immediate of each message has its kind: see `wire.rs` for the bits.
//!
//! ```text
//! HELLO     the first message of each side: magic, version, block length, depth
//! DATA      bytes of the stream, at most the length of the shorter block
//! CREDIT    sent when no data goes that way
//! FIN       after the last data
//! FIN_SEEN  answers a FIN: everything before it was read, or can be
//! FIN_LOST  answers a FIN: some bytes before it were not read, and will not be
//! CLOSE     the stream was dropped after everything was read
//! RESET     the stream was dropped before that, or aborted
//! ```
//!
//! Only HELLO and DATA have a payload.
//!
//! **Credits.** A DATA message costs a credit, which stands for one posted receive of the peer. A
//! side starts with the depth in the peer's HELLO. It gets one back for each DATA message whose
//! block is posted again. Credits are returned with the next message of any kind. When half of the
//! depth is owed, a CREDIT returns them.
//!
//! **Small messages.** A block is posted again when its message has been read. If the reader holds
//! more than half of the depth, a message of at most half a block is copied into separate memory,
//! and its block is posted again at once. This memory has room for a quarter of `depth * block_len`
//! bytes. So the window is counted in bytes. With short messages it holds that quarter (72 KiB as
//! [`AsyncChannel::into_stream`] creates it), however short they are. With long messages it holds
//! at least half of the depth times half a block.
//!
//! **Joining.** A write is sent at once if fewer than 4 DATA messages are in flight and there is a
//! credit. Otherwise it is joined with the following writes, in the blocks to send from. A block is
//! sent when it is full, when fewer messages are in flight, or when the task flushes.
//!
//! **A message always finds a receive.** HELLO, CREDIT, FIN, its answer, CLOSE and RESET cost no
//! credit: four receives are reserved for them. There is one CLOSE or RESET, and it is the last
//! message. FIN and its answer are sent once. A HELLO or CREDIT is sent only after the peer has
//! confirmed the one before, by a bit of any message that it sends after receiving it.
//!
//! **Neither side waits forever.** Let A wait for a credit, while B's reader holds at most half of
//! the depth: it has read the rest, or it was copied. Then B owes at least half of the depth. If B
//! may send a CREDIT, it does. If not, its last HELLO or CREDIT is unconfirmed. Either that message
//! is on its way, and brings A a credit. Or A has received it, got at least one credit, and has
//! used it, as A waits. So A has sent DATA since, which confirms the message. B will receive that
//! DATA, as a message always finds a receive. B does all this whenever a message arrives, even if
//! none of its tasks polls the stream: then a helper thread drives it,
//! milliseconds later. So A waits only while B's reader holds more than half of the depth, which is
//! a full window: as with TCP, A waits for B to read.
//!
//! A flush waits for data to arrive, so the same holds. A shutdown waits for that, and for the
//! answer to its FIN, which costs no credit.
//!
//! **The end.** A stream that was dropped sends what was written, as credits come. Then it sends a
//! CLOSE, or a RESET if something was not read. When that has arrived, the stream is destroyed.
//! CLOSE returns all credits of what was read, so the peer can determine whether it sent anything that
//! was not.
// tidy: allow(circle): a stream is split into its halves, and made of them again

mod error;
mod half;
mod io_loop;
mod machine;
mod owned_half;
mod protocol;
mod state;
mod tasks;
#[cfg(test)]
mod tests;
mod wire;

// Its macros are those of the next module, too.
#[macro_use]
mod traits;
#[cfg(feature = "tokio")]
mod tokio_traits;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::Error as CoreError;
use verbs_channel::verbs_core::device::TransportType;
use verbs_channel::{BufferPool, OwnedBuffer};

use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
pub use error::StreamError;
pub use owned_half::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
use state::SharedStream;
use wire::{HELLO_LEN, SPARE, Settings};

/// The default length of a block in bytes.
const BLOCK_LEN: usize = 16 << 10;
/// The default number of DATA messages that can be in flight or unread.
const DEPTH: u16 = 16;

/// A channel as a stream of bytes, with the behaviour of a TCP connection.
///
/// Created by [`AsyncChannel::into_stream`], on both sides of the channel. It implements
/// [`AsyncRead`], [`AsyncWrite`] and [`AsyncBufRead`] of futures-io, and those of tokio with the
/// feature `tokio`. One task can read while another writes: see [`into_split`](Self::into_split).
///
/// - **Writing** copies into a registered block. A write is sent at once if no message is in
///   flight; otherwise small writes are joined. If all blocks are full because the peer reads too
///   slowly, a write waits. A stream from [`into_stream`](AsyncChannel::into_stream) accepts at
///   least 64 KiB, in writes of any size, before the peer has to read.
/// - **Flushing** waits until everything written has arrived in the peer's memory, whether or not
///   the peer has read it. If more was written than the peer has room for, the peer has to read
///   first.
/// - **Shutting down** (or closing) ends the data, and waits until the peer's stream has confirmed
///   the end. `Ok` means that the peer has read every byte and the end, or still can. If the peer
///   dropped its reading half before the end arrived, without having read everything, the result is
///   [`StreamError::Reset`]. The other direction stays open. The peer's task need not poll its
///   stream for the confirmation, but its notifier has to run.
/// - **Dropping** does not wait. As with TCP, all data written so far is still sent, followed by
///   the end. If data from the peer was not read by then, or arrives later, the peer reads
///   [`StreamError::Reset`] instead of the end. It never reads the end before the last byte that
///   was written. The data is sent in the background, by this process and its notifier: what has not
///   been sent is lost when the process exits, or when the tokio runtime ends that runs the notifier
///   ([`CqEvents::create_tokio`](crate::CqEvents)). Await a shutdown before that.
///
/// After a drop, the channel keeps its place in the group until everything has been sent, but no
/// longer than [`set_linger`](Self::set_linger) allows. [`abort`](Self::abort) frees them without
/// sending.
///
/// After the peer has dropped its stream, everything it had written can be read, followed by the
/// end or [`StreamError::Reset`]. Writing fails.
///
/// If the transport fails, the next write or flush returns the error. Reads return it after all
/// data that has arrived. If the channel [watches its peer](AsyncChannel::watch_peer), as a channel
/// connected over TCP does, it detects that the peer has died. The error is an
/// [`io::ErrorKind::ConnectionReset`](std::io::ErrorKind::ConnectionReset) if the peer's process
/// has ended, and an [`io::ErrorKind::TimedOut`](std::io::ErrorKind::TimedOut) if its host does not
/// answer.
///
/// When it is created, a stream registers `2 * depth + 5` blocks, and allocates a quarter of
/// `depth` blocks for small messages. Later it allocates nothing.
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
/// let timeout = std::time::Duration::from_secs(5);
/// let met = group.connect("server:7471", timeout).await?;
/// let mut stream = met.channel.into_stream()?;
/// stream.write_all(b"how are you?\n").await?;
/// stream.shutdown().await?;
/// let mut answers = BufReader::new(stream).lines();
/// while let Some(answer) = answers.next_line().await? {
///     println!("{answer}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// Frames, with tokio-util's codecs on the two halves:
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn example(channel: verbs_async::AsyncChannel) -> Result<(), Box<dyn std::error::Error>> {
/// use futures_util::{SinkExt as _, StreamExt as _};
/// use tokio::io::AsyncWriteExt as _;
/// use tokio_util::bytes::Bytes;
/// use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};
///
/// let (read, write) = channel.into_stream()?.into_split();
/// let mut answers = FramedRead::new(read, LengthDelimitedCodec::new());
/// let mut questions = FramedWrite::new(write, LengthDelimitedCodec::new());
/// questions.send(Bytes::from_static(b"how are you?")).await?;
/// questions.get_mut().shutdown().await?;
/// while let Some(answer) = answers.next().await {
///     println!("{} bytes", answer?.len());
/// }
/// # Ok(())
/// # }
/// ```
pub struct ByteStream {
    // Dropped in this order: `StreamState::drop_half` relies on it.
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
}

impl AsyncChannel {
    /// Turns the channel into a byte stream with 16 blocks of 16 KiB in each direction. The peer
    /// must turn its channel into a stream, too.
    ///
    /// The stream accepts at least 64 KiB of small writes before the peer has to read. If the peer
    /// uses its channel for messages instead, the first read may wait forever: put a timeout
    /// around it.
    ///
    /// # Errors
    ///
    /// As [`into_stream_with`](Self::into_stream_with).
    pub fn into_stream(self) -> Result<ByteStream> {
        self.into_stream_with(BLOCK_LEN, DEPTH)
    }

    /// Turns the channel into a byte stream with `depth` blocks of `block_len` bytes in each
    /// direction.
    ///
    /// The peer may use other values. A message is at most as long as the shorter of both sides'
    /// blocks. The sender's blocks and the receiver's `depth` limit the number of messages in
    /// flight.
    ///
    /// Neither side may have begun an operation on the channel before.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](CoreError::OutOfRange): a block is shorter than 20 bytes or longer than the
    /// longest message of the port, or `depth` is 0. [`StreamReceives`](crate::Error::StreamReceives):
    /// `depth + 4` receives exceed the channel's `max_recv_wr`. [`Unsupported`](CoreError::Unsupported) on
    /// iWARP, which lacks the immediates that each message has. Those of [`BufferPool::new`]. The
    /// channel is closed on an error.
    pub fn into_stream_with(self, block_len: usize, depth: u16) -> Result<ByteStream> {
        let context = self.pd().context();
        if context.device().transport_type() == TransportType::IWARP {
            let verb = "IBV_WR_SEND_WITH_IMM";
            return Err(CoreError::Unsupported { verb }.into());
        }
        let max_len = match self.endpoint() {
            Some(endpoint) => context.query_port(endpoint.port_num())?.max_msg_sz(),
            None => u32::MAX,
        };
        let block_len = in_range("block_len", block_len as u64, HELLO_LEN as u64, max_len)?;
        let _at_least_one = in_range("depth", depth.into(), 1, u16::MAX.into())?;
        let max_recv_wr = self.capacity(Queue::Receive);
        let needed = u32::from(depth) + u32::from(SPARE);
        if needed > max_recv_wr {
            return Err(Error::StreamReceives {
                depth,
                needed,
                max_recv_wr,
            });
        }
        ByteStream::new(self.unbounded(), Settings { block_len, depth })
    }
}

impl ByteStream {
    fn new(channel: AsyncChannel, ours: Settings) -> Result<Self> {
        let block_len = usize::try_from(ours.block_len).unwrap_or(usize::MAX);
        // Blocks to send from, one for the HELLO, and blocks to receive into.
        let count = 2 * usize::from(ours.depth) + usize::from(SPARE) + 1;
        let pool = BufferPool::new(channel.pd(), block_len, count)?;
        let blocks = std::iter::from_fn(|| pool.take()).map(OwnedBuffer::from);
        let shared = SharedStream::new(channel, ours, blocks.collect());
        Ok(Self {
            read: OwnedReadHalf::new(Arc::clone(&shared)),
            write: OwnedWriteHalf { shared },
        })
    }

    /// Ends the stream at once. Data that was written and has not arrived is lost. The place in the
    /// group is free when a helper thread has destroyed the queue pair.
    ///
    /// The peer gets [`StreamError::Reset`] if that can be sent without waiting. Otherwise it
    /// notices the end as if this process had died.
    pub fn abort(self) {
        self.write.shared.abort();
    }

    /// Sets how long the stream may linger after it is dropped. The default is 10 seconds.
    ///
    /// Data that has not arrived by then is lost, and the peer reads an error. With zero, a drop
    /// is an [`abort`](Self::abort).
    pub fn set_linger(&self, linger: Duration) {
        self.write.shared.run(|state| state.linger = linger);
    }

    /// The peer's address, if the channel was connected over TCP.
    ///
    /// It is also available after the stream has gone down.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.write.shared.peer_addr()
    }

    /// Whether nothing more can be written: the transport has failed, or the peer has dropped its
    /// stream.
    ///
    /// Data that has arrived can still be read.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.write.shared.is_down()
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.write.shared, f)
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
