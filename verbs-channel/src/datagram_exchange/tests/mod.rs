//! Tests of the exchange over datagrams: message by message, and in a simulated network.

mod hostile;
mod messages;
mod network;
mod simulation;

use std::time::{Duration, Instant};

use verbs_core::path::{DatagramEndpoint, QKey};
use verbs_core::{MaximumTransferUnit, PacketSequenceNumber, QueuePairEndpoint};

use super::{Acceptor, Answer, Connector, RequestId, Step};
use crate::exchange::{ExchangeError, PeerEndpoint};

const MTU: u32 = 1024;
const LIMIT: usize = 4;
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// The endpoint of a queue pair. Only `psn` differs from those of earlier queue pairs of the process.
fn endpoint(qp_num: u32, psn: u32) -> QueuePairEndpoint {
    let psn = PacketSequenceNumber::new(psn).unwrap();
    let endpoint = QueuePairEndpoint::builder(qp_num, psn);
    endpoint.lid(1).build().unwrap()
}

/// The datagram endpoint of this number; 0 is the server's.
fn place(number: u32) -> DatagramEndpoint {
    with_mtu(number, MaximumTransferUnit::Mtu1024)
}

fn with_mtu(number: u32, mtu: MaximumTransferUnit) -> DatagramEndpoint {
    let qkey = QKey::new(0x1234).unwrap();
    let endpoint = DatagramEndpoint::builder(0x10 + number, qkey).lid(1);
    endpoint.mtu(mtu).build().unwrap()
}

/// One client and one server, and a wire that a test moves every message over by hand.
struct Pair {
    now: Instant,
    connector: Connector,
    acceptor: Acceptor,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            now,
            connector: connector(7, now),
            acceptor: Acceptor::new(MTU, LIMIT, now),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The message that the client sends now, if any.
    fn client_sends(&mut self) -> Option<Vec<u8>> {
        match self.connector.step(self.now) {
            Ok(Step::Send(bytes)) => Some(bytes.to_vec()),
            _ => None,
        }
    }

    fn server_gets(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let answer = self.acceptor.received(&place(1), bytes, self.now)?;
        assert_eq!(answer.to, place(1));
        Some(answer.bytes)
    }

    /// The server answers this request with a cookie. Returns the client's request with the cookie.
    fn with_cookie(&mut self, request: &[u8]) -> Vec<u8> {
        let cookie = self.server_gets(request).unwrap();
        self.connector.received(&cookie);
        self.client_sends().unwrap()
    }

    /// Exchanges cookies, and gives the server the request with the cookie, which this returns.
    fn requests(&mut self) -> Vec<u8> {
        let request = self.client_sends().unwrap();
        let request = self.with_cookie(&request);
        assert_eq!(self.server_gets(&request), None);
        request
    }

    /// Exchanges cookies, and takes the request.
    fn requested(&mut self) -> RequestId {
        self.requests();
        let taken = self.acceptor.next_request(self.now).unwrap();
        assert_eq!(taken.peer().private_data, b"from the client");
        taken.id()
    }

    /// As far as the client's handshake. Returns the ACCEPT, too.
    fn accepted(&mut self) -> (RequestId, Vec<u8>) {
        let id = self.requested();
        let ours = endpoint(0x99, 9);
        let answer = self
            .acceptor
            .answer(id, &ours, b"from the server", self.now);
        let bytes = answer.unwrap().bytes;
        self.connector.received(&bytes);
        assert_eq!(self.client_peer().private_data, b"from the server");
        (id, bytes)
    }

    fn client_peer(&mut self) -> PeerEndpoint {
        match self.connector.step(self.now).unwrap() {
            Step::Done(peer) => peer.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn client_error(&mut self) -> ExchangeError {
        self.connector.step(self.now).unwrap_err()
    }
}

fn connector(psn: u32, now: Instant) -> Connector {
    let (ours, data) = (endpoint(0x42, psn), b"from the client");
    Connector::new(&place(0), &ours, data, MTU, now, 3 * SECOND).unwrap()
}
