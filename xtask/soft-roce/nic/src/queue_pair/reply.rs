//! Answers: acknowledgements, which are coalesced, data of reads, and answers to duplicates (9.7.5).

use super::{QueuePair, QueuePairState};
use crate::card::Card;
use crate::completion::Status;
use crate::memory::Access;
use crate::packet::{
    Aeth, Body, Header, NakCode, Place, Psn, Reth, Route, Syndrome, Transport, pad,
};
use crate::request::RemoteAddress;

/// An answer to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// A packet without data.
    Short(Psn, Body),
    Read(ReadReply),
}

/// The rest of an answer to a read; memory is read when a packet is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadReply {
    psn: Psn,
    msn: u32,
    at: RemoteAddress,
    remaining: u32,
    /// Whether a packet of it was sent.
    has_begun: bool,
}

/// A read or atomic that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    pub(super) first: Psn,
    /// PSNs that it took.
    pub(super) packets: u32,
    pub(super) done: Done,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Read(Reth),
    Atomic(u64),
}

impl Remembered {
    fn covers(&self, psn: Psn) -> bool {
        u32::try_from(psn.since(self.first)).is_ok_and(|index| index < self.packets)
    }
}

impl QueuePair {
    /// Answers a request that has been carried out already (9.7.4).
    pub(super) fn duplicate(&mut self, card: &Card, header: &Header) {
        let mut remembered = self.responder.remembered.iter();
        let remembered = remembered.find(|each| each.covers(header.psn));
        let remembered = remembered.map(|each| (each.first, each.done));
        match (header.body, remembered) {
            // C9-105: the latest acknowledgement, again.
            (Body::Send(..) | Body::Write(..), _) => {
                self.answer(self.responder.psn.previous(), Syndrome::ACK);
            }
            (Body::ReadRequest(reth), Some((first, Done::Read(original)))) => {
                // The same request, or the rest of it.
                let skip = u32::try_from(header.psn.since(first)).unwrap_or_default();
                let skip = u64::from(skip) * u64::from(self.mtu(card));
                let rest = u64::from(original.length).saturating_sub(skip);
                let is_same = reth.remote == original.remote.plus(skip);
                if is_same && u64::from(reth.length) <= rest {
                    self.answer_read_again(header.psn, &reth);
                }
            }
            (Body::CompareSwap(_) | Body::FetchAdd(_), Some((first, Done::Atomic(original))))
                if first == header.psn && self.has_room_for_replies() =>
            {
                self.answer_atomic(header.psn, original);
            }
            // Forgotten, or another request: dropped (class D).
            _ => {}
        }
    }

    /// Remembers a read or atomic, and forgets the oldest beyond `max_dest_rd_atomic`, as rxe does; a
    /// requester that has more outstanding may not see them answered again.
    pub(super) fn remember(&mut self, done: Remembered) {
        let room = usize::from(self.attributes.max_dest_rd_atomic);
        while self.responder.remembered.len() >= room.max(1) {
            self.responder.remembered.pop_front();
        }
        self.responder.remembered.push_back(done);
    }

    /// Whether another read or atomic can be answered. A peer that asks more than it may is not answered,
    /// so that what waits is bounded.
    pub(super) fn has_room_for_replies(&self) -> bool {
        self.responder.replies.len() < 16 + 4 * usize::from(self.attributes.max_dest_rd_atomic)
    }

    /// Acknowledges or refuses. An acknowledgement takes the place of one that has not been sent yet.
    pub(super) fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        let aeth = Aeth::new(syndrome, self.responder.msn);
        if let Some(Reply::Short(last, Body::Acknowledge(old))) = self.responder.replies.back_mut()
            && matches!(old.syndrome, Syndrome::Ack(_))
            && matches!(syndrome, Syndrome::Ack(_))
        {
            (*last, *old) = (psn, aeth);
            return;
        }
        // A refusal may go beyond the room for all else, within a bound of its own.
        let is_refusal = !matches!(syndrome, Syndrome::Ack(_));
        if self.has_room_for_replies() || is_refusal && self.responder.replies.len() < 2048 {
            let reply = Reply::Short(psn, Body::Acknowledge(aeth));
            self.responder.replies.push_back(reply);
        }
    }

    pub(super) fn answer_atomic(&mut self, psn: Psn, original: u64) {
        let aeth = Aeth::new(Syndrome::ACK, self.responder.msn);
        let reply = Reply::Short(psn, Body::AtomicAcknowledge(aeth, original));
        self.responder.replies.push_back(reply);
    }

    pub(super) fn answer_read(&mut self, psn: Psn, reth: &Reth) {
        self.responder.replies.push_back(Reply::Read(ReadReply {
            psn,
            msn: self.responder.msn,
            at: reth.remote,
            remaining: reth.length,
            has_begun: false,
        }));
    }

    /// Answers a read again, in the place of what is left of an earlier answer.
    fn answer_read_again(&mut self, psn: Psn, reth: &Reth) {
        let end = reth.remote.plus(reth.length.into());
        self.responder.replies.retain(|reply| match reply {
            Reply::Read(read) => {
                read.at.plus(read.remaining.into()) != end || read.psn.since(psn) < 0
            }
            _ => true,
        });
        if self.has_room_for_replies() {
            self.answer_read(psn, reth);
        }
    }

    /// Makes the packet of the next answer. In ERR, what was refused is still answered.
    pub(super) fn reply(&mut self, card: &mut Card, buffer: &mut Vec<u8>) -> Option<Route> {
        if matches!(self.state, QueuePairState::Reset | QueuePairState::Init) {
            return None;
        }
        let reply = *self.responder.replies.front()?;
        let (path, port) = (&self.attributes.path, card.profile.source_port);
        let Some(route) = card.gids.route(path, port) else {
            self.responder.replies.clear();
            return None;
        };
        let header = |body, psn| {
            let mut header = Header::new(Transport::Rc, body, self.attributes.dest_qp_num, psn);
            header.is_migrated = card.profile.is_migrated;
            header
        };
        let mut is_done = true;
        match reply {
            Reply::Short(psn, body) => header(body, psn).write(0, buffer),
            Reply::Read(read) => {
                let mtu = self.mtu(card);
                let place = Place::of(!read.has_begun, read.remaining <= mtu);
                let aeth = Aeth::new(Syndrome::ACK, read.msn);
                let aeth = (place != Place::Middle).then_some(aeth);
                let length = read.remaining.min(mtu);
                let bytes = usize::try_from(length).unwrap_or_default();
                header(Body::ReadResponse(place, aeth), read.psn).write(bytes, buffer);
                let start = buffer.len();
                buffer.resize(start + bytes, 0);
                let by = self.accessor(Access::REMOTE_READ);
                let found = card.memory.read(by, read.at, &mut buffer[start..]);
                if found.is_err() {
                    // The key was taken back, or the memory is gone, since the request came.
                    buffer.clear();
                    let refused = Syndrome::Nak(NakCode::RemoteAccessError);
                    let aeth = Aeth::new(refused, read.msn);
                    header(Body::Acknowledge(aeth), read.psn).write(0, buffer);
                    self.responder.replies.clear();
                    self.break_off(card, Status::REM_ACCESS_ERR);
                    return Some(route);
                }
                pad(bytes, buffer);
                is_done = place.ends();
                if let Some(Reply::Read(left)) = self.responder.replies.front_mut() {
                    left.psn = read.psn.plus(1);
                    left.at = read.at.plus(length.into());
                    left.remaining = read.remaining - length;
                    left.has_begun = true;
                }
            }
        }
        if is_done {
            self.responder.replies.pop_front();
        }
        Some(route)
    }
}
