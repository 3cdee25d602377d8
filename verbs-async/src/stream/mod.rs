//! Byte streams: a channel that is read and written as a TCP connection is.
//!
//! # The protocol
//!
//! A side has `depth` blocks to send from, and posts `depth + 3` receives, all before it sends
//! anything. Each message has an immediate, which says what it is; see `wire.rs` for the bits.
//!
//! ```text
//! HELLO    magic, version, block length, depth         the first message of each side
//! DATA     at most as many bytes as the shorter block
//! CREDIT   nothing                                     when no data goes that way
//! FIN      nothing                                     after the last data
//! RESET    nothing                                     the stream was dropped before its end
//! ```
//!
//! A data message costs a credit. A side begins with as many as the peer's hello says, and gets one
//! back for each message that the peer's reader has consumed and whose block is posted again. What
//! is to be given back goes with whatever is sent next, and in a CREDIT once it is half of the depth.
//!
//! HELLO, CREDIT, FIN and RESET cost none: three receives are kept for them. FIN and RESET are said
//! once. A HELLO or CREDIT is said only when the peer has confirmed the one before, by a bit of
//! whatever it said after it had heard that. So a message always finds a receive.
//!
//! *Nobody waits for ever.* Let A wait for a credit, while B has half of its depth to give back. If B
//! may say CREDIT, it does. If not, its last HELLO or CREDIT is unconfirmed. Either it's on its way,
//! and brings A a credit; or A has heard it, got at least one credit by it, and used that up, as it
//! waits: so A has sent data since, which confirms it, and B will hear that, since a message always
//! finds a receive. That both write at the same time, and neither reads, is the users' own: each may
//! wait then for the other to read, as with TCP.

mod error;
mod flow;
mod io;
mod linger;
mod protocol;
mod tasks;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use verbs_channel::verbs_core::Error as CoreError;
use verbs_channel::{BufferPool, OwnedBuffer, Queue};

use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::operation::Operation;
use error::Failure;
pub use error::StreamError;
use protocol::Protocol;
use tasks::Tasks;
use wire::{HELLO_LEN, Settings};

/// Bytes in a block, unless said otherwise.
const BLOCK_LEN: usize = 16 << 10;
/// Messages on their way, unless said otherwise.
const DEPTH: u16 = 16;
/// Receives beside those for data: for a hello or credits, for a FIN, and for a RESET.
const SPARE: u16 = 3;

/// A channel as a stream of bytes: what reads and writes TCP reads and writes this.
///
/// Made by [`AsyncChannel::into_stream`], at both ends of the channel. It implements [`AsyncRead`],
/// [`AsyncWrite`] and [`AsyncBufRead`] of futures-io, and tokio's with feature `tokio`. One task can
/// read while another writes, by the `split` of either.
///
/// - **Writing** copies into a registered block and sends that at once; nothing is held back to be
///   joined with what follows, so put a `BufWriter` around it for many small writes. It waits while
///   all blocks are on their way, or while the peer's reader is `depth` messages behind.
/// - **Flushing** waits until all that was written has arrived in the peer's memory. Its reader may
///   not have seen it.
/// - **Shutting down** (or closing) says that nothing more will be written, and waits until that has
///   arrived: the peer reads what was written, and then the end. The other direction goes on.
/// - **Dropping** it before both sides have shut down is an abort: the peer reads what has arrived,
///   and then [`StreamError::Reset`], never an end. It's said without waiting: the channel stays,
///   unseen, until that has arrived or the transport gives up on the peer, so for one that lives and
///   posts no receive as long as the channel's `rnr_retry` says. After both have shut down, it's
///   just closed.
///
/// A failure of the transport is an error of whatever is written or flushed next, and of reads after
/// all that has arrived. A peer that dies, without a word, is noticed by the transport only when
/// something is sent to it: a stream that only reads waits for ever then. Whoever must know asks the
/// peer now and then, or sets a timeout.
///
/// Its memory is `2 * depth + 3` blocks, registered when it is made; nothing is allocated later.
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
    channel: Arc<AsyncChannel>,
    protocol: Protocol,
    tasks: Tasks,
    /// Posted, in that order.
    receives: VecDeque<Operation>,
    /// Arrived and not read to the end, in that order; how much of the first has been.
    arrived: VecDeque<OwnedBuffer>,
    read: usize,
    /// On their way, in that order.
    sends: VecDeque<(Sent, Operation)>,
    /// To send from.
    free: Vec<OwnedBuffer>,
    /// What was written and has not arrived, in messages.
    data_in_flight: usize,
    fin_arrived: bool,
    /// Why nothing can be received any more, and why nothing can be sent.
    receive_failure: Option<Failure>,
    send_failure: Option<Failure>,
}

/// What is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Data,
    Fin,
    Other,
}

impl AsyncChannel {
    /// Makes it a stream of bytes, with 16 blocks of 16 KiB each way. The peer does the same.
    ///
    /// # Errors
    ///
    /// As [`into_stream_with`](Self::into_stream_with).
    pub fn into_stream(self) -> Result<ByteStream> {
        self.into_stream_with(BLOCK_LEN, DEPTH)
    }

    /// Makes it a stream of bytes, with `depth` blocks of `block_len` bytes each way. The peer's may
    /// be others: a message is as long as the shorter block at most, and as many are on their way
    /// as the sender has blocks and the receiver's reader has room for.
    ///
    /// Nothing else may have been begun on the channel, by either side.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](CoreError::OutOfRange) for blocks below 20 bytes or longer than the port's
    /// longest message, and for a depth of 0 or one whose `depth + 3` receives exceed the channel's
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
        let depth = usize::from(ours.depth);
        let receives = depth + usize::from(SPARE);
        let pool = BufferPool::new(channel.pd(), block_len, depth + receives)?;
        let mut blocks: Vec<OwnedBuffer> = std::iter::from_fn(|| pool.take())
            .map(OwnedBuffer::from)
            .collect();
        let to_receive = blocks.split_off(depth);
        let mut stream = Self {
            channel: Arc::new(channel),
            protocol: Protocol::new(ours),
            tasks: Tasks::new(),
            receives: VecDeque::with_capacity(receives),
            arrived: VecDeque::with_capacity(receives),
            read: 0,
            // Data from each block, a FIN, and some credits between.
            sends: VecDeque::with_capacity(depth + receives),
            free: blocks,
            data_in_flight: 0,
            fin_arrived: false,
            receive_failure: None,
            send_failure: None,
        };
        for block in to_receive {
            stream.post(block);
        }
        stream.say_hello(ours);
        Ok(stream)
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        // What came meanwhile may be the peer's end of it.
        self.drive();
        let is_over = self.fin_arrived && self.protocol.fin_was_heard();
        if is_over || self.failure().is_some() {
            return;
        }
        let imm_data = self.protocol.reset();
        let channel = Arc::clone(&self.channel);
        let told = channel.send_with_immediate(OwnedBuffer::empty(), imm_data);
        linger::linger(async move {
            // Whatever became of it, there is nothing more to do.
            let _told = told.await;
            drop(channel);
        });
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream")
            .field("channel", &self.channel)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
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
