//! What may be said and what may be heard: the protocol, without what carries it.
//!
//! See the module above for what it promises and why. *Invariant*, of each direction: the data
//! messages that the sender may still send, those on their way, those that the reader has not
//! consumed, and those whose blocks are posted again without the sender being told, are `depth`.

use super::error::StreamError;
use super::wire::{Header, Kind, Settings};

/// One side of a stream.
#[derive(Debug)]
pub(super) struct Protocol {
    ours: Settings,
    /// From the peer's hello.
    theirs: Option<Settings>,
    /// Data messages that may be sent.
    credits: u16,
    /// The peer has not said yet that it heard our last hello or credit message.
    unheard: bool,
    /// We have not said yet that we heard the peer's.
    owes_heard: bool,
    /// Data messages that came and are not consumed.
    held: u16,
    /// Data messages that were consumed, and the peer does not know.
    owed: u16,
    /// There will be no more data: from here, and from there.
    fin_sent: bool,
    fin_heard: bool,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Bytes for the reader.
    Data,
    /// Something that is dealt with: its block can be posted again.
    Nothing,
}

impl Protocol {
    /// Begins with a hello, which is to be sent.
    pub(super) const fn new(ours: Settings) -> Self {
        Self {
            ours,
            theirs: None,
            credits: 0,
            unheard: true,
            owes_heard: false,
            held: 0,
            owed: 0,
            fin_sent: false,
            fin_heard: false,
        }
    }

    pub(super) fn hello(&self) -> u32 {
        let (kind, heard, credits) = (Kind::Hello, false, 0);
        Header {
            kind,
            heard,
            credits,
        }
        .encode()
    }

    /// Takes in a message.
    pub(super) fn hear(
        &mut self,
        imm_data: Option<u32>,
        payload: &[u8],
    ) -> Result<Heard, StreamError> {
        let header = imm_data.and_then(Header::decode);
        let Some(theirs) = self.theirs else {
            return self.hear_hello(header, payload);
        };
        let header = header.ok_or(StreamError::Protocol("a message of no known kind"))?;
        if header.heard && !std::mem::take(&mut self.unheard) {
            return Err(StreamError::Protocol("it heard what was not said"));
        }
        if header.credits > theirs.depth - self.credits {
            return Err(StreamError::Protocol("more credits than it has receives"));
        }
        self.credits += header.credits;
        if header.kind == Kind::Data {
            return self.hear_data(payload);
        }
        if !payload.is_empty() {
            return Err(StreamError::Protocol("bytes in a message that has none"));
        }
        match header.kind {
            Kind::Credit if self.owes_heard || header.credits == 0 => {
                return Err(StreamError::Protocol("credits out of turn"));
            }
            Kind::Credit => self.owes_heard = true,
            Kind::Fin if self.fin_heard => {
                return Err(StreamError::Protocol("a second end of its data"));
            }
            Kind::Fin => self.fin_heard = true,
            Kind::Reset => return Err(StreamError::Reset),
            Kind::Hello | Kind::Data => return Err(StreamError::Protocol("a second hello")),
        }
        Ok(Heard::Nothing)
    }

    fn hear_hello(&mut self, header: Option<Header>, payload: &[u8]) -> Result<Heard, StreamError> {
        match header {
            Some(Header {
                kind: Kind::Hello,
                heard: false,
                credits: 0,
            }) => {}
            _ => return Err(StreamError::NotAStream),
        }
        let theirs = Settings::decode(payload)?;
        self.theirs = Some(theirs);
        self.credits = theirs.depth;
        self.owes_heard = true;
        Ok(Heard::Nothing)
    }

    fn hear_data(&mut self, payload: &[u8]) -> Result<Heard, StreamError> {
        if payload.is_empty() {
            return Err(StreamError::Protocol("data without bytes"));
        }
        if self.fin_heard {
            return Err(StreamError::Protocol("data after its end"));
        }
        if self.held + self.owed >= self.ours.depth {
            return Err(StreamError::Protocol("more data than it has credits for"));
        }
        self.held += 1;
        Ok(Heard::Data)
    }

    /// The reader is done with a data message, and its block is posted again.
    pub(super) const fn consumed(&mut self) {
        self.held -= 1;
        self.owed += 1;
    }

    /// How long a data message can be now; 0 if none can be sent.
    pub(super) fn room(&self) -> usize {
        match self.theirs {
            Some(theirs) if self.credits > 0 && !self.fin_sent => {
                let len = theirs.block_len.min(self.ours.block_len);
                usize::try_from(len).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }

    /// A data message is sent, where there is [room](Self::room) for one.
    pub(super) fn data(&mut self) -> u32 {
        self.credits -= 1;
        self.say(Kind::Data)
    }

    /// A credit message, if one is to be sent: half of the blocks are owed.
    pub(super) fn credit(&mut self) -> Option<u32> {
        if self.unheard || self.fin_heard || self.owed < self.ours.depth.div_ceil(2) {
            return None;
        }
        self.unheard = true;
        Some(self.say(Kind::Credit))
    }

    /// The end of the data, once.
    pub(super) fn fin(&mut self) -> u32 {
        self.fin_sent = true;
        self.say(Kind::Fin)
    }

    /// The stream is dropped. Nothing can be said after it.
    pub(super) fn reset(&mut self) -> u32 {
        self.say(Kind::Reset)
    }

    pub(super) const fn fin_was_sent(&self) -> bool {
        self.fin_sent
    }

    pub(super) const fn fin_was_heard(&self) -> bool {
        self.fin_heard
    }

    /// Whatever is said takes what is owed with it.
    fn say(&mut self, kind: Kind) -> u32 {
        let header = Header {
            kind,
            heard: std::mem::take(&mut self.owes_heard),
            credits: std::mem::take(&mut self.owed),
        };
        header.encode()
    }
}
