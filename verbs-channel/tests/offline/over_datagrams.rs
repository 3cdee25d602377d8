//! Connecting over datagrams: what the driver is asked for, and how it fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fake_libibverbs::{Posted, assert_all_is_well, lend, with};
use verbs_channel::__private::datagram_exchange::{Acceptor, Connector, RequestId, Step};
use verbs_channel::connect::{DatagramListener, Met};
use verbs_channel::exchange::{ExchangeError, PeerEndpoint};
use verbs_channel::verbs_core::verbs_sys::{IBV_QP_DEST_QPN, IBV_QP_RQ_PSN};
use verbs_channel::verbs_core::{PacketSequenceNumber, ProtectionDomain, QueuePairEndpoint};
use verbs_channel::{
    Channel, Connect, Datagrams, DownReason, Error, Peer, RejectReason, TransportError,
};

use verbs_harness::logged::{lines, listen, panics};

use crate::datagrams::{comes, peer};
use crate::fake_device::{bounded, pd, posted, refuse, succeeds};

/// Far longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(60);

/// The queue pair of the other side.
pub(crate) fn theirs() -> QueuePairEndpoint {
    let psn = PacketSequenceNumber::new(0x0003_2177).unwrap();
    let endpoint = QueuePairEndpoint::builder(0x4321, psn);
    endpoint.gid(peer(9).gid()).build().unwrap()
}

/// The other side, as far as it is not the device.
trait Other: Send + 'static {
    /// It gets a datagram; every answer is sent.
    fn gets(&mut self, datagram: &[u8]) -> Option<Vec<u8>>;
    /// Something that it sends by itself.
    fn sends(&mut self) -> Option<Vec<u8>>;
}

/// The device and the network, in another thread. They lose the first datagram of each kind, in both
/// directions.
struct Network<T> {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Other> Network<T> {
    fn to(mut other: T) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (until, library) = (Arc::clone(&is_over), lend());
        let run = move || {
            library();
            let (mut receives, mut lost) = (VecDeque::new(), [false; 8]);
            let mut is_lost = |datagram: &[u8]| {
                let kind = usize::from(datagram[7]);
                !std::mem::replace(&mut lost[kind], true)
            };
            // All that was sent before the end arrives.
            let mut last_round = false;
            while !last_round {
                last_round = until.load(Ordering::SeqCst);
                let posted = with(|library| std::mem::take(&mut library.posted));
                let mut answers = Vec::new();
                for Posted {
                    wr_id,
                    is_send,
                    sent,
                    remote_qpn,
                    ..
                } in posted.into_iter().flatten()
                {
                    if !is_send {
                        receives.push_back(wr_id);
                        continue;
                    }
                    assert_eq!(remote_qpn, peer(9).qp_num());
                    succeeds(wr_id);
                    if !is_lost(&sent) {
                        answers.extend(other.gets(&sent));
                    }
                }
                answers.extend(other.sends());
                for answer in answers {
                    if !is_lost(&answer) {
                        let into = receives.pop_front().expect("a receive is posted");
                        comes(into, &peer(9), &answer, Some(peer(9).qkey().get()));
                    }
                }
                thread::yield_now();
            }
            other
        };
        Self {
            is_over,
            thread: Some(thread::spawn(run)),
        }
    }

    fn ends(mut self) -> T {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

struct Server {
    acceptor: Acceptor,
    data: Vec<u8>,
    request: Option<(RequestId, PeerEndpoint)>,
}

impl Server {
    fn new(data: &[u8]) -> Self {
        Self {
            acceptor: Acceptor::new(1024, 1, Instant::now()),
            data: data.to_vec(),
            request: None,
        }
    }

    fn outcome(&mut self) -> Option<Result<(), ExchangeError>> {
        let (id, _) = self.request.as_ref()?;
        self.acceptor.outcome(*id, Instant::now())
    }
}

impl Other for Server {
    fn gets(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let now = Instant::now();
        if let Some(answer) = self.acceptor.received(&peer(1), datagram, now) {
            return Some(answer.bytes);
        }
        let request = self.acceptor.next_request(now)?;
        let answer = self
            .acceptor
            .answer(request.id(), &theirs(), &self.data, now);
        self.request = Some((request.id(), request.peer().clone()));
        Some(answer.unwrap().bytes)
    }

    fn sends(&mut self) -> Option<Vec<u8>> {
        None
    }
}

struct Client {
    connector: Connector,
    outcome: Option<Result<Vec<u8>, ExchangeError>>,
    is_ready: bool,
}

impl Client {
    fn new(server: &DatagramListener, max_payload: u32) -> Self {
        let (server, ours, now) = (server.endpoint(), theirs(), Instant::now());
        let connector = Connector::new(&server, &ours, b"hello", max_payload, now, LONG);
        Self {
            connector: connector.unwrap(),
            outcome: None,
            is_ready: false,
        }
    }
}

impl Other for Client {
    fn gets(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        self.connector.received(datagram);
        None
    }

    fn sends(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.connector.step(Instant::now()) {
                Ok(Step::Send(bytes)) => return Some(bytes.to_vec()),
                Ok(Step::Wait(_)) => return None,
                Ok(Step::Done(_)) if !self.is_ready => {
                    self.is_ready = true;
                    self.connector.ready();
                }
                Ok(Step::Done(peer)) => {
                    self.outcome = Some(Ok(peer.private_data.clone()));
                    return None;
                }
                Err(ExchangeError::Over) => return None,
                Err(error) => self.outcome = Some(Err(error)),
            }
        }
    }
}

/// The queue pair and the number to which a queue pair was connected.
fn connected_to() -> (u32, u32) {
    let of = |mask: u32| {
        with(|library| {
            let mut modified = library.modified.iter().rev();
            modified
                .find(|(_, asked)| asked & mask != 0)
                .map(|(attr, _)| *attr)
        })
    };
    let (number, psn) = (of(IBV_QP_DEST_QPN.0), of(IBV_QP_RQ_PSN.0));
    (number.unwrap().dest_qp_num, psn.unwrap().rq_psn)
}

fn datagrams(pd: &ProtectionDomain) -> Datagrams {
    Datagrams::builder(pd).build().unwrap()
}

fn exchange_error(error: &Error) -> &ExchangeError {
    match error {
        Error::Exchange(failure) => &failure.error,
        error => panic!("{error}"),
    }
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn client_connects_to_the_numbers_of_the_server() {
    let pd = pd();
    let mut datagrams = datagrams(&pd);
    let network = Network::to(Server::new(b"welcome"));
    let prepared = Channel::builder(&pd).build().unwrap();
    let ours = prepared.endpoint();
    let connected = bounded(|| {
        prepared.connect(
            Peer::Datagrams(&mut datagrams, peer(9)),
            Connect::within(LONG).private_data(b"hello"),
        )
    });
    let Met {
        channel,
        private_data: data,
        ..
    } = connected.unwrap();
    let mut server = network.ends();
    assert_eq!(data, b"welcome");
    assert_eq!(connected_to(), (0x4321, 0x0003_2177));
    let (_, request) = server.request.as_ref().unwrap();
    assert_eq!(
        (request.endpoint, &request.private_data[..]),
        (ours, &b"hello"[..])
    );
    // The first DONE was lost, and this one is all that the client sends.
    assert!(server.outcome().is_none());
    let later = Instant::now() + LONG;
    let (id, _) = server.request.unwrap();
    server.acceptor.outcome(id, later).unwrap().unwrap();
    assert!(channel.down_reason().is_none());
    drop((channel, datagrams, pd));
    assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn server_connects_to_the_numbers_of_the_client() {
    let pd = pd();
    let mut listener = DatagramListener::new(datagrams(&pd)).unwrap();
    let network = Network::to(Client::new(&listener, 1024));
    let prepared = Channel::builder(&pd).build().unwrap();
    let ours = prepared.endpoint();
    let accepted = bounded(|| {
        prepared.accept(
            &mut listener,
            Connect::within(LONG).private_data(b"welcome"),
        )
    });
    let Met {
        channel,
        private_data: data,
        ..
    } = accepted.unwrap();
    let mut client = network.ends();
    assert_eq!(data, b"hello");
    assert_eq!(connected_to(), (0x4321, 0x0003_2177));
    assert_eq!(client.outcome.unwrap().unwrap(), b"welcome");
    let Ok(Step::Done(server)) = client.connector.step(Instant::now()) else {
        panic!("it is connected");
    };
    assert_eq!(server.endpoint, ours);
    drop((channel, listener, pd));
    assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn logger_that_panics_fails_no_connection() {
    listen();
    let pd = pd();
    let mut listener = DatagramListener::new(datagrams(&pd)).unwrap();
    let network = Network::to(Client::new(&listener, 1024));
    let prepared = Channel::builder(&pd).build().unwrap();
    // The first answer is lost, which is logged.
    refuse("ibv_create_ah", 1);
    panics(true);
    let accepted = bounded(|| {
        prepared.accept(
            &mut listener,
            Connect::within(LONG).private_data(b"welcome"),
        )
    });
    panics(false);
    accepted.unwrap();
    drop(network.ends());
    assert_eq!(lines().len(), 1);
}

#[test]
fn nothing_is_connected_or_left_when_the_time_is_over() {
    let pd = pd();
    let mut datagrams = datagrams(&pd);
    let config = Channel::builder(&pd).config();
    let prepared = config.build().unwrap();
    let error = bounded(|| {
        prepared
            .connect(Peer::Datagrams(&mut datagrams, peer(9)), SHORT)
            .unwrap_err()
    });
    assert_eq!(error.to_string(), "the peer did not answer within 60 ms");
    let mut listener = DatagramListener::new(datagrams).unwrap();
    let prepared = config.build().unwrap();
    let error = bounded(|| prepared.accept(&mut listener, SHORT).unwrap_err());
    assert_eq!(error.to_string(), "the peer did not connect within 60 ms");
    let masks = with(|library| library.modified.iter().fold(0, |all, (_, mask)| all | mask));
    // The datagrams' queue pair has no such number.
    assert_eq!(masks & IBV_QP_DEST_QPN.0, 0);
    drop((listener, config, pd));
    assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn server_is_sent_why_the_client_cannot_connect() {
    let pd = pd();
    let mut datagrams = datagrams(&pd);
    let network = Network::to(Server::new(b""));
    let prepared = Channel::builder(&pd).build().unwrap();
    refuse("ibv_modify_qp", 1);
    let error = bounded(|| {
        let connected = prepared.connect(Peer::Datagrams(&mut datagrams, peer(9)), LONG);
        connected.unwrap_err()
    });
    assert!(matches!(error, Error::Core(_)), "{error}");
    let mut server = network.ends();
    // The one REFUSED is lost: the server notices the silence.
    assert!(server.outcome().is_none());
    let (id, _) = server.request.unwrap();
    let later = Instant::now() + LONG;
    server.acceptor.outcome(id, later).unwrap().unwrap_err();
    drop((datagrams, pd));
    assert_all_is_well();
}

#[test]
fn endpoint_that_fails_ends_the_exchange() {
    let pd = pd();
    let config = Channel::builder(&pd).config();
    for is_client in [true, false] {
        let mut datagrams = datagrams(&pd);
        let prepared = config.build().unwrap();
        with(|library| library.poll_answer = Some(-5));
        let error = bounded(|| {
            if is_client {
                let met = prepared.connect(Peer::Datagrams(&mut datagrams, peer(9)), LONG);
                return met.unwrap_err();
            }
            let mut listener = DatagramListener::new(datagrams).unwrap();
            let met = prepared.accept(&mut listener, LONG);
            met.unwrap_err()
        });
        let Error::Transport(TransportError::Rejected(RejectReason::Down(DownReason::Poll(_)))) =
            error
        else {
            panic!("{error}");
        };
    }
    drop((config, pd));
    assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn private_data_that_does_not_fit_is_an_error_on_both_sides() {
    let pd = pd();
    let config = Channel::builder(&pd).config();
    let mut datagrams = datagrams(&pd);
    let prepared = config.build().unwrap();
    let long = prepared.connect(
        Peer::Datagrams(&mut datagrams, peer(9)),
        Connect::within(LONG).private_data(&[7; 954]),
    );
    let error = long.unwrap_err();
    let ExchangeError::PrivateDataBeyondMtu { len: 954, max: 953 } = exchange_error(&error) else {
        panic!("{error}");
    };
    // The client's port has the shorter MTU.
    let mut listener = DatagramListener::new(datagrams).unwrap();
    let mut client = Client::new(&listener, 256);
    // Nothing is lost to it: the refusal is sent once.
    let prepared = config.build().unwrap();
    let before = with(|library| library.modified.len());
    let (is_over, library) = (AtomicBool::new(false), lend());
    let error = thread::scope(|scope| {
        let client = &mut client;
        let is_over = &is_over;
        scope.spawn(move || {
            library();
            let mut receives = VecDeque::new();
            while client.outcome.is_none() && !is_over.load(Ordering::SeqCst) {
                let posted = with(|library| std::mem::take(&mut library.posted));
                for request in posted.into_iter().flatten() {
                    if request.is_send {
                        succeeds(request.wr_id);
                        client.gets(&request.sent);
                    } else {
                        receives.push_back(request.wr_id);
                    }
                }
                if let Some(bytes) = client.sends() {
                    let into = receives.pop_front().unwrap();
                    comes(into, &peer(9), &bytes, Some(peer(9).qkey().get()));
                }
                thread::yield_now();
            }
        });
        let met = bounded(|| {
            prepared.accept(&mut listener, Connect::within(LONG).private_data(&[7; 200]))
        });
        met.unwrap_err()
    });
    let ExchangeError::PrivateDataBeyondMtu { len: 200, max: 195 } = exchange_error(&error) else {
        panic!("{error}");
    };
    let error = client.outcome.unwrap().unwrap_err().to_string();
    assert!(error.contains("200 bytes of private data"), "{error}");
    assert_eq!(
        with(|library| library.modified.len()),
        before,
        "no handshake"
    );
    drop((listener, config, pd));
    assert_all_is_well();
}

#[test]
fn listener_answers_no_more_than_it_has_time_for() {
    const CLIENTS: usize = 10;
    let pd = pd();
    let mut listener = DatagramListener::new(Datagrams::builder(&pd).build().unwrap()).unwrap();
    let receives: Vec<u64> = posted();
    let before = receives.len();
    for (at, receive) in receives.into_iter().take(CLIENTS).enumerate() {
        let mut client = Client::new(&listener, 1024);
        let hello = client.sends().unwrap();
        let from = peer(u8::try_from(at).unwrap());
        comes(receive, &from, &hello, Some(from.qkey().get()));
    }
    let answers = || {
        with(|library| {
            library
                .posted
                .iter()
                .flatten()
                .filter(|any| any.is_send)
                .count()
        })
    };
    let prepared = Channel::builder(&pd).build().unwrap();
    let ended = bounded(|| prepared.accept(&mut listener, Duration::ZERO));
    assert!(before >= CLIENTS && ended.is_err());
    assert_eq!(answers(), 1);
    listener.poll().unwrap();
    assert_eq!(answers(), CLIENTS);
}
