//! Messages that a program's calls send.

use std::time::Duration;

use super::{
    CONSUMER, Endpoint, FOUND, Manager, Peer, QKEY, REJECTED, RESPONSE_TIMEOUT, RETRIES, Repeat,
    Space, Stage, TIMEOUT, guid, response_timeout,
};
use crate::abi::connection::rdma_conn_param;
use crate::errno::Errno;
use crate::rdmacm::events::EventKind;
use crate::rdmacm::message::{Addresses, Kind, Message};
use crate::sockaddr::gid;
use soft_nic::Route;

impl Manager {
    pub(crate) fn resolve_route(&mut self, number: u32) -> Result<(), Errno> {
        match self.endpoint(number)?.stage {
            Stage::Resolved => self.announce(number, EventKind::ROUTE_RESOLVED, 0),
            _ => Err(libc::EINVAL),
        }
    }

    /// Asks the peer for a connection, or for a datagram service.
    pub(crate) fn connect(
        &mut self,
        number: u32,
        now: Duration,
        param: rdma_conn_param,
        data: &[u8],
    ) -> Result<(), Errno> {
        let (transaction, psn) = (self.random.number(), self.psn());
        let endpoint = self.endpoints.get_mut(&number).ok_or(libc::EINVAL)?;
        let Endpoint {
            stage: Stage::Resolved,
            side: Some(side),
            local: Some(local),
            remote: Some(remote),
            options,
            ..
        } = *endpoint
        else {
            return Err(libc::EINVAL);
        };
        let (mtu, ack) = (self.cards[side].mtu, options.ack_timeout);
        let addresses = Addresses {
            source: local,
            destination: endpoint.peer.path.destination.to_canonical(),
        };
        let data = [&addresses.write()[..], data].concat();
        let service = (endpoint.space as u64) << 16 | u64::from(remote.port());
        (endpoint.own, endpoint.psn, endpoint.peer.transaction) = (param, psn, transaction);
        endpoint.peer.mtu = mtu;
        let message = match endpoint.space {
            Space::Datagrams => Message::new(Kind::ServiceRequest, transaction)
                .set_u32(0, number)
                .set(4, &[0xff, 0xff])
                .set(8, &service.to_be_bytes()),
            Space::Connections => Message::new(Kind::Request, transaction)
                .set_u32(0, number)
                .set(8, &service.to_be_bytes())
                .set(16, &guid(Some(local)))
                .set_u24(32, param.qp_num)
                .set(35, &[param.responder_resources])
                .set(39, &[param.initiator_depth])
                .set(43, &[RESPONSE_TIMEOUT << 3 | param.flow_control])
                .set_u24(44, psn)
                .set(47, &[RESPONSE_TIMEOUT << 3 | param.retry_count & 7])
                .set(48, &[0xff, 0xff, mtu << 4 | param.rnr_retry_count & 7])
                .set(51, &[RETRIES << 4 | param.srq << 3])
                .set(52, &[0xff; 4])
                .set(56, &gid(local.ip()).octets())
                .set(72, &endpoint.peer.path.destination.octets())
                .set(92, &[options.traffic_class, 64, 0, ack << 3]),
        };
        let message = message.set_private_data(&data).ok_or(libc::EINVAL)?;
        endpoint.stage = Stage::Requesting;
        self.ask(number, now, message);
        Ok(())
    }

    /// Accepts a peer that has asked.
    pub(crate) fn accept(
        &mut self,
        number: u32,
        now: Duration,
        param: rdma_conn_param,
        data: &[u8],
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        if endpoint.stage != Stage::Requested {
            return Err(libc::EINVAL);
        }
        if endpoint.space == Space::Datagrams {
            return self.answer_service(number, FOUND, param.qp_num, data);
        }
        // The peer's request has said how often to try again.
        let asked = endpoint.own;
        endpoint.own = rdma_conn_param {
            retry_count: asked.retry_count,
            rnr_retry_count: asked.rnr_retry_count,
            ..param
        };
        let message = endpoint
            .message(number, Kind::Reply)
            .set_u24(12, param.qp_num)
            .set_u24(20, endpoint.psn)
            .set(24, &[param.responder_resources, param.initiator_depth])
            .set(26, &[param.flow_control])
            .set(27, &[param.rnr_retry_count << 5 | param.srq << 4])
            .set(28, &guid(endpoint.local));
        let message = message.set_private_data(data).ok_or(libc::EINVAL)?;
        endpoint.stage = Stage::Replied;
        self.ask(number, now, message);
        Ok(())
    }

    /// Tells a peer that has accepted that it may send.
    pub(crate) fn establish(&mut self, number: u32) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        if endpoint.stage != Stage::Answered {
            return Err(libc::EINVAL);
        }
        endpoint.stage = Stage::Established;
        let message = endpoint.message(number, Kind::Ready);
        self.tell(number, message);
        Ok(())
    }

    pub(crate) fn reject(&mut self, number: u32, data: &[u8]) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        match (endpoint.space, endpoint.stage) {
            (Space::Datagrams, Stage::Requested) => self.answer_service(number, REJECTED, 0, data),
            (Space::Connections, Stage::Requested | Stage::Answered) => {
                self.refuse(number, CONSUMER, data)
            }
            _ => Err(libc::EINVAL),
        }
    }

    pub(crate) fn disconnect(&mut self, number: u32, now: Duration) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        match endpoint.stage {
            Stage::Established | Stage::Replied | Stage::Answered => {
                endpoint.stage = Stage::Leaving;
                let message = endpoint.message(number, Kind::DisconnectRequest);
                self.ask(number, now, message);
                Ok(())
            }
            Stage::Left => {
                endpoint.stage = Stage::Over;
                let message = endpoint.message(number, Kind::DisconnectReply);
                self.tell(number, message);
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Ends an endpoint: the peer is told once.
    pub(crate) fn destroy(&mut self, number: u32) {
        let Some(endpoint) = self.endpoints.get(&number) else {
            return;
        };
        let (space, stage) = (endpoint.space, endpoint.stage);
        // No answer comes any more to what fails here.
        let _told = match (space, stage) {
            (Space::Connections, Stage::Requesting) => self.refuse(number, TIMEOUT, &[]),
            (Space::Connections, Stage::Replied) => self.refuse(number, CONSUMER, &[]),
            (_, Stage::Requested | Stage::Answered) => self.reject(number, &[]),
            (_, Stage::Established | Stage::Left) => self.disconnect(number, Duration::ZERO),
            _ => Ok(()),
        };
        let untaken = self.untaken(number);
        untaken.into_iter().for_each(|child| self.destroy(child));
        if let Some(endpoint) = self.endpoints.remove(&number) {
            let queue = endpoint.sink.queue;
            drop(queue.split_off(|event| event.number == number));
        }
    }

    /// Sends a message, and again while it is not answered.
    pub(super) fn ask(&mut self, number: u32, now: Duration, message: Message) {
        if let Some(endpoint) = self.endpoints.get_mut(&number) {
            endpoint.sent = Some(message.clone());
            let at = now + response_timeout(RESPONSE_TIMEOUT);
            endpoint.repeat = Some(Repeat {
                at,
                left: RETRIES,
                is_late: false,
            });
            self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        }
        self.tell(number, message);
    }

    pub(super) fn tell(&mut self, number: u32, message: Message) {
        if let Some(endpoint) = self.endpoints.get_mut(&number)
            && let (Some(side), Some(local)) = (endpoint.side, endpoint.local)
        {
            let route = Route::new(gid(local.ip()), endpoint.peer.path.destination);
            self.outgoing.push((side, route, message.datagram));
        }
    }

    pub(super) fn refuse(&mut self, number: u32, reason: u16, data: &[u8]) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        let rejected = match endpoint.stage {
            Stage::Answered => 1,
            _ => 0,
        };
        let message = endpoint
            .message(number, Kind::Rejection)
            .set(8, &[rejected << 6])
            .set(10, &reason.to_be_bytes());
        // The peer finds a request by this, although this side has never seen an answer.
        let message = match reason {
            TIMEOUT => message.set(9, &[8 << 1]).set(12, &guid(endpoint.local)),
            _ => message,
        };
        let message = message.set_private_data(data).ok_or(libc::EINVAL)?;
        (endpoint.stage, endpoint.repeat) = (Stage::Over, None);
        endpoint.sent = Some(message.clone());
        self.tell(number, message);
        Ok(())
    }

    pub(super) fn answer_service(
        &mut self,
        number: u32,
        status: u8,
        qp_num: u32,
        data: &[u8],
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        let message = service_reply(&endpoint.peer, status)
            .set_u24(8, qp_num)
            .set_u32(20, QKEY)
            .set_private_data(data)
            .ok_or(libc::EINVAL)?;
        endpoint.stage = Stage::Over;
        endpoint.sent = Some(message.clone());
        self.tell(number, message);
        Ok(())
    }
}

pub(super) fn service_reply(peer: &Peer, status: u8) -> Message {
    Message::new(Kind::ServiceReply, peer.transaction)
        .set_u32(0, peer.number)
        .set(4, &[status])
}
