//! Channels that are connected by `rdma_cm`, with a socket beside the connection, and peers that are not reached.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use soft_verbs::{Fabric, Host};
use verbs_channel::__private::{CmExchange, CmStep};
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::rdmacm::{Connector, Listener};
use verbs_channel::verbs_core::verbs_sys::{RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_UNREACHABLE};
use verbs_channel::verbs_core::{CompletionQueue, Error as Core, QueuePair};
use verbs_channel::{Channel, Connect, DownReason, PreparedChannel};
use verbs_harness::child::{fork, in_the_child};
use verbs_harness::logged;

use super::{LONG, Peer, in_virtual_time, on_hosts, pd};

const CLOSED: DownReason = DownReason::PeerClosed;

/// How long after its socket a peer's connection may end.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

fn prepared() -> PreparedChannel {
    let pd = pd();
    let builder = Channel::builder(&pd).peer_timeout(PEER_TIMEOUT);
    builder.max_send_wr(4).max_recv_wr(4).build().unwrap()
}

/// Both sides of a connection.
fn connected(peer: &Peer) -> [Channel; 2] {
    let mut listener = peer.listener();
    let asks = asked().unwrap();
    let answers = peer.0.enter(|| {
        let request = listener.request(Some(LONG)).unwrap().unwrap();
        CmExchange::accept(prepared(), request, &raw(), Instant::now())
    });
    let mut sides = [asks, answers.unwrap()].map(|side| (side, None, None));
    while sides.iter().any(|(.., connection)| connection.is_none()) {
        for (side, channel, connection) in &mut sides {
            if connection.is_some() {
                continue;
            }
            match side.step().unwrap() {
                CmStep::Wait(_) => {}
                CmStep::Connected(connected) => {
                    *channel = Some(connected);
                    side.ready();
                }
                CmStep::Established(established) => *connection = Some(established),
            }
        }
    }
    sides.map(|(_, channel, connection)| {
        let mut channel: Channel = channel.unwrap();
        channel.watch_connection(connection.unwrap()).unwrap();
        channel
    })
}

/// The same, where the first one watches a socket, too; and the peer's end of that.
fn with_a_socket(peer: &Peer) -> (Channel, Channel, TcpStream) {
    let [mut ours, theirs] = connected(peer);
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    ours.watch_peer(socket).unwrap();
    (ours, theirs, tcp.accept().unwrap().0)
}

/// Whether the channel is up after a check at this time.
fn is_up_at(channel: &mut Channel, now: Instant) -> bool {
    channel.engine_mut().check_peers(now);
    assert!(channel.down_reason().is_none_or(|reason| reason == CLOSED));
    !channel.is_down()
}

/// The peer's connection ends.
fn disconnected(host: &Host) {
    host.cm_event(RDMA_CM_EVENT_DISCONNECTED.0, 0, b"");
}

#[test]
fn orderly_end_of_the_socket_waits_for_that_of_the_connection() {
    in_virtual_time(|host, peer| {
        let (mut channel, mut theirs, socket) = with_a_socket(peer);
        let region = |of: &Channel| of.pd().reg_mr(vec![7_u8; 64]).unwrap();
        let receive = channel.start_receive(region(&channel)).unwrap();
        drop(socket);
        let start = Instant::now();
        assert!(is_up_at(&mut channel, start));
        assert!(is_up_at(&mut channel, start + PEER_TIMEOUT / 2));
        // A message that the peer sent before arrives late.
        let from = region(&theirs);
        theirs.send(from.gather_element(..).unwrap()).unwrap();
        let received = channel.engine_mut().poll(receive).unwrap().unwrap();
        received.result.unwrap();
        assert!(is_up_at(&mut channel, start + PEER_TIMEOUT / 2));
        disconnected(host);
        assert!(!is_up_at(&mut channel, start + PEER_TIMEOUT / 2));
    });
}

#[test]
fn peer_whose_connection_does_not_end_has_left_after_the_peer_timeout() {
    in_virtual_time(|_, peer| {
        let (mut channel, _theirs, socket) = with_a_socket(peer);
        drop(socket);
        let start = Instant::now();
        assert!(is_up_at(&mut channel, start));
        assert!(!is_up_at(&mut channel, start + PEER_TIMEOUT));
    });
}

#[test]
fn polls_are_cheap_between_the_ends_of_the_socket_and_of_the_connection() {
    const POLLS: u64 = 1000;
    on_hosts(&Fabric::real_time(1), |host, peer| {
        let (mut channel, _theirs, socket) = with_a_socket(peer);
        drop(socket);
        assert!(is_up_at(&mut channel, Instant::now()));
        // A check of the peers polls, too. There is one in some milliseconds.
        host.refuse_after(POLLS * 3 / 2, "ibv_poll_cq", libc::EIO);
        for _ in 0..POLLS {
            assert!(channel.next_completed().is_none());
        }
        // Once the connection has ended, too, each poll brings the channel nearer to its end.
        disconnected(host);
        assert!(!is_up_at(&mut channel, Instant::now()));
    });
}

fn raw() -> Connect {
    Connect::within(LONG).raw_private_data(b"")
}

/// A side that has asked its peer for a connection, raw.
fn asked() -> Result<CmExchange<Channel>, verbs_channel::Error> {
    let addresses = vec![Peer::address()];
    let mut exchange = CmExchange::connect(prepared(), addresses, &raw(), Instant::now())?;
    let step = exchange.step()?;
    assert!(matches!(step, CmStep::Wait(_)), "{step:?}");
    Ok(exchange)
}

fn of_exchange(error: verbs_channel::Error) -> ExchangeError {
    match error {
        verbs_channel::Error::Exchange(failure) => failure.error,
        other => panic!("{other}"),
    }
}

#[test]
fn address_that_nothing_answers_from_is_a_peer_that_did_not_answer() {
    // A driver connects by TCP in the call, or reports the end of that in an event.
    for in_the_call in [true, false] {
        in_virtual_time(|host, peer| {
            let _listener = peer.listener();
            if in_the_call {
                host.refuse("rdma_connect", libc::ETIMEDOUT);
            }
            let error = match asked() {
                Err(error) => error,
                Ok(mut exchange) => {
                    host.cm_event(RDMA_CM_EVENT_UNREACHABLE.0, -libc::ETIMEDOUT, b"");
                    exchange.step().unwrap_err()
                }
            };
            let ExchangeError::TimedOut { what, after: None } = of_exchange(error) else {
                panic!("another error");
            };
            assert_eq!(what, "answer");
        });
    }
}

#[test]
fn request_whose_port_is_taken_is_made_from_another_port() {
    const TRIES: u64 = 8;
    for taken in [0, 1, TRIES - 1, TRIES] {
        let fabric = Fabric::seeded(1);
        on_hosts(&fabric, |host, peer| {
            let _listener = peer.listener();
            for _ in 0..taken {
                host.refuse("rdma_connect", libc::EADDRINUSE);
            }
            // Each of the others is bound to a port of its own.
            host.refuse_after(taken.min(TRIES - 1), "rdma_bind_addr", libc::EPERM);
            match asked().map_err(of_exchange) {
                Ok(_) => assert!(taken < TRIES),
                Err(ExchangeError::Manager(error)) => {
                    assert_eq!((taken, error.errno()), (TRIES, Some(libc::EADDRINUSE)));
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(fabric.counts().refused, taken);
            let mut another = Connector::new().unwrap();
            another.bind(([10, 0, 0, 1], 0).into()).unwrap_err();
        });
    }
}

#[test]
fn peer_is_sent_why_the_driver_refused_its_queue_pair() {
    in_virtual_time(|_, peer| {
        let mut listener: Listener = peer.listener();
        let resolving = Connector::new()
            .unwrap()
            .resolve_addr(Peer::address(), LONG);
        let resolved = resolving.unwrap().wait(Some(LONG)).unwrap();
        let route = resolved.resolve_route(LONG).unwrap();
        let pd = pd();
        let cq = CompletionQueue::create(pd.context(), 4).unwrap();
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let asks = route.wait(Some(LONG)).unwrap().connect(qp, b"").unwrap();
        peer.0.enter(|| {
            let request = listener.request(Some(LONG)).unwrap().unwrap();
            let exchange = CmExchange::accept(prepared(), request, &raw(), Instant::now());
            peer.0.refuse("ibv_modify_qp", libc::EIO);
            of_exchange(exchange.unwrap().step().unwrap_err());
        });
        let Err(Core::ConnectionManager { failure, .. }) = asks.wait(Some(LONG)) else {
            panic!("it is not rejected");
        };
        let text = String::from_utf8_lossy(failure.private_data().as_bytes());
        assert!(text.contains("ibv_modify_qp failed"), "{text}");
    });
}

#[test]
fn private_data_beyond_the_messages_of_rdma_cm_is_found_before_there_is_a_peer() {
    let options = |len: usize| Connect::within(LONG).private_data(&vec![0; len]);
    options(244).check_cm().unwrap();
    let error = options(245).check_cm().unwrap_err();
    assert!(
        matches!(
            error,
            ExchangeError::PrivateDataBeyondManager { len: 245, .. }
        ),
        "{error}"
    );
}

#[test]
fn a_child_ends_no_connection_of_the_connection_manager() {
    in_virtual_time(|host, peer| {
        let (channel, _theirs, _socket) = with_a_socket(peer);
        let mut channel = Some(channel);
        in_the_child(fork(), || {
            let count = || (host.cm_ids(), logged::lines().len());
            let before = count();
            drop(channel.take());
            assert_eq!(count(), before);
        });
    });
}
