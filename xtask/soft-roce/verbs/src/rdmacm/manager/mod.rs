//! The machine of the connection manager (volume 1, 12.9): no I/O, no clock. Numbers of endpoints are the messages'
//! communication identifiers.

mod addresses;
mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use soft_nic::{Access, AddressVector, ManagementDatagram, QueuePairAttributes, Random, Route};

use super::events::{Arrived, EventKind};
use super::message::{Kind, Message};
use crate::abi::connection::rdma_conn_param;
use crate::errno::Errno;
use crate::event::{EventQueue, Unacknowledged};
use crate::sockaddr::gid;

/// A message is repeated after 4.096 µs · 2^20, this number of times; the kernel's `cma.c` does the same.
const RESPONSE_TIMEOUT: u8 = 20;
const RETRIES: u8 = 15;

/// The local acknowledgement timeout of the kernel's paths on RoCE, unless a program sets another.
const ACK_TIMEOUT: u8 = 19;

/// The `Q_Key` of datagram services.
pub(crate) const QKEY: u32 = 0x0123_4567;

const FIRST_EPHEMERAL: u16 = 32_768;

/// Reasons of rejections (12.6.7.2).
const TIMEOUT: u16 = 4;
const NO_SERVICE: u16 = 8;
const CONSUMER: u16 = 28;

/// Statuses of a service's reply (12.11.2.1).
const FOUND: u8 = 0;
const UNSUPPORTED: u8 = 1;
const REJECTED: u8 = 2;

/// The purpose of an endpoint, as a number of port spaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Space {
    Connections = 0x106,
    Datagrams = 0x111,
}

impl Space {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let mut all = [Self::Connections, Self::Datagrams].into_iter();
        all.find(|space| *space as u32 == number)
    }

    /// C's number of its queue pairs' type: `IBV_QPT_RC` or `IBV_QPT_UD`.
    pub(crate) const fn qp_type(self) -> u32 {
        match self {
            Self::Connections => 2,
            Self::Datagrams => 4,
        }
    }
}

/// Endpoints of all hosts of a network.
pub(crate) struct Manager {
    cards: Vec<Card>,
    endpoints: BTreeMap<u32, Endpoint>,
    random: Random,
    /// When [`expire`](Self::expire) has to be called.
    pub(crate) earliest: Option<Duration>,
    /// Messages to be sent, and by which card.
    pub(crate) outgoing: Vec<(usize, Route, ManagementDatagram)>,
}

struct Card {
    host: usize,
    gids: Vec<Ipv6Addr>,
    mtu: u8,
}

/// Where the events of an endpoint go.
#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) queue: Arc<EventQueue<Arrived>>,
    pub(crate) unacknowledged: Arc<Unacknowledged>,
}

impl Sink {
    /// Reports an event of the endpoint with this number.
    fn push(&self, number: u32, kind: EventKind, status: i32, fill: impl FnOnce(&mut Arrived)) {
        let mut event = Arrived {
            number,
            kind,
            status,
            ..Arrived::default()
        };
        fill(&mut event);
        self.queue.push(Arc::clone(&self.unacknowledged), event);
    }
}

/// An identifier of a program's, or the request of a peer that no program has taken yet.
pub(crate) struct Endpoint {
    host: usize,
    pub(crate) space: Space,
    /// Address of the identifier, as a program knows it; 0 if no program does.
    pub(crate) id: usize,
    pub(crate) sink: Sink,
    /// The listener that a peer has asked.
    listener: Option<u32>,
    pub(crate) side: Option<usize>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) options: Options,
    stage: Stage,
    peer: Peer,
    pub(crate) own: rdma_conn_param,
    psn: u32,
    /// The message whose answer is missing, or that answers a repeated one.
    sent: Option<Message>,
    repeat: Option<Repeat>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) is_address_shared: bool,
    pub(crate) is_v6_only: bool,
    pub(crate) traffic_class: u8,
    pub(crate) ack_timeout: u8,
}

#[derive(Clone, Copy, Debug)]
struct Repeat {
    at: Duration,
    left: u8,
    /// The peer has asked for more time, which it can do once.
    is_late: bool,
}

/// The peer, as it has described itself.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    path: AddressVector,
    number: u32,
    transaction: u64,
    qp_num: u32,
    psn: u32,
    mtu: u8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Idle,
    Bound,
    Resolved,
    Listening {
        backlog: u32,
        waiting: u32,
    },
    /// A request was sent.
    Requesting,
    /// A request has come.
    Requested,
    /// The peer has accepted.
    Answered,
    /// The peer was accepted.
    Replied,
    Established,
    /// The peer was told that the connection ends.
    Leaving,
    /// The peer has said so.
    Left,
    Over,
}

/// Whether it stands for any card of this machine: 0.0.0.0, 127.0.0.1, and the same of IPv6.
pub(crate) fn is_any(ip: IpAddr) -> bool {
    let local = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    ip.is_unspecified() || local.contains(&ip)
}

/// A number of a card in messages: the end of its GID.
fn guid(local: Option<SocketAddr>) -> [u8; 8] {
    let gid = local.map_or(Ipv6Addr::UNSPECIFIED, |local| gid(local.ip()));
    let [.., a, b, c, d, e, f, g, h] = gid.octets();
    [a, b, c, d, e, f, g, h]
}

impl Manager {
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            cards: Vec::new(),
            endpoints: BTreeMap::new(),
            random: Random::new(seed),
            earliest: None,
            outgoing: Vec::new(),
        }
    }

    /// Cards are told in their order. `mtu` is C's number.
    pub(crate) fn add(&mut self, host: usize, gids: &[Ipv6Addr], mtu: u8) {
        self.cards.push(Card {
            host,
            gids: gids.to_vec(),
            mtu,
        });
    }

    fn number(&mut self) -> u32 {
        loop {
            let number = (self.random.number() >> 32) as u32;
            if number != 0 && !self.endpoints.contains_key(&number) {
                return number;
            }
        }
    }

    /// A packet sequence number to begin with.
    const fn psn(&mut self) -> u32 {
        (self.random.number() >> 40) as u32
    }

    /// Makes an endpoint that no program knows yet.
    pub(crate) fn create(&mut self, host: usize, space: Space, sink: Sink) -> u32 {
        let number = self.number();
        let endpoint = Endpoint {
            host,
            space,
            id: 0,
            sink,
            listener: None,
            side: None,
            local: None,
            remote: None,
            options: Options {
                ack_timeout: ACK_TIMEOUT,
                ..Options::default()
            },
            stage: Stage::Idle,
            peer: Peer::default(),
            own: rdma_conn_param::default(),
            psn: 0,
            sent: None,
            repeat: None,
        };
        self.endpoints.insert(number, endpoint);
        number
    }

    pub(crate) fn endpoint(&mut self, number: u32) -> Result<&mut Endpoint, Errno> {
        self.endpoints.get_mut(&number).ok_or(libc::EINVAL)
    }

    /// A program has taken a peer's request from its listener's queue.
    pub(crate) fn taken(&mut self, listener: u32) {
        if let Some(endpoint) = self.endpoints.get_mut(&listener)
            && let Stage::Listening { waiting, .. } = &mut endpoint.stage
        {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// Moves an endpoint's events, those to come and those that wait.
    pub(crate) fn migrate(&mut self, number: u32, to: &Arc<EventQueue<Arrived>>) {
        let Some(endpoint) = self.endpoints.get_mut(&number) else {
            return;
        };
        let from = std::mem::replace(&mut endpoint.sink.queue, Arc::clone(to));
        // Requests that nobody has taken go with their listener.
        let mut moved = self.untaken(number);
        for child in &moved {
            if let Some(endpoint) = self.endpoints.get_mut(child) {
                endpoint.sink.queue = Arc::clone(to);
            }
        }
        moved.push(number);
        for (unacknowledged, event) in from.split_off(|event| moved.contains(&event.number)) {
            to.push(unacknowledged, event);
        }
    }

    /// The requests to a listener that no program has taken.
    fn untaken(&self, listener: u32) -> Vec<u32> {
        let all = self.endpoints.iter();
        let untaken = all.filter(|(_, it)| it.listener == Some(listener) && it.id == 0);
        untaken.map(|(number, _)| *number).collect()
    }

    /// The attributes for the queue pair of a connection.
    pub(crate) fn attributes(&mut self, number: u32) -> Result<QueuePairAttributes, Errno> {
        let path = self.path(number)?;
        let Endpoint { peer, own, .. } = *self.endpoint(number)?;
        let endpoint = self.endpoint(number)?;
        Ok(QueuePairAttributes {
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            port: 1,
            qkey: QKEY,
            path,
            path_mtu: 128 << peer.mtu,
            dest_qp_num: peer.qp_num,
            // 12.7.31: a side says how the other shall begin.
            rq_psn: endpoint.psn,
            sq_psn: peer.psn,
            max_dest_rd_atomic: own.responder_resources,
            max_rd_atomic: own.initiator_depth,
            timeout: endpoint.options.ack_timeout,
            retry_cnt: own.retry_count,
            rnr_retry: own.rnr_retry_count,
            ..QueuePairAttributes::default()
        })
    }

    /// The path to the peer, from the entry of the GID table that has the endpoint's address.
    fn path(&mut self, number: u32) -> Result<AddressVector, Errno> {
        let endpoint = self.endpoints.get(&number).ok_or(libc::EINVAL)?;
        let (Some(side), Some(local)) = (endpoint.side, endpoint.local) else {
            return Err(libc::ENODEV);
        };
        let gids = &self.cards[side].gids;
        let index = gids.iter().position(|it| *it == gid(local.ip()));
        Ok(AddressVector {
            source_index: u8::try_from(index.unwrap_or(0)).unwrap_or(0),
            traffic_class: endpoint.options.traffic_class,
            ..endpoint.peer.path
        })
    }

    /// Joins a multicast group, at once: packets to a group come to all cards.
    pub(crate) fn join(&mut self, number: u32, group: IpAddr, context: usize) -> Result<(), Errno> {
        const GROUP: u32 = 0xff_ffff;
        if !group.is_multicast() || self.endpoint(number)?.side.is_none() {
            return Err(libc::EINVAL);
        }
        let path = AddressVector {
            destination: gid(group),
            ..self.path(number)?
        };
        self.announce_with(number, EventKind::MULTICAST_JOIN, 0, |event| {
            event.datagrams = Some((path, GROUP, QKEY));
            event.context = context;
        })
    }

    /// The endpoints of a host.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn count(&self, host: usize) -> usize {
        let all = self.endpoints.values();
        all.filter(|endpoint| endpoint.host == host).count()
    }

    /// Gives all identifiers of a host an event in place of those that wait for them.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn surprise(&mut self, host: usize, event: u32, status: i32, data: &[u8]) {
        let all = self.endpoints.iter();
        let known = all.filter(|(_, endpoint)| endpoint.host == host && endpoint.id != 0);
        for (number, Endpoint { sink, .. }) in known {
            drop(sink.queue.split_off(|waits| waits.number == *number));
            sink.push(*number, EventKind(event), status, |event| {
                event.data = data.to_vec();
            });
        }
    }

    /// Repeats messages that were not answered, and gives up.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.earliest.is_none_or(|at| at > now) {
            return;
        }
        let is_due = |it: &Endpoint| it.repeat.is_some_and(|repeat| repeat.at <= now);
        let due = self.endpoints.iter().filter(|(_, it)| is_due(it));
        for number in due.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Ok(endpoint) = self.endpoint(number) else {
                continue;
            };
            if let (Some(repeat @ Repeat { left: 1.., .. }), Some(message)) =
                (endpoint.repeat.take(), endpoint.sent.clone())
            {
                endpoint.repeat = Some(Repeat {
                    at: now + response_timeout(RESPONSE_TIMEOUT),
                    left: repeat.left - 1,
                    ..repeat
                });
                self.tell(number, message);
                continue;
            }
            let kind = match endpoint.stage {
                Stage::Leaving => EventKind::DISCONNECTED,
                _ => EventKind::UNREACHABLE,
            };
            endpoint.stage = Stage::Over;
            let _gone = self.announce(number, kind, -libc::ETIMEDOUT);
        }
        let repeats = self.endpoints.values().filter_map(|it| it.repeat);
        self.earliest = repeats.map(|repeat| repeat.at).min();
    }

    fn announce(&mut self, number: u32, kind: EventKind, status: i32) -> Result<(), Errno> {
        self.announce_with(number, kind, status, |_| {})
    }

    fn announce_with(
        &mut self,
        number: u32,
        kind: EventKind,
        status: i32,
        fill: impl FnOnce(&mut Arrived),
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        endpoint.sink.push(number, kind, status, fill);
        Ok(())
    }
}

impl Endpoint {
    const fn is_listening(&self) -> bool {
        matches!(self.stage, Stage::Listening { .. })
    }

    /// Whether it is the peer of an endpoint with this number, of the card with this GID.
    fn is_of(&self, gid: Ipv6Addr, number: u32) -> bool {
        (self.peer.path.destination, self.peer.number) == (gid, number) && number != 0
    }

    /// A message to the peer with both numbers.
    fn message(&self, number: u32, kind: Kind) -> Message {
        let message = Message::new(kind, self.peer.transaction)
            .set_u32(0, number)
            .set_u32(4, self.peer.number);
        match kind {
            Kind::DisconnectRequest => message.set_u24(8, self.peer.qp_num),
            _ => message,
        }
    }
}

/// 4.096 µs · 2^code.
fn response_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}
