//! Connecting by `rdma_cm`: a machine that never waits.

use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use verbs_core::rdmacm::{
    Accepting, Answer, ConnectRequest, Connection, Establishing, Listener, Message, Pending,
};

use super::attempts::Attempts;
use super::cm_request::{AGAIN, Asking, Data, Waiting, failure, polled};
use super::deadline::Deadline;
use super::options::Connect;
use super::prepared::{Connected, PreparedChannel};
use crate::error::Result;
use crate::exchange::ExchangeError;
use crate::exchange::addresses::listener;
use crate::exchange::cm::{explain, refused, to_stranger};
use crate::exchange::meeting::Meeting;
#[expect(unused_imports, reason = "named in documentation")]
use crate::{error::Error, exchange::Exchange};

/// One side of a connection by `rdma_cm`, which never waits for the peer. Needs the feature `rdmacm`.
///
/// It is for a layer that waits in its own way; [`PreparedChannel::connect`] and
/// [`accept`](PreparedChannel::accept) wait themselves. Each call of [`step`](Self::step) goes on as far as
/// it can. It may block in the kernel for a moment, on iWARP for longer, and so may a drop.
///
/// ```no_run
/// # use std::time::{Duration, Instant};
/// # use verbs_channel::{Connect, PreparedChannel, Result};
/// # use verbs_channel::__private::{CmExchange, CmStep};
/// # fn example(prepared: PreparedChannel, wait: impl Fn(Option<std::os::fd::BorrowedFd<'_>>, Instant)) -> Result<()> {
/// let options = Connect::within(Duration::from_secs(5));
/// let address = "192.0.2.1:7471".parse().expect("an address");
/// let mut exchange = CmExchange::connect(prepared, vec![address], &options, Instant::now())?;
/// let mut connected = None;
/// let connection = loop {
///     match exchange.step()? {
///         // Until the descriptor is readable, or this instant. If there is none, this sleeps until then.
///         CmStep::Wait(until) => wait(exchange.poll_fd(), until),
///         CmStep::Connected(channel) => {
///             connected = Some(channel);
///             exchange.ready();
///         }
///         CmStep::Established(connection) => break connection,
///     }
/// };
/// let mut channel = connected.expect("it was connected before");
/// channel.watch_connection(connection)?;
/// # Ok(())
/// # }
/// ```
pub struct CmExchange<T: Connected> {
    stage: Stage<T>,
    deadline: Deadline,
    data: Data,
    peer: Option<SocketAddr>,
    pub(super) theirs: Vec<u8>,
    // The step that a late peer has not taken.
    late: &'static str,
}

/// The next step of a [`CmExchange`].
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is no other step")]
pub enum CmStep<T> {
    /// Call [`step`](CmExchange::step) again when [`poll_fd`](CmExchange::poll_fd) is readable, or at this
    /// instant.
    Wait(Instant),
    /// The queue pair is connected. Call [`ready`](CmExchange::ready), after which the peer may send, or
    /// [`refuse`](CmExchange::refuse). The [prepared receives](PreparedChannel::start_receive) of a channel that
    /// is in no group have been posted.
    Connected(T),
    /// The peer is connected, too. The connection ends when this is dropped.
    Established(Connection),
}

enum Stage<T: Connected> {
    /// Asks one address after another.
    Asking(Box<Asking<T>>),
    Listening(Listener, PreparedChannel<T>),
    Requested(Box<ConnectRequest>, PreparedChannel<T>),
    /// Whether it may go on is the caller's decision.
    Answered(Establishing),
    Admitted(Accepting),
    Establishing(Establishing),
    Accepting(Accepting),
    Confirming(Pending<Connection>),
    Over,
}

/// How many strangers are rejected before the deadline is looked at again.
const AT_ONCE: usize = 16;

impl<T: Connected> CmExchange<T> {
    /// Connects to the first of the peer's addresses that accepts, within the timeout from `begun` on. While one of
    /// them has no listener yet, all are tried again.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateDataBeyondManager`].
    pub fn connect(
        prepared: PreparedChannel<T>,
        addresses: Vec<SocketAddr>,
        options: &Connect,
        begun: Instant,
    ) -> Result<Self> {
        let data = Data::new(options)?;
        let deadline = Deadline::since(begun, options.timeout());
        let asking = Asking::new(prepared, addresses, deadline);
        Ok(Self::new(Stage::Asking(Box::new(asking)), deadline, data))
    }

    /// Accepts a peer that asks for a connection.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateDataBeyondManager`].
    pub fn accept(
        prepared: PreparedChannel<T>,
        request: ConnectRequest,
        options: &Connect,
        begun: Instant,
    ) -> Result<Self> {
        let data = Data::new(options)?;
        let deadline = Deadline::since(begun, options.timeout());
        let mut this = Self::new(Stage::Over, deadline, data);
        this.peer = request.peer_addr();
        this.late = "confirm";
        this.stage = Stage::Requested(Box::new(request), prepared);
        Ok(this)
    }

    /// Connects to the peer of an [`Exchange`] over a stream with this local address, once that has a
    /// [`meeting`](Exchange::meeting).
    ///
    /// Pass the exchange [where this side listens](Self::listens_at), and run it. Then this side
    /// [meets](Self::meets) the peer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Manager`], with [`NoLocalAddr`](verbs_core::Error::NoLocalAddr) if this side is to listen
    /// and its device has no address.
    pub fn meet(
        prepared: PreparedChannel<T>,
        meeting: &Meeting,
        local: Option<SocketAddr>,
        timeout: Duration,
        begun: Instant,
    ) -> Result<Self> {
        Self::meet_before(prepared, meeting, local, Deadline::since(begun, timeout))
    }

    pub(super) fn meet_before(
        prepared: PreparedChannel<T>,
        meeting: &Meeting,
        local: Option<SocketAddr>,
        deadline: Deadline,
    ) -> Result<Self> {
        let context = prepared.context().clone();
        let stage = if meeting.listens {
            Stage::Listening(listener(&context, local)?, prepared)
        } else {
            let mut asking = Asking::new(prepared, Vec::new(), deadline);
            asking.from = Some((context, local));
            asking.again = AGAIN;
            Stage::Asking(Box::new(asking))
        };
        Ok(Self::new(stage, deadline, Data::Meeting(meeting.clone())))
    }

    const fn new(stage: Stage<T>, deadline: Deadline, data: Data) -> Self {
        Self {
            stage,
            deadline,
            data,
            peer: None,
            theirs: Vec::new(),
            late: "answer",
        }
    }

    /// The address at which this side of a [`meet`](Self::meet) listens; `None` if the peer does.
    #[must_use]
    pub fn listens_at(&self) -> Option<SocketAddr> {
        match &self.stage {
            Stage::Listening(listener, _) => listener.local_addr(),
            _ => None,
        }
    }

    /// The peer of a [`meet`](Self::meet) listens there; `None` if this side does.
    pub fn meets(&mut self, listener: Option<SocketAddr>) {
        if let Stage::Asking(asking) = &mut self.stage {
            asking.attempts = Attempts::once(listener, self.deadline);
        }
    }

    /// Goes on as far as possible without waiting for the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]: the peer rejected the connection (with its reason), did not answer in time, or
    /// uses another protocol; its address is that of [another device](ExchangeError::OtherDevice); or [a step of
    /// `rdma_cm`](ExchangeError::Manager) failed. [`Post`](crate::RejectReason::Post) if the driver rejects a prepared receive.
    /// The exchange is over, and the peer is rejected if it has asked for the connection.
    pub fn step(&mut self) -> Result<CmStep<T>> {
        loop {
            let peer = self.peer;
            let failed = |error| failure(peer, explain(error, self.deadline.timeout()));
            match mem::replace(&mut self.stage, Stage::Over) {
                Stage::Asking(mut asking) => match asking.step(&self.data, self.deadline) {
                    Ok(Ok((answer, address))) => {
                        return self.answered(answer, address, asking.prepared);
                    }
                    Ok(Err(until)) => {
                        self.stage = Stage::Asking(asking);
                        return Ok(CmStep::Wait(until));
                    }
                    Err(error) => {
                        // It ends with this: that may take seconds on iWARP, which must not delay the error.
                        self.stage = Stage::Asking(asking);
                        return Err(error);
                    }
                },
                Stage::Listening(mut listener, prepared) => {
                    match self.next_request(&mut listener).map_err(failed)? {
                        Some(request) => self.stage = Stage::Requested(Box::new(request), prepared),
                        None => {
                            self.stage = Stage::Listening(listener, prepared);
                            return self.wait("connect");
                        }
                    }
                }
                Stage::Requested(request, prepared) => return self.requested(*request, prepared),
                Stage::Establishing(establishing) => {
                    let connection = establishing.establish().map_err(failed)?;
                    return Ok(CmStep::Established(connection));
                }
                Stage::Accepting(accepting) => {
                    let answer = self.data.answer()?;
                    let confirming = accepting.accept(Message::raw(&answer)).map_err(failed)?;
                    self.stage = Stage::Confirming(confirming);
                }
                Stage::Confirming(confirming) => {
                    return match polled(confirming).map_err(failed)? {
                        Ok(connection) => Ok(CmStep::Established(connection)),
                        Err(confirming) => {
                            self.stage = Stage::Confirming(confirming);
                            self.wait(self.late)
                        }
                    };
                }
                stage @ (Stage::Answered(_) | Stage::Admitted(_)) => {
                    self.stage = stage;
                    return Ok(CmStep::Wait(self.deadline.at()));
                }
                Stage::Over => return Err(ExchangeError::Over.into()),
            }
        }
    }

    /// A descriptor that is readable when [`step`](Self::step) can go on; `None` if only time has to pass.
    #[must_use]
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Asking(asking) => match &asking.wait {
                Waiting::Address(pending) => pending.poll_fd(),
                Waiting::Route(pending) => pending.poll_fd(),
                Waiting::Answer(pending) => pending.poll_fd(),
                Waiting::Begin => None,
            },
            Stage::Listening(listener, _) => Some(listener.as_fd()),
            Stage::Confirming(pending) => pending.poll_fd(),
            _ => None,
        }
    }

    /// Goes on after [`CmStep::Connected`]: the peer may send.
    pub fn ready(&mut self) {
        self.stage = match mem::replace(&mut self.stage, Stage::Over) {
            Stage::Answered(establishing) => Stage::Establishing(establishing),
            Stage::Admitted(accepting) => Stage::Accepting(accepting),
            stage => stage,
        };
    }

    /// Rejects the peer after [`CmStep::Connected`], in place of [`ready`](Self::ready): a peer that has asked for
    /// the connection is sent the reason. One that has accepted notices only that the connection ended.
    pub fn refuse(&mut self, why: &(dyn std::error::Error + 'static)) {
        if let Stage::Admitted(accepting) = mem::replace(&mut self.stage, Stage::Over) {
            // Best effort: without the reason the peer is rejected, too.
            drop(accepting.reject(Message::raw(&refused(why))));
        }
    }

    /// Data of the peer's request or answer, once it was connected to.
    #[must_use]
    pub fn into_private_data(self) -> Vec<u8> {
        self.theirs
    }

    /// The peer's address, once it is known.
    #[must_use]
    pub const fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    fn wait(&self, what: &'static str) -> Result<CmStep<T>> {
        match self.deadline.left() {
            Some(_) => Ok(CmStep::Wait(self.deadline.at())),
            None => {
                let after = Some(self.deadline.timeout());
                Err(failure(self.peer, ExchangeError::TimedOut { what, after }))
            }
        }
    }

    /// A peer has accepted.
    fn answered(
        &mut self,
        answer: Answer,
        address: SocketAddr,
        prepared: PreparedChannel<T>,
    ) -> Result<CmStep<T>> {
        self.peer = Some(address);
        // Before the peer can send: dropping the answer ends the connection.
        let theirs = match &self.data {
            Data::Meeting(meeting) => meeting.check_answer(answer.private_data()),
            _ => Ok(()),
        };
        let theirs = theirs.and_then(|()| self.data.theirs(answer.private_data()));
        self.theirs = theirs.map_err(|error| failure(self.peer, error))?;
        let (qp, rest, receives) = prepared.into_parts();
        let (qp, establishing) = answer.connect(qp)?;
        let connected = T::assemble(qp, rest, receives)?;
        self.stage = Stage::Answered(establishing);
        Ok(CmStep::Connected(connected))
    }

    /// A request of the peer at the end of the stream. Others are rejected; after [some](AT_ONCE) the
    /// deadline is looked at, as strangers may come without end.
    fn next_request(
        &self,
        listener: &mut Listener,
    ) -> Result<Option<ConnectRequest>, verbs_core::Error> {
        for _ in 0..AT_ONCE {
            let Some(request) = listener.poll_request()? else {
                break;
            };
            let come = request.private_data();
            if matches!(&self.data, Data::Meeting(meeting) if meeting.is_request(come)) {
                return Ok(Some(request));
            }
            // Best effort: without the reason a stranger is rejected, too.
            drop(request.reject(Message::raw(&to_stranger())));
        }
        Ok(None)
    }

    /// A peer asks for the connection.
    fn requested(
        &mut self,
        request: ConnectRequest,
        prepared: PreparedChannel<T>,
    ) -> Result<CmStep<T>> {
        self.peer = request.peer_addr();
        let theirs = self.data.theirs(request.private_data());
        let theirs = theirs.and_then(|theirs| {
            prepared.check_device(&request.device_name())?;
            Ok(theirs)
        });
        self.theirs = match theirs {
            Ok(theirs) => theirs,
            Err(error) => {
                reject(request, &error);
                return Err(failure(self.peer, error));
            }
        };
        let (qp, rest, receives) = prepared.into_parts();
        let (qp, accepting) = request.connect(qp).map_err(|rejected| {
            let (error, request) = rejected.into_parts();
            reject(request, &error);
            failure(self.peer, explain(error, Duration::ZERO))
        })?;
        self.stage = Stage::Admitted(accepting);
        match T::assemble(qp, rest, receives) {
            Ok(connected) => Ok(CmStep::Connected(connected)),
            Err(error) => {
                self.refuse(&error);
                Err(error)
            }
        }
    }
}

impl<T: Connected> fmt::Debug for CmExchange<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CmExchange").field(&self.peer).finish()
    }
}

/// Rejects a request, with the reason.
pub(super) fn reject(request: ConnectRequest, why: &(dyn std::error::Error + 'static)) {
    // Best effort: without the reason the peer is rejected, too.
    drop(request.reject(Message::raw(&refused(why))));
}
