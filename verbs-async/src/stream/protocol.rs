//! The rules of the protocol: which message may be sent, and what a received one means.
//!
//! The module above explains them. *Invariant* of each direction: these add up to `depth`: the DATA
//! messages that the sender has credits for, those in flight, those whose blocks the reader holds,
//! and those whose blocks are posted again but not yet credited to the sender.

use super::error::StreamError;
use super::wire::{Header, Kind, Settings};

/// One side of a stream.
#[derive(Debug, Default)]
pub(super) struct Protocol {
    ours: Settings,
    /// From the peer's HELLO.
    theirs: Option<Settings>,
    /// DATA messages that may be sent.
    credits: u16,
    /// The peer has not confirmed the last HELLO or CREDIT of this side.
    unconfirmed: bool,
    /// This side has not confirmed that of the peer.
    confirmation_due: bool,
    /// DATA messages whose blocks the reader holds.
    held: u16,
    /// DATA messages whose blocks are posted again, and not yet credited to the peer.
    owed: u16,
    fin_sent: bool,
    /// Whether the peer's reader has read, or can read, everything before the FIN.
    fin_seen: Option<bool>,
    fin_received: bool,
    /// The peer's FIN has to be answered.
    answer_due: bool,
    /// The reader was dropped: DATA is discarded.
    discards: bool,
    /// DATA was discarded.
    lost: bool,
    /// CLOSE or RESET was sent: nothing may follow.
    is_closed: bool,
    /// CLOSE was received: the peer receives nothing more.
    peer_closed: bool,
}

/// The kind of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes for the reader, which holds the block until [`Protocol::consumed`].
    Data,
    /// It has been handled: its block can be posted again.
    Control,
}

impl Protocol {
    /// A new stream, whose HELLO is to be sent.
    pub(super) fn new(ours: Settings) -> Self {
        Self {
            ours,
            // The HELLO, which is sent first.
            unconfirmed: true,
            ..Self::default()
        }
    }

    pub(super) fn hello() -> u32 {
        let (kind, confirms, credits) = (Kind::Hello, false, 0);
        Header {
            kind,
            confirms,
            credits,
        }
        .encode()
    }

    /// Handles a message.
    pub(super) fn receive(
        &mut self,
        imm_data: Option<u32>,
        payload: &[u8],
    ) -> Result<Received, StreamError> {
        let header = imm_data.and_then(Header::decode);
        let Some(theirs) = self.theirs else {
            return self.receive_hello(header, payload);
        };
        let header = header.ok_or(StreamError::Protocol("a message of an unknown kind"))?;
        if self.peer_closed {
            return Err(StreamError::Protocol("a message after CLOSE"));
        }
        if header.confirms && !std::mem::take(&mut self.unconfirmed) {
            return Err(StreamError::Protocol(
                "a confirmation of a message that was not sent",
            ));
        }
        if header.credits > theirs.depth - self.credits {
            return Err(StreamError::Protocol("more credits than its depth"));
        }
        self.credits += header.credits;
        if header.kind == Kind::Data {
            return self.receive_data(payload);
        }
        if !payload.is_empty() {
            return Err(StreamError::Protocol("bytes in a message without data"));
        }
        match header.kind {
            Kind::Credit if self.confirmation_due || header.credits == 0 => {
                return Err(StreamError::Protocol("an unexpected CREDIT"));
            }
            Kind::Credit => self.confirmation_due = true,
            Kind::Fin if self.fin_received => {
                return Err(StreamError::Protocol("a second FIN"));
            }
            Kind::Fin => {
                self.fin_received = true;
                self.answer_due = true;
            }
            Kind::FinSeen | Kind::FinLost if !self.fin_sent || self.fin_seen.is_some() => {
                return Err(StreamError::Protocol(
                    "an answer to a FIN that was not sent",
                ));
            }
            Kind::FinSeen => self.fin_seen = Some(true),
            Kind::FinLost => self.fin_seen = Some(false),
            Kind::Close => {
                self.fin_received = true;
                self.peer_closed = true;
            }
            Kind::Reset => return Err(StreamError::Reset),
            Kind::Hello | Kind::Data => return Err(StreamError::Protocol("a second HELLO")),
        }
        Ok(Received::Control)
    }

    fn receive_hello(
        &mut self,
        header: Option<Header>,
        payload: &[u8],
    ) -> Result<Received, StreamError> {
        match header {
            Some(Header {
                kind: Kind::Hello,
                confirms: false,
                credits: 0,
            }) => {}
            _ => return Err(StreamError::NotAStream),
        }
        let theirs = Settings::decode(payload)?;
        self.theirs = Some(theirs);
        self.credits = theirs.depth;
        self.confirmation_due = true;
        Ok(Received::Control)
    }

    fn receive_data(&mut self, payload: &[u8]) -> Result<Received, StreamError> {
        if payload.is_empty() {
            return Err(StreamError::Protocol("a DATA message without bytes"));
        }
        if self.fin_received {
            return Err(StreamError::Protocol("data after the end"));
        }
        if self.held + self.owed >= self.ours.depth {
            return Err(StreamError::Protocol("more data than it has credits for"));
        }
        self.held += 1;
        if self.discards {
            self.lost = true;
            self.consumed();
            return Ok(Received::Control);
        }
        Ok(Received::Data)
    }

    /// The reader has read a DATA message, and its block is posted again.
    pub(super) const fn consumed(&mut self) {
        self.held -= 1;
        self.owed += 1;
    }

    /// The reader is dropped. `unread`: whether something had arrived and was not read.
    pub(super) const fn discard(&mut self, unread: bool) {
        self.discards = true;
        self.lost |= unread;
    }

    /// Whether short messages should be copied, so that their blocks can be posted again.
    pub(super) const fn is_short_of_blocks(&self) -> bool {
        self.held > self.ours.depth / 2
    }

    /// The longest DATA message; `None` before the peer's HELLO.
    pub(super) fn max_len(&self) -> Option<usize> {
        let len = self.theirs?.block_len.min(self.ours.block_len);
        Some(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Whether a DATA message may be sent.
    pub(super) const fn may_send_data(&self) -> bool {
        self.credits > 0 && !self.fin_sent && !self.is_closed && !self.peer_closed
    }

    /// The header of a DATA message, which [may](Self::may_send_data) be sent.
    pub(super) fn data(&mut self) -> u32 {
        self.credits -= 1;
        self.header(Kind::Data)
    }

    /// A message without data that is due: the answer to a FIN, or a CREDIT once the credits owed
    /// are half of the depth.
    pub(super) fn control(&mut self) -> Option<u32> {
        if self.is_closed || self.peer_closed {
            return None;
        }
        if std::mem::take(&mut self.answer_due) {
            let kind = if self.lost {
                Kind::FinLost
            } else {
                Kind::FinSeen
            };
            return Some(self.header(kind));
        }
        if self.unconfirmed || self.fin_received || self.owed < self.ours.depth.div_ceil(2) {
            return None;
        }
        self.unconfirmed = true;
        Some(self.header(Kind::Credit))
    }

    /// A FIN, once. `None` if the peer would not receive it.
    pub(super) fn fin(&mut self) -> Option<u32> {
        if self.fin_sent || self.is_closed || self.peer_closed {
            return None;
        }
        self.fin_sent = true;
        Some(self.header(Kind::Fin))
    }

    /// The last message of a dropped stream. `None` if the peer needs none.
    pub(super) fn close(&mut self) -> Option<u32> {
        if self.is_closed || self.peer_closed || self.is_ended() {
            return None;
        }
        let kind = if self.lost { Kind::Reset } else { Kind::Close };
        Some(self.last(kind))
    }

    /// The last message of an aborted stream.
    pub(super) fn reset(&mut self) -> Option<u32> {
        let was_closed = self.is_closed || self.peer_closed;
        (!was_closed).then(|| self.last(Kind::Reset))
    }

    fn last(&mut self, kind: Kind) -> u32 {
        let last = self.header(kind);
        self.is_closed = true;
        last
    }

    pub(super) const fn fin_was_sent(&self) -> bool {
        self.fin_sent
    }

    /// Whether all data of the peer have been received.
    pub(super) const fn fin_was_received(&self) -> bool {
        self.fin_received
    }

    /// Whether each side has confirmed the end of the other.
    const fn is_ended(&self) -> bool {
        matches!(self.fin_seen, Some(true)) && self.fin_received && !self.answer_due
    }

    /// Whether the peer has dropped its stream.
    pub(super) const fn peer_has_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether the peer's reader has read, or can read, everything sent. `None` while that is not
    /// known.
    pub(super) fn is_seen(&self) -> Option<bool> {
        if self.peer_closed && self.fin_seen.is_none() {
            // CLOSE returned the credits of everything that was read. If data were not read, either it
            // would have been a RESET, or credits are missing.
            return Some(
                self.theirs
                    .is_none_or(|theirs| theirs.depth == self.credits),
            );
        }
        self.fin_seen
    }

    /// The immediate of a message, with all credits owed.
    fn header(&mut self, kind: Kind) -> u32 {
        let header = Header {
            kind,
            confirms: std::mem::take(&mut self.confirmation_due),
            credits: std::mem::take(&mut self.owed),
        };
        header.encode()
    }
}
