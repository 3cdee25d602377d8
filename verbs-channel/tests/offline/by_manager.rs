//! Channels that are connected by `rdma_cm`, whose events are made up, with a socket beside the connection.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use fake_librdmacm::{Arrival, arrive, with};
use verbs_channel::__private::{CmExchange, CmStep};
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::rdmacm::{Connection, Listener};
use verbs_channel::verbs_core::verbs_sys::{
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE,
};
use verbs_channel::{Channel, Connect, PreparedChannel};

use crate::fake_device::{pd, posted, refuse, region, succeeds};
use crate::peers::CLOSED;
use crate::peers_over_tcp::tcp;

const SECOND: Duration = Duration::from_secs(1);

/// How long after its socket a peer's connection may end.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

fn prepared(pd: &ProtectionDomain) -> PreparedChannel {
    prepared_with(pd, Some(PEER_TIMEOUT))
}

fn prepared_with(pd: &ProtectionDomain, peer_timeout: Option<Duration>) -> PreparedChannel {
    with(|manager| manager.context = pd.context().as_ptr());
    let builder = Channel::builder(pd).peer_timeout(peer_timeout);
    builder.max_send_wr(4).max_recv_wr(4).build().unwrap()
}

/// One side that connects, raw.
fn connecting(prepared: PreparedChannel) -> CmExchange<Channel> {
    let addr = "192.0.2.1:7471".parse().unwrap();
    let options = Connect::within(SECOND).raw_private_data(b"");
    CmExchange::connect(prepared, vec![addr], &options, Instant::now()).unwrap()
}

/// The same when it has asked for the connection, or its error.
fn asked(prepared: PreparedChannel) -> Result<CmExchange<Channel>, verbs_channel::Error> {
    let mut exchange = connecting(prepared);
    for event in [RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED] {
        let step = exchange.step()?;
        assert!(matches!(step, CmStep::Wait(_)), "{step:?}");
        arrive(0, Arrival::of(event, 0));
    }
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

/// A channel, and its connection.
fn with_a_connection() -> (Channel, Connection) {
    connected_by_manager(Some(PEER_TIMEOUT))
}

/// The same, with this peer timeout.
pub(crate) fn connected_by_manager(peer_timeout: Option<Duration>) -> (Channel, Connection) {
    let mut exchange = asked(prepared_with(&pd(), peer_timeout)).unwrap();
    arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
    let CmStep::Connected(channel) = exchange.step().unwrap() else {
        panic!("it is not connected");
    };
    exchange.ready();
    let CmStep::Established(connection) = exchange.step().unwrap() else {
        panic!("it is not established");
    };
    (channel, connection)
}

/// A channel with both, and the peer's end of the socket.
pub(crate) fn with_a_socket() -> (Channel, TcpStream) {
    let (mut channel, connection) = with_a_connection();
    channel.watch_connection(connection).unwrap();
    let (ours, theirs, _) = tcp();
    channel.watch_peer(ours).unwrap();
    (channel, theirs)
}

/// Whether the channel is up after a check at this time.
fn is_up_at(channel: &mut Channel, now: Instant) -> bool {
    channel.engine_mut().check_peers(now);
    assert!(channel.down_reason().is_none_or(|reason| reason == CLOSED));
    !channel.is_down()
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
fn orderly_end_of_the_socket_waits_for_that_of_the_connection() {
    let (mut channel, theirs) = with_a_socket();
    let receive = channel.start_receive(region(&channel)).unwrap();
    drop(theirs);
    let start = Instant::now();
    assert!(is_up_at(&mut channel, start));
    assert!(is_up_at(&mut channel, start + PEER_TIMEOUT / 2));
    // A message that the peer sent before arrives late.
    succeeds(posted()[0]);
    let received = channel.engine_mut().poll(receive).unwrap().unwrap();
    received.result.unwrap();
    assert!(is_up_at(&mut channel, start + PEER_TIMEOUT / 2));
    arrive(0, Arrival::of(RDMA_CM_EVENT_DISCONNECTED, 0));
    assert!(!is_up_at(&mut channel, start + PEER_TIMEOUT / 2));
    drop(channel);
    fake_librdmacm::assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
fn peer_whose_connection_does_not_end_has_left_after_the_peer_timeout() {
    let (mut channel, theirs) = with_a_socket();
    drop(theirs);
    let start = Instant::now();
    assert!(is_up_at(&mut channel, start));
    assert!(!is_up_at(&mut channel, start + PEER_TIMEOUT));
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
fn polls_are_cheap_between_the_ends_of_the_socket_and_of_the_connection() {
    const POLLS: usize = 1000;
    let (mut channel, theirs) = with_a_socket();
    drop(theirs);
    assert!(is_up_at(&mut channel, Instant::now()));
    let polls = || fake_libibverbs::with(|library| library.rooms.len());
    let before = polls();
    for _ in 0..POLLS {
        assert!(channel.next_completed().is_none());
    }
    // A check of the peers polls, too. There is one in some milliseconds.
    let polled = polls() - before;
    assert!((POLLS..POLLS * 3 / 2).contains(&polled), "{polled}");
    // Once the connection has ended, too, each poll brings the channel nearer to its end.
    arrive(0, Arrival::of(RDMA_CM_EVENT_DISCONNECTED, 0));
    assert!(!is_up_at(&mut channel, Instant::now()));
}

#[test]
fn address_that_nothing_answers_from_is_a_peer_that_did_not_answer() {
    let pd = pd();
    let refused = ("rdma_connect", libc::ETIMEDOUT);
    // A driver connects by TCP in the call, or reports the end of that in an event.
    for in_the_call in [true, false] {
        with(|manager| manager.refuse.extend(in_the_call.then_some(refused)));
        let error = match asked(prepared(&pd)) {
            Err(error) => error,
            Ok(mut exchange) => {
                arrive(0, Arrival::of(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
                exchange.step().unwrap_err()
            }
        };
        let ExchangeError::TimedOut { what, after: None } = of_exchange(error) else {
            panic!("another error");
        };
        assert_eq!(what, "answer");
    }
}

#[test]
fn request_whose_port_is_taken_is_made_from_another_port() {
    const TRIES: usize = 8;
    let taken = ("rdma_connect", libc::EADDRINUSE);
    let pd = pd();
    for taken_ports in [0, 1, TRIES - 1, TRIES] {
        let prepared = prepared(&pd);
        with(|manager| {
            manager.resolves = true;
            manager.refuse.extend(vec![taken; taken_ports]);
            manager.calls.clear();
        });
        let step = connecting(prepared).step();
        let calls =
            |name| with(|manager| manager.calls.iter().filter(|call| **call == name).count());
        assert_eq!(calls("rdma_connect"), TRIES.min(taken_ports + 1));
        // Each of the others has an address of its own.
        assert_eq!(calls("rdma_bind_addr"), taken_ports.min(TRIES - 1));
        match step.map_err(of_exchange) {
            Ok(step) => assert!(taken_ports < TRIES && matches!(step, CmStep::Wait(_))),
            Err(ExchangeError::Manager(error)) => {
                assert_eq!(
                    (taken_ports, error.errno()),
                    (TRIES, Some(libc::EADDRINUSE))
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
    fake_librdmacm::assert_all_is_well();
}

#[test]
fn peer_is_sent_why_the_driver_refused_its_queue_pair() {
    let prepared = prepared(&pd());
    let mut listener = Listener::bind("0.0.0.0:0".parse().unwrap(), 1).unwrap();
    arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_REQUEST, 0));
    let request = listener.poll_request().unwrap().unwrap();
    let options = Connect::within(SECOND).raw_private_data(b"");
    let mut exchange = CmExchange::accept(prepared, request, &options, Instant::now()).unwrap();
    refuse("ibv_modify_qp", 1);
    of_exchange(exchange.step().unwrap_err());
    let sent = with(|manager| std::mem::take(&mut manager.rejections));
    let [sent] = sent.try_into().unwrap();
    let text = String::from_utf8_lossy(&sent);
    assert!(text.contains("ibv_modify_qp failed"), "{text}");
    drop((exchange, listener));
    fake_librdmacm::assert_all_is_well();
}

#[test]
fn private_data_beyond_the_messages_of_rdma_cm_is_found_before_there_is_a_peer() {
    let options = |len: usize| Connect::within(SECOND).private_data(&vec![0; len]);
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
