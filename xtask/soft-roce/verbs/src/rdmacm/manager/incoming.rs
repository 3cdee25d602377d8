//! Messages of peers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use soft_nic::{AddressVector, ManagementDatagram, Route};

use super::outgoing::service_reply;
use super::{
    Endpoint, FOUND, Manager, NO_SERVICE, Options, Peer, Sink, Space, Stage, UNSUPPORTED, is_any,
    response_timeout,
};
use crate::abi::connection::rdma_conn_param;
use crate::errno::Errno;
use crate::rdmacm::events::{Arrived, EventKind};
use crate::rdmacm::message::{Addresses, Kind, Message};

/// A peer that asks for more time gets 69 s at most, as the kernel's asks for.
const MOST_PATIENT: u8 = 24;

impl Manager {
    /// Takes a datagram that has come to a card.
    pub(crate) fn receive(
        &mut self,
        side: usize,
        now: Duration,
        route: &Route,
        datagram: ManagementDatagram,
    ) {
        let Some(message) = Message::parse(datagram) else {
            return;
        };
        // Messages that fit no endpoint are dropped.
        let _dropped = match message.kind {
            Kind::Request | Kind::ServiceRequest => self.asked(side, route, &message),
            Kind::DisconnectRequest => self.left(side, route, &message),
            kind => {
                let number = self.answered_by(route, &message);
                number.and_then(|number| self.answered(number, now, kind, &message))
            }
        };
    }

    /// The endpoint that a peer's message is an answer to.
    fn answered_by(&self, route: &Route, message: &Message) -> Result<u32, Errno> {
        let (space, place) = match message.kind {
            Kind::ServiceReply => (Space::Datagrams, 0),
            _ => (Space::Connections, 4),
        };
        let number = message.u32(place);
        let is_peer = |endpoint: &Endpoint| {
            let Peer { path, number, .. } = endpoint.peer;
            // A service has none.
            let is_number = number == 0 || number == message.u32(0) || space == Space::Datagrams;
            (endpoint.space, path.destination) == (space, route.source) && is_number
        };
        let named = self.endpoints.get(&number).filter(|it| is_peer(it));
        if named.is_some() {
            return Ok(number);
        }
        // One that gave up before it had an answer knows its own number only.
        let gave_up = message.kind == Kind::Rejection && number == 0;
        let mut all = self.endpoints.iter();
        let found = all.find(|(_, it)| gave_up && it.is_of(route.source, message.u32(0)));
        found.map(|(number, _)| *number).ok_or(libc::ENOENT)
    }

    fn answered(
        &mut self,
        number: u32,
        now: Duration,
        kind: Kind,
        message: &Message,
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        let data = message.private_data().to_vec();
        match (kind, endpoint.stage) {
            (Kind::Reply, Stage::Requesting) => {
                endpoint.peer.number = message.u32(0);
                endpoint.peer.qp_num = message.u24(12);
                endpoint.peer.psn = message.u24(20);
                let own = &mut endpoint.own;
                [own.initiator_depth, own.responder_resources] = message.bytes(24);
                own.rnr_retry_count = message.byte(27) >> 5;
                let param = rdma_conn_param {
                    qp_num: endpoint.peer.qp_num,
                    srq: message.byte(27) >> 4 & 1,
                    ..*own
                };
                (endpoint.stage, endpoint.repeat) = (Stage::Answered, None);
                endpoint.sent = None;
                self.announce_with(number, EventKind::CONNECT_RESPONSE, 0, |event| {
                    (event.param, event.data) = (param, data);
                })
            }
            // The answer to a reply was lost.
            (Kind::Reply, Stage::Established) => {
                let ready = endpoint.message(number, Kind::Ready);
                self.tell(number, ready);
                Ok(())
            }
            (Kind::Ready, Stage::Replied) => {
                (endpoint.stage, endpoint.repeat) = (Stage::Established, None);
                self.announce(number, EventKind::ESTABLISHED, 0)
            }
            (Kind::Receipt, Stage::Requesting | Stage::Replied) => {
                let code = (message.byte(9) >> 3).min(MOST_PATIENT);
                if let Some(repeat) = &mut endpoint.repeat
                    && !repeat.is_late
                {
                    repeat.at = repeat.at.max(now + response_timeout(code));
                    repeat.is_late = true;
                }
                Ok(())
            }
            (
                Kind::Rejection,
                Stage::Requesting | Stage::Requested | Stage::Answered | Stage::Replied,
            ) => {
                (endpoint.stage, endpoint.repeat) = (Stage::Over, None);
                let reason = i32::from(u16::from_be_bytes(message.bytes(10)));
                self.announce_with(number, EventKind::REJECTED, reason, |event| {
                    event.data = data;
                })
            }
            (Kind::DisconnectReply, Stage::Leaving) => {
                (endpoint.stage, endpoint.repeat) = (Stage::Over, None);
                self.announce(number, EventKind::DISCONNECTED, 0)
            }
            (Kind::ServiceReply, Stage::Requesting) => {
                endpoint.repeat = None;
                let status = message.byte(4);
                if status != FOUND {
                    endpoint.stage = Stage::Over;
                    let fill = |event: &mut Arrived| event.data = data;
                    let status = i32::from(status);
                    return self.announce_with(number, EventKind::UNREACHABLE, status, fill);
                }
                endpoint.stage = Stage::Established;
                let (qp_num, qkey) = (message.u24(8), message.u32(20));
                let path = self.path(number)?;
                self.announce_with(number, EventKind::ESTABLISHED, 0, |event| {
                    event.datagrams = Some((path, qp_num, qkey));
                    event.data = data;
                })
            }
            _ => Ok(()),
        }
    }

    /// A peer asks for a connection, or a datagram service.
    fn asked(&mut self, side: usize, route: &Route, message: &Message) -> Result<(), Errno> {
        let mut all = self.endpoints.iter();
        let known = all.find(|(_, it)| it.is_of(route.source, message.u32(0)));
        if let Some((number, endpoint)) = known {
            // It asks again: the answer was lost, or has not been given yet.
            let (number, sent) = (*number, endpoint.sent.clone());
            sent.into_iter().for_each(|sent| self.tell(number, sent));
            return Ok(());
        }
        let space = match message.kind {
            Kind::Request => Space::Connections,
            _ => Space::Datagrams,
        };
        let service = message.u64(8);
        let mut peer = Peer {
            path: AddressVector::to(route.source),
            number: message.u32(0),
            transaction: message.transaction(),
            ..Peer::default()
        };
        let port = u16::try_from(service & 0xffff).unwrap_or(0);
        let addresses = Addresses::parse(message.private_data()).ok_or(libc::EINVAL)?;
        let is_wanted = service >> 16 == space as u64;
        let listener = is_wanted
            .then(|| self.listener(side, route.source, space, (addresses.destination, port)))
            .flatten();
        let Some(listener) = listener else {
            let answer = match space {
                Space::Connections => Message::new(Kind::Rejection, peer.transaction)
                    .set_u32(4, peer.number)
                    .set(10, &NO_SERVICE.to_be_bytes()),
                Space::Datagrams => service_reply(&peer, UNSUPPORTED),
            };
            let back = Route::new(route.destination, route.source);
            self.outgoing.push((side, back, answer.datagram));
            return Ok(());
        };
        let mut own = rdma_conn_param::default();
        if space == Space::Connections {
            own = rdma_conn_param {
                qp_num: message.u24(32),
                initiator_depth: message.byte(35),
                responder_resources: message.byte(39),
                retry_count: message.byte(47) & 7,
                rnr_retry_count: message.byte(50) & 7,
                srq: message.byte(51) >> 3 & 1,
                flow_control: message.byte(43) & 1,
                ..own
            };
            (peer.qp_num, peer.psn) = (own.qp_num, message.u24(44));
            peer.mtu = message.byte(50) >> 4;
        }
        let of = self.endpoint(listener)?;
        let Stage::Listening { backlog, waiting } = &mut of.stage else {
            return Err(libc::EINVAL);
        };
        if *waiting >= *backlog {
            // The peer asks again.
            return Ok(());
        }
        *waiting += 1;
        let (host, options, sink) = (of.host, of.options, of.sink.clone());
        let own_sink = Sink {
            unacknowledged: Arc::default(),
            ..sink.clone()
        };
        let number = self.create(host, space, own_sink);
        let psn = self.psn();
        let endpoint = self.endpoint(number)?;
        endpoint.listener = Some(listener);
        endpoint.side = Some(side);
        endpoint.local = Some(SocketAddr::new(route.destination.to_canonical(), port));
        endpoint.remote = Some(addresses.source);
        (endpoint.stage, endpoint.options) = (Stage::Requested, options);
        (endpoint.peer, endpoint.own, endpoint.psn) = (peer, own, psn);
        sink.push(number, EventKind::CONNECT_REQUEST, 0, |event| {
            event.listener = Some(listener);
            event.param = own;
            event.data = message.private_data()[Addresses::SIZE..].to_vec();
        });
        Ok(())
    }

    /// The listener for an address of a card: one of exactly this address before others.
    fn listener(
        &self,
        side: usize,
        from: Ipv6Addr,
        space: Space,
        (to, port): (IpAddr, u16),
    ) -> Option<u32> {
        let host = self.cards[side].host;
        let mut cards = self.cards.iter();
        let is_own = cards.any(|card| card.host == host && card.gids.contains(&from));
        let is_from_here = is_own || from.to_canonical().is_loopback();
        let listens = |local: SocketAddr, options: &Options| {
            let ip = local.ip();
            let is_of_family = ip.is_ipv4() == to.is_ipv4() || ip.is_ipv6() && !options.is_v6_only;
            let is_near = !ip.is_loopback() || is_from_here;
            local.port() == port && is_near && (ip == to || is_any(ip) && is_of_family)
        };
        let all = self.endpoints.iter().filter(|(_, it)| {
            let is_here = it.is_listening() && (it.host, it.space) == (host, space);
            is_here && it.local.is_some_and(|local| listens(local, &it.options))
        });
        let best = all.max_by_key(|(_, it)| it.local.is_some_and(|local| local.ip() == to));
        best.map(|(number, _)| *number)
    }

    /// A peer ends the connection; the answer is sent when this side's program ends it, too.
    fn left(&mut self, side: usize, route: &Route, message: &Message) -> Result<(), Errno> {
        let number = message.u32(4);
        let of_peer = |it: &&mut Endpoint| it.is_of(route.source, message.u32(0));
        let Some(endpoint) = self.endpoints.get_mut(&number).filter(of_peer) else {
            let back = Route::new(route.destination, route.source);
            let answer = Message::new(Kind::DisconnectReply, message.transaction())
                .set_u32(0, number)
                .set_u32(4, message.u32(0));
            self.outgoing.push((side, back, answer.datagram));
            return Ok(());
        };
        match endpoint.stage {
            stage @ (Stage::Established | Stage::Replied | Stage::Answered) => {
                (endpoint.stage, endpoint.repeat) = (Stage::Left, None);
                if stage == Stage::Replied {
                    // Its last message was lost, or is late.
                    self.announce(number, EventKind::ESTABLISHED, 0)?;
                }
                self.announce(number, EventKind::DISCONNECTED, 0)
            }
            stage @ (Stage::Leaving | Stage::Over) => {
                (endpoint.stage, endpoint.repeat) = (Stage::Over, None);
                let answer = endpoint.message(number, Kind::DisconnectReply);
                self.tell(number, answer);
                match stage == Stage::Leaving {
                    true => self.announce(number, EventKind::DISCONNECTED, 0),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
