//! Connecting over TCP: how two channels that never met exchange their endpoints.
//!
//! Both sides do the same, at the same time. A frame is `VRBC`, a version, a kind, a length, and at
//! most 1060 bytes of payload:
//!
//! ```text
//! ENDPOINT: the endpoint, then private data   ──►   ◄── the same
//! (handshake)
//! READY: empty                                ──►   ◄── the same
//! ```
//!
//! When a side has read the other's `READY`, both queue pairs are connected, so whatever it sends
//! arrives. A side that cannot go on says why, in place of either frame, and hangs up:
//!
//! ```text
//! REFUSED: a code, then at most 254 bytes of words (UTF-8)
//! ```
//!
//! [`PreparedChannel::connect`](crate::PreparedChannel::connect) and its like do all of it over TCP.
//! An [`Exchange`] is what is said, without what carries it: for any other stream, blocking or not.

mod error;
mod frame;
mod limits;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;

use verbs_core::QueuePairEndpoint;

pub use error::{ExchangeError, ExchangeFailure, RefusalCode};
pub use frame::Peer;
use frame::{ENDPOINT, HEADER, READY, REFUSED};
pub use limits::MAX_PRIVATE_DATA;

/// One side of an exchange of endpoints, over whatever stream its user has.
///
/// It is run twice, each time until it is [done](Step::Done): for the endpoints, and after the
/// handshake for [`ready`](Self::ready) or [`refuse`](Self::refuse). It reads no byte beyond its own
/// frames, so the stream can be used for something else afterwards. It knows no time: give whatever
/// carries it a deadline. The stream must take 1072 bytes before the other side reads, as TCP does.
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
/// // Here is the handshake with `peer.endpoint`. If it fails: `exchange.refuse(&error)`.
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
    /// What is to be written, and how much of it has been.
    out: Vec<u8>,
    written: usize,
    /// The frame that comes, as far as its length is known, and how much of it has come.
    frame: Vec<u8>,
    got: usize,
    /// The last kinds of frame that this side said and heard; the next one is due when it has
    /// heard less than it said.
    said: u16,
    heard: u16,
    peer: Option<Peer>,
    /// Why the peer cannot be written to: told unless the peer itself says why.
    unsaid: Option<ExchangeError>,
    /// How it ended; told when all is written.
    ended: Option<ExchangeError>,
}

/// What an [`Exchange`] needs next.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a stream can be written and read, and nothing else"
)]
pub enum Step<'a> {
    /// Write some of these bytes, and say how many: [`Exchange::moved`].
    Write(&'a [u8]),
    /// Read into this, and say how much: [`Exchange::moved`].
    Read(&'a mut [u8]),
    /// The peer's endpoint is here; or, after [`Exchange::ready`], the peer is ready too.
    Done(&'a Peer),
}

impl Exchange {
    /// Begins an exchange, with this side's endpoint and what else to tell the peer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateData`] for more than [`MAX_PRIVATE_DATA`] bytes.
    pub fn new(endpoint: &QueuePairEndpoint, private_data: &[u8]) -> Result<Self, ExchangeError> {
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(ExchangeError::PrivateData(private_data.len()));
        }
        Ok(Self::saying(frame::endpoint(endpoint, private_data)))
    }

    /// The exchange of a side that will not even tell its endpoint, but why. Go on until
    /// [`step`](Self::step) says that it is [over](ExchangeError::Over).
    #[must_use]
    pub fn refusing(why: &(dyn std::error::Error + 'static)) -> Self {
        let mut exchange = Self::saying(Vec::new());
        exchange.refuse(why);
        exchange
    }

    fn saying(out: Vec<u8>) -> Self {
        Self {
            out,
            written: 0,
            frame: vec![0; HEADER],
            got: 0,
            said: ENDPOINT,
            heard: 0,
            peer: None,
            unsaid: None,
            ended: None,
        }
    }

    /// What to do next. Until [`moved`](Self::moved) is called it stays the same.
    ///
    /// # Errors
    ///
    /// How the exchange failed. A peer that is refused has been told by then.
    pub fn step(&mut self) -> Result<Step<'_>, ExchangeError> {
        let out = self.out.get(self.written..).unwrap_or_default();
        if !out.is_empty() {
            return Ok(Step::Write(out));
        }
        if let Some(error) = &mut self.ended {
            return Err(mem::replace(error, ExchangeError::Over));
        }
        match &self.peer {
            Some(peer) if self.heard == self.said => Ok(Step::Done(peer)),
            _ => Ok(Step::Read(
                self.frame.get_mut(self.got..).unwrap_or_default(),
            )),
        }
    }

    /// Says what came of the last [`step`](Self::step): how many bytes were written or read, 0 if
    /// the stream has ended. `Interrupted` and `WouldBlock` mean none yet.
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
                if let Err(error) = self.hear() {
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

    /// After the handshake: tells the peer that this side is connected, and waits for the same.
    pub fn ready(&mut self) {
        if self.said < READY && self.ended.is_none() {
            self.said = READY;
            self.out.extend(frame::ready());
        }
    }

    /// Instead of [`ready`](Self::ready): tells the peer that this side will not connect, and why.
    /// Go on until [`step`](Self::step) says that it is [over](ExchangeError::Over).
    ///
    /// The peer gets the words of the error and of its causes, at most 254 bytes of them.
    pub fn refuse(&mut self, why: &(dyn std::error::Error + 'static)) {
        if self.ended.is_none() {
            self.out.extend(frame::refused(RefusalCode::HANDSHAKE, why));
            self.ended = Some(ExchangeError::Over);
        }
    }

    /// Ends in an error, and tells the peer if it is the cause.
    fn fail(&mut self, error: ExchangeError) {
        if let Some(code) = error.code() {
            self.out.extend(frame::refused(code, &error));
        }
        self.ended = Some(error);
    }

    /// A peer that does not take what is written may have said why: that is still to be read.
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
                self.said = READY;
                self.unsaid = Some(error);
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
        self.ended = Some(self.unsaid.take().unwrap_or(hung_up));
    }

    /// Takes in what has come of a frame.
    fn hear(&mut self) -> Result<(), ExchangeError> {
        let come = self.frame.get(..self.got).unwrap_or_default();
        frame::begins(come)?;
        if come.len() < self.frame.len() {
            return Ok(());
        }
        let Some((header, payload)) = come.split_first_chunk() else {
            return Ok(());
        };
        let (kind, len) = frame::header(header, self.heard + 1)?;
        if payload.len() < len {
            self.frame.resize(HEADER + len, 0);
            return Ok(());
        }
        match kind {
            REFUSED => return Err(frame::refusal(payload)),
            ENDPOINT => self.peer = Some(frame::peer(payload)?),
            _ => self.ended = self.unsaid.take(),
        }
        self.heard = kind;
        self.frame.resize(HEADER, 0);
        self.got = 0;
        Ok(())
    }
}
