//! A client's request, and how far its exchange has come.

use std::time::{Duration, Instant};

use verbs_core::codes::Gid;
use verbs_core::path::DatagramEndpoint;

use super::wire::{self, Message, Session};
use crate::exchange::{ExchangeError, PeerEndpoint};

/// A client that wants to connect, from [`Acceptor::next_request`](super::Acceptor::next_request).
#[derive(Clone, Debug)]
pub struct Request {
    id: RequestId,
    from: DatagramEndpoint,
    max_private_data: usize,
    peer: PeerEndpoint,
}

/// Identifies a request of one [`Acceptor`](super::Acceptor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub(super) u64);

impl Request {
    /// The number of the request.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// The datagram endpoint of the client.
    #[must_use]
    pub const fn from(&self) -> DatagramEndpoint {
        self.from
    }

    /// The endpoint to connect a queue pair to, and the client's private data.
    #[must_use]
    pub const fn peer(&self) -> &PeerEndpoint {
        &self.peer
    }

    /// The most bytes of private data that can be sent to this client.
    #[must_use]
    pub const fn max_private_data(&self) -> usize {
        self.max_private_data
    }
}

/// One client.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) from: DatagramEndpoint,
    pub(super) session: Session,
    pub(super) max_payload: u32,
    /// When its last datagram came, or its request was answered.
    pub(super) last_active: Instant,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// Nothing was done for it yet.
    Waiting(PeerEndpoint),
    /// The handshake is being done.
    Taken,
    /// ACCEPT was sent: this is it, unless it was withdrawn, and when it was first sent.
    Answered(Option<Vec<u8>>, Instant),
    /// READY has come, then. This is whether DONE has, too.
    Ready(Instant, bool),
    /// The client does not connect.
    Failed(ExchangeError),
    /// The same, before its request was taken.
    Gone,
}

/// A client that has been silent for so long is gone: it repeats its message ten times in a second.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// How long a client that was answered may be silent while another waits. It may take twice that to
/// confirm, since one that repeats its REQUEST may have lost the ACCEPT, or may never confirm.
const SILENCE_WHILE_OTHERS_WAIT: Duration = Duration::from_secs(1);

/// How long DONE is waited for. Meanwhile the client sends READY four times if no CONFIRM arrives.
const LINGER: Duration = Duration::from_millis(250);

/// The port that a datagram is from. Its queue pairs are not told apart: a peer can have any number of them.
pub(super) fn source(from: &DatagramEndpoint) -> Result<Gid, u16> {
    from.gid().ok_or_else(|| from.lid())
}

pub(super) const fn silent() -> ExchangeError {
    let (what, after) = ("answer", None);
    ExchangeError::TimedOut { what, after }
}

impl Exchange {
    pub(super) const fn waits(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// One that has failed is kept only until its outcome is taken.
    pub(super) const fn has_a_place(&self) -> bool {
        !matches!(self.state, State::Failed(_))
    }

    pub(super) const fn is(&self, id: RequestId) -> bool {
        self.session.server == id.0
    }

    pub(super) fn take(&mut self) -> Option<Request> {
        let State::Waiting(peer) = &mut self.state else {
            return None;
        };
        let peer = PeerEndpoint {
            endpoint: peer.endpoint,
            private_data: std::mem::take(&mut peer.private_data),
        };
        self.state = State::Taken;
        Some(Request {
            id: RequestId(self.session.server),
            from: self.from,
            max_private_data: wire::max_of_accept(self.max_payload),
            peer,
        })
    }

    /// When it is over unless something comes.
    pub(super) fn due(&self, others_wait: bool) -> Option<Instant> {
        let (since, patience) = match self.state {
            State::Answered(_, at) if others_wait => (
                self.last_active
                    .min(at.checked_add(SILENCE_WHILE_OTHERS_WAIT).unwrap_or(at)),
                SILENCE_WHILE_OTHERS_WAIT,
            ),
            State::Answered(..) => (self.last_active, SILENCE),
            State::Ready(at, false) => (at, LINGER),
            _ => return None,
        };
        // A clock that ends before has reached every time.
        Some(since.checked_add(patience).unwrap_or(since))
    }

    pub(super) fn received(
        &mut self,
        session: Session,
        message: Message<'_>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        self.last_active = self.last_active.max(now);
        let is_certain = session == self.session;
        match (&mut self.state, message) {
            (State::Answered(accept, _), Message::Request { .. }) => accept.clone(),
            (State::Answered(..), Message::Ready) if is_certain => {
                self.state = State::Ready(now, false);
                Some(wire::confirm(session))
            }
            (State::Ready(..), Message::Ready) if is_certain => Some(wire::confirm(session)),
            (State::Failed(_), Message::Ready) => Some(wire::unknown(session)),
            (State::Ready(_, done), Message::Done) if is_certain => {
                *done = true;
                None
            }
            (State::Waiting(_), Message::Refused(_)) => {
                self.state = State::Gone;
                None
            }
            (_, Message::Refused(error)) => {
                self.state = State::Failed(error);
                None
            }
            _ => None,
        }
    }
}
