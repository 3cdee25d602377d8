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
//! that cannot continue sends the reason instead of the next frame, and closes the connection:
//!
//! ```text
//! REFUSED: a code, then at most 254 bytes of text (UTF-8)
//! ```
//!
//! On iWARP, where queue pairs are connected by `rdma_cm` only, two other frames replace the
//! endpoints: see [below](self#by-rdma_cm).
//!
//! [`PreparedChannel::connect`](crate::PreparedChannel::connect) and similar methods do this over
//! TCP. An [`Exchange`] is the protocol without I/O, for any other stream, blocking or not.
//!
//! # By `rdma_cm`
//!
//! ```text
//! PROPOSAL: the side (1 byte), a nonce (8), then private data       ──►   ◄── the same
//! LISTENER: an IPv6 address (16 bytes) and a port (2), or nothing   ──►   ◄── the same
//! (the connection by rdma_cm)
//! READY: empty                                                      ──►   ◄── the same
//! ```
//!
//! The side is 0 if it connected the stream, 2 if it accepted the stream, and 1 if it may be either. The
//! side with the higher number listens; if they are equal, the side with the higher nonce. It is an error if
//! both accepted. The listening side sends the address of a listener of `rdma_cm`, and the other side
//! connects to it. The request carries the nonce of the listening side, and the answer that of the other
//! side. So each side can check that its peer is the one at the end of the stream. An IPv4 address is
//! written as IPv6 (`::ffff:192.0.2.1`). A link-local address belongs to the link from which the side
//! connects.

#[cfg(feature = "rdmacm")]
pub(crate) mod addresses;
#[cfg(feature = "rdmacm")]
pub(crate) mod cm;
mod error;
mod frame;
mod limits;
#[cfg(feature = "rdmacm")]
pub(crate) mod meeting;
mod side;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;
#[cfg(feature = "rdmacm")]
use std::net::SocketAddr;

use verbs_core::QueuePairEndpoint;

pub use error::{ExchangeError, ExchangeFailure, RefusalCode};
pub use frame::PeerEndpoint;
use frame::{ENDPOINT, HEADER, LISTENER, PROPOSAL, READY, REFUSED};
pub(crate) use frame::{check_private_data, peer, reason, refusal};
pub use limits::MAX_PRIVATE_DATA;
pub(crate) use limits::deadline;
#[cfg(feature = "rdmacm")]
use meeting::{Meeting, Proposal};
pub use side::Side;

/// One side of an exchange of endpoints, over any stream.
///
/// It is run twice, each time until it is [done](Self::io): first for the endpoints, then, after
/// the handshake, for [`ready`](Self::ready) or [`refuse`](Self::refuse).
///
/// It reads no byte beyond its own frames, so the stream can be used afterwards. It has no timeout:
/// the I/O needs one. The stream must accept 1073 bytes before the peer reads, as TCP does.
///
/// # Examples
///
/// ```
/// use std::io::{Read, Write};
/// use verbs_channel::exchange::{Exchange, ExchangeError, Io};
/// # use std::os::unix::net::UnixStream;
/// # use verbs_channel::exchange::PeerEndpoint;
/// # use verbs_channel::verbs_core::{PacketSequenceNumber, QueuePairEndpoint};
///
/// fn run(exchange: &mut Exchange, mut stream: impl Read + Write) -> Result<(), ExchangeError> {
///     while let Some(io) = exchange.io()? {
///         let moved = match io {
///             Io::Write(bytes) => stream.write(bytes),
///             Io::Read(buffer) => stream.read(buffer),
///         };
///         exchange.moved(moved);
///     }
///     Ok(())
/// }
///
/// # type Failure = Box<dyn std::error::Error + Send + Sync>;
/// # fn side(stream: UnixStream, qp_num: u32) -> Result<PeerEndpoint, Failure> {
/// # let psn = PacketSequenceNumber::new(1)?;
/// # let ours = QueuePairEndpoint::builder(qp_num, psn).lid(1).build()?;
/// let mut exchange = Exchange::new(&ours, b"private data")?;
/// run(&mut exchange, &stream)?;
/// let peer = exchange.peer().ok_or(ExchangeError::Over)?.clone();
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
    /// The kind of frame that this side reads up to, and the last kind that it has received; 0 before the
    /// first, whose kind is `first`.
    until: u16,
    received: u16,
    first: u16,
    is_ready: bool,
    peer: Option<PeerEndpoint>,
    /// This side's proposal, and how the two connect, if it connects by `rdma_cm`.
    #[cfg(feature = "rdmacm")]
    proposal: Option<Proposal>,
    #[cfg(feature = "rdmacm")]
    meeting: Option<Meeting>,
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
pub enum Io<'a> {
    /// Write some of these bytes, and pass their number to [`Exchange::moved`].
    Write(&'a [u8]),
    /// Read into this buffer, and pass the number of bytes to [`Exchange::moved`].
    Read(&'a mut [u8]),
}

impl Exchange {
    /// Begins an exchange, with the endpoint and the private data to send to the peer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateData`] for more than [`MAX_PRIVATE_DATA`] bytes.
    pub fn new(endpoint: &QueuePairEndpoint, private_data: &[u8]) -> Result<Self, ExchangeError> {
        check_private_data(private_data)?;
        let out = frame::endpoint(endpoint, private_data);
        Ok(Self::with_output(ENDPOINT, out))
    }

    /// Begins an exchange that refuses the peer: it sends the reason in place of the endpoint.
    ///
    /// Run it until [`io`](Self::io) returns [`ExchangeError::Over`].
    #[doc(hidden)]
    #[must_use]
    pub fn refusing(why: &(dyn std::error::Error + 'static)) -> Self {
        let mut exchange = Self::with_output(ENDPOINT, Vec::new());
        exchange.refuse(why);
        exchange
    }

    fn with_output(first: u16, out: Vec<u8>) -> Self {
        Self {
            out,
            written: 0,
            frame: vec![0; HEADER],
            got: 0,
            until: first,
            received: 0,
            first,
            is_ready: false,
            peer: None,
            #[cfg(feature = "rdmacm")]
            proposal: None,
            #[cfg(feature = "rdmacm")]
            meeting: None,
            write_error: None,
            ended: None,
        }
    }

    /// The next I/O; `None` if this is done: the peer's endpoint has [arrived](Self::peer), or, after
    /// [`ready`](Self::ready), the peer is ready, too. It is the same until [`moved`](Self::moved) is called.
    ///
    /// # Errors
    ///
    /// The exchange has failed. If this side refuses the peer, the reason has been written.
    pub fn io(&mut self) -> Result<Option<Io<'_>>, ExchangeError> {
        let is_done = self.is_done();
        let out = self.out.get(self.written..).unwrap_or_default();
        if !out.is_empty() {
            return Ok(Some(Io::Write(out)));
        }
        if let Some(error) = &mut self.ended {
            return Err(mem::replace(error, ExchangeError::Over));
        }
        let buffer = self.frame.get_mut(self.got..).unwrap_or_default();
        Ok((!is_done).then_some(Io::Read(buffer)))
    }

    fn is_done(&self) -> bool {
        self.written >= self.out.len() && self.ended.is_none() && self.received == self.until
    }

    /// The peer and its endpoint, once the endpoint has arrived.
    #[must_use]
    pub const fn peer(&self) -> Option<&PeerEndpoint> {
        self.peer.as_ref()
    }

    /// The peer's private data, once it has arrived.
    #[must_use]
    pub fn into_private_data(self) -> Vec<u8> {
        #[cfg(feature = "rdmacm")]
        if let Some(meeting) = self.meeting {
            return meeting.private_data;
        }
        self.peer.map(|peer| peer.private_data).unwrap_or_default()
    }

    /// Reports the result of the last [`io`](Self::io): the number of bytes written or read, which
    /// is 0 at the end of the stream. `Interrupted` and `WouldBlock` mean that there were none yet.
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

    /// Continues after the handshake: sends `READY`, and waits for the peer's.
    pub fn ready(&mut self) {
        if !self.is_ready && self.ended.is_none() {
            self.is_ready = true;
            self.until = READY;
            self.out.extend(frame::ready());
        }
    }

    /// Refuses the peer, in place of [`ready`](Self::ready): this side will not connect.
    ///
    /// Run the exchange until [`io`](Self::io) returns [`ExchangeError::Over`]. The peer is sent
    /// the texts of the error and of its causes, up to 254 bytes.
    pub fn refuse(&mut self, why: &(dyn std::error::Error + 'static)) {
        if self.ended.is_none() {
            self.out.extend(frame::refused(RefusalCode::HANDSHAKE, why));
            self.ended = Some(ExchangeError::Over);
        }
    }

    /// Whether it has ended, and only the reason may have to be written.
    pub(crate) const fn refuses(&self) -> bool {
        self.ended.is_some()
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
                self.until = READY;
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
        let due = match self.received {
            0 => self.first,
            PROPOSAL => LISTENER,
            _ => READY,
        };
        let (kind, len) = frame::header(header, due)?;
        if payload.len() < len {
            self.frame.resize(HEADER + len, 0);
            return Ok(());
        }
        match kind {
            REFUSED => return Err(refusal(payload)),
            ENDPOINT => self.peer = Some(peer(payload)?),
            #[cfg(feature = "rdmacm")]
            PROPOSAL => self.meeting = Some(meeting::proposed(self.proposal, payload)?),
            #[cfg(feature = "rdmacm")]
            LISTENER => meeting::listens(self.meeting.as_mut(), payload)?,
            _ => self.ended = self.write_error.take(),
        }
        self.received = kind;
        self.frame.resize(HEADER, 0);
        self.got = 0;
        Ok(())
    }
}

#[cfg(feature = "rdmacm")]
impl Exchange {
    /// Begins an exchange of a side whose device connects by `rdma_cm` only (iWARP). Needs the feature
    /// `rdmacm`.
    ///
    /// It has no [`peer`](Self::peer). When it is done for the first time,
    /// there is a [`meeting`](Self::meeting). Then both call [`listens_at`](Self::listens_at), and run it a
    /// second time. When they are connected by `rdma_cm`, they run it for [`ready`](Self::ready) or
    /// [`refuse`](Self::refuse).
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateData`] for more than [`MAX_PRIVATE_DATA`] bytes.
    #[doc(hidden)]
    pub fn by_manager(private_data: &[u8], side: Side) -> Result<Self, ExchangeError> {
        check_private_data(private_data)?;
        let proposal = Proposal::new(side);
        let out = frame::proposal(proposal.to_bytes(), private_data);
        let mut exchange = Self::with_output(PROPOSAL, out);
        exchange.proposal = Some(proposal);
        Ok(exchange)
    }

    /// Sends the address of this side's listener; `None` if this side does not listen. Needs the feature
    /// `rdmacm`.
    ///
    /// Once the exchange is done, the [`meeting`](Self::meeting) has that of the peer.
    #[doc(hidden)]
    pub fn listens_at(&mut self, listener: Option<SocketAddr>) {
        if self.until == PROPOSAL && self.ended.is_none() {
            self.until = LISTENER;
            let bytes = listener.map(meeting::address_bytes);
            let bytes: &[u8] = bytes.as_ref().map_or(&[], |bytes| bytes);
            self.out.extend(frame::listener(bytes));
        }
    }

    /// How the two connect, once the peer's proposal has arrived. Needs the feature `rdmacm`.
    #[must_use]
    #[doc(hidden)]
    pub const fn meeting(&self) -> Option<&Meeting> {
        self.meeting.as_ref()
    }

    /// Has the next [`io`](Self::io) read the peer's `READY` or its refusal, before this side has sent
    /// its own: for a side that waits for the peer in another way. Needs the feature `rdmacm`.
    #[doc(hidden)]
    pub fn read_ahead(&mut self) {
        if self.ended.is_none() {
            self.until = READY;
        }
    }
}
