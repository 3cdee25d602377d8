//! The protocol of connecting over TCP: how two channels exchange their endpoints.
//!
//! Both sides do the same, at the same time. A frame is the bytes `VRBC`, a version, a kind, a
//! length, and at most 1061 bytes of payload:
//!
//! ```text
//! ENDPOINT: the endpoint, then private data   ──►   ◄── the same
//! (handshake)
//! READY: empty                                ──►   ◄── the same
//! ```
//!
//! When a side has read the peer's `READY`, both queue pairs are connected, and it can send. A side
//! that cannot continue sends the reason in place of either frame, and closes the connection:
//!
//! ```text
//! REFUSED: a code, then at most 254 bytes of text (UTF-8)
//! ```
//!
//! [`PreparedChannel::connect`](crate::PreparedChannel::connect) and similar methods do all of this
//! over TCP. An [`Exchange`] is the protocol without I/O: for any other stream, blocking or not.

mod error;
mod frame;
mod limits;
#[cfg(feature = "rdmacm")]
pub mod rdmacm;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;

use verbs_core::QueuePairEndpoint;

pub use error::{ExchangeError, ExchangeFailure, RefusalCode};
pub use frame::Peer;
use frame::{ENDPOINT, HEADER, READY, REFUSED};
pub(crate) use frame::{peer, reason, refusal};
pub use limits::MAX_PRIVATE_DATA;
pub(crate) use limits::deadline;

/// One side of an exchange of endpoints, over any stream.
///
/// It is run twice, each time until it is [done](Step::Done): first for the endpoints, then, after
/// the handshake, for [`ready`](Self::ready) or [`refuse`](Self::refuse).
///
/// It reads no byte beyond its own frames, so the stream can be used afterwards. It has no timeout:
/// the I/O needs one. The stream must accept 1073 bytes before the peer reads, as TCP does.
///
/// # Examples
///
/// ```
/// use std::io::{Read, Write};
/// use verbs_channel::exchange::{Exchange, ExchangeError, Peer, Step};
/// # use std::os::unix::net::UnixStream;
/// # use verbs_channel::verbs_core::{PacketSequenceNumber, QueuePairEndpoint};
///
/// fn run(
///     exchange: &mut Exchange,
///     mut stream: impl Read + Write,
/// ) -> Result<Peer, ExchangeError> {
///     loop {
///         let moved = match exchange.step()? {
///             Step::Write(bytes) => stream.write(bytes),
///             Step::Read(buffer) => stream.read(buffer),
///             Step::Done(peer) => return Ok(peer.clone()),
///         };
///         exchange.moved(moved);
///     }
/// }
///
/// # fn side(stream: UnixStream, qp_num: u32) -> Result<Peer, Box<dyn std::error::Error + Send + Sync>> {
/// # let psn = PacketSequenceNumber::new(1)?;
/// # let ours = QueuePairEndpoint::builder(qp_num, psn).lid(1).build()?;
/// let mut exchange = Exchange::new(&ours, b"private data")?;
/// let peer = run(&mut exchange, &stream)?;
/// // Now do the handshake with `peer.endpoint`. If it fails: `exchange.refuse(&error)`.
/// exchange.ready();
/// run(&mut exchange, &stream)?;
/// # Ok(peer)
/// # }
/// # let (left, right) = UnixStream::pair().unwrap();
/// # let there = std::thread::spawn(|| side(right, 3));
/// # assert_eq!(side(left, 2).unwrap().endpoint.qp_num(), 3);
/// # assert_eq!(there.join().unwrap().unwrap().endpoint.qp_num(), 2);
/// ```
#[derive(Debug)]
pub struct Exchange {
    /// The bytes to write, and how many of them have been written.
    out: Vec<u8>,
    written: usize,
    /// A buffer for the frame that is being read, as long as is known, and how many bytes were read.
    frame: Vec<u8>,
    got: usize,
    /// The last kinds of frame that this side has sent and received. Another frame is due while
    /// `received` is less than `sent`.
    sent: u16,
    received: u16,
    peer: Option<Peer>,
    /// Why the peer cannot be written to. Returned unless the peer has sent a reason.
    write_error: Option<ExchangeError>,
    /// How the exchange ended. Returned when all bytes are written.
    ended: Option<ExchangeError>,
}

/// The next I/O of an [`Exchange`].
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a stream can be written and read, and nothing else"
)]
pub enum Step<'a> {
    /// Write some of these bytes, and pass their number to [`Exchange::moved`].
    Write(&'a [u8]),
    /// Read into this buffer, and pass the number of bytes to [`Exchange::moved`].
    Read(&'a mut [u8]),
    /// The peer's endpoint has arrived; or, after [`Exchange::ready`], the peer is ready, too.
    Done(&'a Peer),
}

impl Exchange {
    /// Begins an exchange, with the endpoint and the private data to send to the peer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateData`] for more than [`MAX_PRIVATE_DATA`] bytes.
    pub fn new(endpoint: &QueuePairEndpoint, private_data: &[u8]) -> Result<Self, ExchangeError> {
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(ExchangeError::PrivateData(private_data.len()));
        }
        Ok(Self::with_output(frame::endpoint(endpoint, private_data)))
    }

    /// Begins an exchange that refuses the peer: it sends the reason in place of the endpoint.
    ///
    /// Run it until [`step`](Self::step) returns [`ExchangeError::Over`].
    #[must_use]
    pub fn refusing(why: &(dyn std::error::Error + 'static)) -> Self {
        let mut exchange = Self::with_output(Vec::new());
        exchange.refuse(why);
        exchange
    }

    fn with_output(out: Vec<u8>) -> Self {
        Self {
            out,
            written: 0,
            frame: vec![0; HEADER],
            got: 0,
            sent: ENDPOINT,
            received: 0,
            peer: None,
            write_error: None,
            ended: None,
        }
    }

    /// The next I/O. It is the same until [`moved`](Self::moved) is called.
    ///
    /// # Errors
    ///
    /// The exchange has failed. If this side refuses the peer, the reason has been written.
    pub fn step(&mut self) -> Result<Step<'_>, ExchangeError> {
        let out = self.out.get(self.written..).unwrap_or_default();
        if !out.is_empty() {
            return Ok(Step::Write(out));
        }
        if let Some(error) = &mut self.ended {
            return Err(mem::replace(error, ExchangeError::Over));
        }
        match &self.peer {
            Some(peer) if self.received == self.sent => Ok(Step::Done(peer)),
            _ => Ok(Step::Read(
                self.frame.get_mut(self.got..).unwrap_or_default(),
            )),
        }
    }

    /// Reports the result of the last [`step`](Self::step): the number of bytes written or read, which
    /// is 0 at the end of the stream. `Interrupted` and `WouldBlock` mean none yet.
    pub fn moved(&mut self, moved: io::Result<usize>) {
        let is_writing = self.written < self.out.len();
        match moved {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Ok(0) if is_writing => self.write_failed(io::ErrorKind::WriteZero.into()),
            Ok(count) if is_writing => {
                self.written = self.written.saturating_add(count).min(self.out.len());
            }
            Err(error) if is_writing => self.write_failed(error),
            Ok(0) => self.hung_up(),
            Ok(count) => {
                self.got = self.got.saturating_add(count).min(self.frame.len());
                if let Err(error) = self.read_frame() {
                    self.fail(error);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset => self.hung_up(),
                io::ErrorKind::TimedOut => {
                    self.ended = Some(ExchangeError::TimedOut {
                        what: "write",
                        after: None,
                    });
                }
                _ => {
                    self.ended = Some(ExchangeError::Tcp {
                        what: "read from",
                        source: error,
                    });
                }
            },
        }
    }

    /// Continues after the handshake: sends `READY`, and waits for that of the peer.
    pub fn ready(&mut self) {
        if self.sent < READY && self.ended.is_none() {
            self.sent = READY;
            self.out.extend(frame::ready());
        }
    }

    /// Refuses the peer, in place of [`ready`](Self::ready): this side will not connect.
    ///
    /// Run the exchange until [`step`](Self::step) returns [`ExchangeError::Over`]. The peer is sent
    /// the texts of the error and of its causes, up to 254 bytes.
    pub fn refuse(&mut self, why: &(dyn std::error::Error + 'static)) {
        if self.ended.is_none() {
            self.out.extend(frame::refused(RefusalCode::HANDSHAKE, why));
            self.ended = Some(ExchangeError::Over);
        }
    }

    /// Ends in an error, which is sent to the peer if the peer caused it.
    fn fail(&mut self, error: ExchangeError) {
        if let Some(code) = error.code() {
            self.out.extend(frame::refused(code, &error));
        }
        self.ended = Some(error);
    }

    /// A write has failed. The peer may have sent a reason before, which is still to be read.
    fn write_failed(&mut self, source: io::Error) {
        self.out.clear();
        self.written = 0;
        if self.ended.is_some() {
            return;
        }
        let kind = source.kind();
        let what = "write to";
        let error = ExchangeError::Tcp { what, source };
        match kind {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.sent = READY;
                self.write_error = Some(error);
            }
            io::ErrorKind::TimedOut => {
                let (what, after) = ("read", None);
                self.ended = Some(ExchangeError::TimedOut { what, after });
            }
            _ => self.ended = Some(error),
        }
    }

    fn hung_up(&mut self) {
        let before = if self.frame.len() > HEADER { HEADER } else { 0 };
        let hung_up = ExchangeError::HungUp {
            got: self.got - before,
            expected: self.frame.len() - before,
        };
        self.ended = Some(self.write_error.take().unwrap_or(hung_up));
    }

    /// Parses the frame that is being read, as far as it has arrived.
    fn read_frame(&mut self) -> Result<(), ExchangeError> {
        let come = self.frame.get(..self.got).unwrap_or_default();
        frame::begins(come)?;
        if come.len() < self.frame.len() {
            return Ok(());
        }
        let Some((header, payload)) = come.split_first_chunk() else {
            return Ok(());
        };
        let (kind, len) = frame::header(header, self.received + 1)?;
        if payload.len() < len {
            self.frame.resize(HEADER + len, 0);
            return Ok(());
        }
        match kind {
            REFUSED => return Err(refusal(payload)),
            ENDPOINT => self.peer = Some(peer(payload)?),
            _ => self.ended = self.write_error.take(),
        }
        self.received = kind;
        self.frame.resize(HEADER, 0);
        self.got = 0;
        Ok(())
    }
}
