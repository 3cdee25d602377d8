//! Channels that are connected by `rdma_cm`, whose events are made up, with a socket beside the connection.

use std::error::Error;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fake_librdmacm::{Arrival, arrive, with};
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::rdmacm::{Answer, Connection, Connector, Pending};
use verbs_channel::verbs_core::verbs_sys::{
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE,
};
use verbs_channel::{Channel, PreparedChannel, ScopeError};

use crate::fake_device::{bounded, pd, posted, region, succeeds};
use crate::peers::CLOSED;
use crate::peers_over_tcp::tcp;

const SECOND: Duration = Duration::from_secs(1);
const NOW: Option<Duration> = Some(Duration::ZERO);

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

/// Asks for a connection of a channel.
fn ask(prepared: &mut PreparedChannel) -> Result<Pending<Answer>, ExchangeError> {
    let addr = "192.0.2.1:7471".parse().unwrap();
    let connector = Connector::new().unwrap();
    let resolving = connector.resolve_addr(addr, SECOND).unwrap();
    arrive(0, Arrival::of(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
    let resolved = resolving.wait(NOW).unwrap();
    let resolving = resolved.resolve_route(SECOND).unwrap();
    arrive(0, Arrival::of(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    prepared.request_cm(resolving.wait(NOW).unwrap(), b"")
}

/// A channel, and its connection.
fn with_a_connection() -> (Channel, Connection) {
    connected_by_manager(Some(PEER_TIMEOUT))
}

/// The same, with this peer timeout.
pub(crate) fn connected_by_manager(peer_timeout: Option<Duration>) -> (Channel, Connection) {
    let mut prepared = prepared_with(&pd(), peer_timeout);
    let asked = ask(&mut prepared).unwrap();
    arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
    let answer = asked.wait(NOW).unwrap();
    let (channel, establishing) = prepared.answered_cm(answer).unwrap();
    (channel, establishing.establish().unwrap())
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
    let mut prepared = prepared(&pd);
    let refused = ("rdma_connect", libc::ETIMEDOUT);
    // A driver connects by TCP in the call, or reports the end of that in an event.
    for in_the_call in [true, false] {
        with(|manager| manager.refuse.extend(in_the_call.then_some(refused)));
        let error = match ask(&mut prepared) {
            Err(error) => error,
            Ok(asked) => {
                arrive(0, Arrival::of(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
                let error = asked.wait(NOW).unwrap_err();
                verbs_channel::exchange::rdmacm::explain(error, SECOND)
            }
        };
        let ExchangeError::TimedOut { what, after: None } = error else {
            panic!("{error:?}");
        };
        assert_eq!(what, "answer");
    }
}

#[test]
fn request_whose_port_is_taken_is_made_from_another_port() {
    const TRIES: usize = 8;
    let taken = ("rdma_connect", libc::EADDRINUSE);
    let pd = pd();
    let mut prepared = prepared(&pd);
    for taken_ports in [0, 1, TRIES - 1, TRIES] {
        with(|manager| {
            manager.resolves = true;
            manager.refuse.extend(vec![taken; taken_ports]);
            manager.calls.clear();
        });
        let to = "192.0.2.1:7471".parse().unwrap();
        let connector = Connector::new().unwrap();
        let resolved = connector.resolve_addr(to, SECOND).unwrap().wait(NOW);
        let route = resolved.unwrap().resolve_route(SECOND).unwrap().wait(NOW);
        let asked = prepared.request_cm_from_any_port(route.unwrap(), b"", SECOND);
        let calls =
            |name| with(|manager| manager.calls.iter().filter(|call| **call == name).count());
        assert_eq!(calls("rdma_connect"), TRIES.min(taken_ports + 1));
        // Each of the others has an address of its own.
        assert_eq!(calls("rdma_bind_addr"), taken_ports.min(TRIES - 1));
        match asked {
            Ok(_asked) => assert!(taken_ports < TRIES),
            Err(ExchangeError::Manager(error)) => {
                assert_eq!(
                    (taken_ports, error.errno()),
                    (TRIES, Some(libc::EADDRINUSE))
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop(prepared);
    fake_librdmacm::assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
fn scope_ends_its_operations_although_the_function_that_drops_the_connection_panics() {
    let (mut channel, connection) = with_a_connection();
    let id = channel.id();
    let panics = |connection| {
        drop(connection);
        panic!("on purpose");
    };
    let engine = channel.engine_mut();
    engine.watch_connection(id, connection, panics).unwrap();
    let mut into = region(&channel);
    let scoped = bounded(|| {
        channel.scope(|scope| {
            let _receive = scope.post_receive(into.scatter_element(..)?)?;
            // The queue pair is destroyed, and then the connection is dropped.
            fake_libibverbs::with(|library| library.poll_answer = Some(-2));
            scope.poll();
            Ok::<_, Box<dyn Error>>(())
        })
    });
    assert!(matches!(scoped, Err(ScopeError::AutoPollError(_))));
    assert!(channel.is_idle() && fake_libibverbs::in_flight() == 0);
    drop(channel);
    fake_librdmacm::assert_all_is_well();
}
