//! Connecting by `rdma_cm`: to peers of this crate, to other programs, and to none.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::rdmacm::{Connector, Listener};
use verbs_channel::verbs_core::{Device, MaxRnrRetries, ProtectionDomain};
use verbs_channel::{BufferPool, Channel, Connect, DownReason, Error, Peer, PreparedChannel};
use verbs_harness::child::{Child, role};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, Test, begin};

use super::ends::{SOON, bounded, filled, patient, there, works, zeros};

/// A listener on the device at the other end of the wire, at its IPv4 address.
pub(crate) struct Server {
    pub(crate) pd: ProtectionDomain,
    pub(crate) listener: Listener,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) fn new(test: &Test) -> Option<Self> {
        let pd = there();
        let Some(ip) = verbs_harness::ip(pd.context()) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        let listener = match Listener::bind((ip, 0).into(), 16) {
            Err(error) if error.errno() == Some(libc::ENODEV) => {
                test.skip(format!("the kernel has no connection manager: {error}"));
                return None;
            }
            listener => listener.unwrap(),
        };
        let addr = listener.local_addr().unwrap();
        Some(Self { pd, listener, addr })
    }

    fn accept(&mut self) -> Channel {
        patient(&self.pd)
            .accept(&mut self.listener, PATIENCE)
            .unwrap()
            .channel
    }
}

/// A domain of the device from which the address is reached.
pub(crate) fn pd_to(addr: SocketAddr) -> ProtectionDomain {
    let resolving = Connector::new().unwrap().resolve_addr(addr, PATIENCE);
    let resolved = resolving.unwrap().wait(Some(PATIENCE)).unwrap();
    let device = Device::by_name(&resolved.device_name()).unwrap();
    device.open().unwrap().alloc_pd().unwrap()
}

/// A connected client and server.
pub(crate) fn pair(server: &mut Server) -> (Channel, Channel) {
    let addr = server.addr;
    thread::scope(|threads| {
        let client = threads.spawn(move || {
            patient(&pd_to(addr))
                .connect(Peer::cm(addr), PATIENCE)
                .unwrap()
                .channel
        });
        let accepted = server.accept();
        (client.join().unwrap(), accepted)
    })
}

/// How many bytes of private data a client can send, and a server.
fn longest() -> (usize, usize) {
    if is_iwarp() { (244, 244) } else { (49, 189) }
}

fn exchange_error(error: Error) -> ExchangeError {
    match error {
        Error::Exchange(failure) => failure.error,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_exchange_private_data_and_messages_both_ways() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    let (mut client, answer, mut accepted, request) = thread::scope(|threads| {
        let client = threads.spawn(move || {
            let prepared = patient(&pd_to(addr));
            let longest = vec![1; longest().0];
            prepared
                .connect(
                    Peer::cm(addr),
                    Connect::within(PATIENCE).private_data(&longest),
                )
                .unwrap()
        });
        let prepared = patient(&server.pd);
        let longest = vec![2; longest().1];
        let accepted = prepared.accept(
            &mut server.listener,
            Connect::within(PATIENCE).private_data(&longest),
        );
        let (client, accepted) = (client.join().unwrap(), accepted.unwrap());
        assert_eq!(client.peer, Some(PeerAddr::Socket(addr)));
        let [answer, request] = [client.private_data, accepted.private_data];
        (client.channel, answer, accepted.channel, request)
    });
    // Without the zeros behind them.
    assert_eq!(
        (request, answer),
        (vec![1; longest().0], vec![2; longest().1])
    );
    assert_eq!(client.peer_addr(), Some(addr));
    assert_eq!(accepted.peer_addr().unwrap().ip(), addr.ip());
    works(&mut client, &mut accepted, 5000);
    works(&mut accepted, &mut client, 5000);
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejected_peer_gets_the_reason() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    thread::scope(|threads| {
        let client = threads.spawn(move || patient(&pd_to(addr)).connect(Peer::cm(addr), PATIENCE));
        let request = server.listener.request(Some(PATIENCE)).unwrap().unwrap();
        let full = io::Error::other("no room for another client");
        PreparedChannel::refuse(request, PATIENCE, &full);
        let error = client.join().unwrap().unwrap_err();
        let text = format!("{addr} refused the connection: \"no room for another client\"");
        assert_eq!(error.to_string(), text);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn address_without_a_listener_is_tried_until_the_deadline() {
    let test = begin!();
    let Some(server) = Server::new(&test) else {
        return;
    };
    let Server { pd, listener, addr } = server;
    drop(listener);
    let client_pd = pd_to(addr);
    // A busy machine may not have asked once within the first of these.
    let text = format!("nothing listened at {addr} for ");
    let mut errors = Vec::new();
    let has_asked = [1, 8, 64].into_iter().any(|times| {
        let connected = patient(&client_pd).connect(Peer::cm(addr), SOON * times);
        errors.push(connected.unwrap_err().to_string());
        errors[errors.len() - 1].starts_with(&text)
    });
    assert!(has_asked, "{errors:?}");
    // One that listens meanwhile is found, with the same queue pair.
    thread::scope(|threads| {
        let client = threads.spawn(move || {
            patient(&pd_to(addr))
                .connect(Peer::cm(addr), PATIENCE)
                .unwrap()
                .channel
        });
        thread::sleep(SOON);
        let listener = Listener::bind(addr, 16).unwrap();
        let mut server = Server { pd, listener, addr };
        works(&mut server.accept(), &mut client.join().unwrap(), 1000);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn listener_that_never_accepts_ends_at_the_deadline() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let (addr, started) = (server.addr, Instant::now());
    let error = patient(&pd_to(addr))
        .connect(Peer::cm(addr), SOON)
        .unwrap_err();
    // Giving up takes soft-iWARP ten seconds.
    let bound = if is_iwarp() { PATIENCE } else { PATIENCE / 2 };
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
    assert_eq!(
        error.to_string(),
        format!("{addr} did not answer within 150 ms")
    );
    // The request is there, but its peer has given up.
    let request = server.listener.request(Some(PATIENCE)).unwrap().unwrap();
    let late = patient(&server.pd).accept(request, Connect::within(PATIENCE).raw_private_data(b""));
    let error = exchange_error(late.unwrap_err());
    assert!(matches!(error, ExchangeError::Manager(_)), "{error:?}");
    let alone = patient(&server.pd).accept(&mut server.listener, SOON);
    let text = "the peer did not connect within 150 ms";
    assert_eq!(alone.unwrap_err().to_string(), text);
    // Without a timeout it only looks.
    let server_pd = server.pd.clone();
    let looks = bounded(move || patient(&server_pd).accept(&mut server.listener, Duration::ZERO));
    let error = exchange_error(looks.unwrap_err());
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_whose_process_is_killed_has_closed() {
    if let Some((addr, mut line)) = role() {
        let addr = addr.parse().unwrap();
        let channel = patient(&pd_to(addr))
            .connect(Peer::cm(addr), PATIENCE)
            .unwrap()
            .channel;
        line.write("connected");
        line.is_slow();
        line.read();
        drop(channel);
        return;
    }
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let mut child = Child::start(&test, &server.addr.to_string());
    let mut accepted = server.accept();
    assert_eq!(child.line.read(), "connected");
    let mut into = zeros(&accepted, 64);
    child.kill();
    let error = bounded(|| accepted.receive(into.scatter_element(..).unwrap())).unwrap_err();
    assert_eq!(
        error.down_reason(),
        Some(DownReason::PeerClosed),
        "{error:?}"
    );
}

/// A channel that is rejected by its device if the peer has no receive posted.
fn hasty(pd: &ProtectionDomain) -> PreparedChannel {
    let builder = Channel::builder(pd).timeout(PATIENCE);
    let never = MaxRnrRetries::new(0).unwrap();
    builder.rnr_retry(never).build().unwrap()
}

/// Whether these bytes arrived, with zeros behind them but on iWARP.
fn is_padded(arrived: &[u8], sent: &[u8]) -> bool {
    let padding = arrived.strip_prefix(sent);
    padding.is_some_and(|padding| padding.is_empty() == is_iwarp())
}

#[test]
#[ignore = "needs an RDMA device"]
fn other_programs_find_prepared_receives_as_soon_as_they_may_send() {
    let test = begin!(iwarp lacks "a first message from the side that accepts");
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    let ready = |pd: &ProtectionDomain| {
        let (mut prepared, pool) = (hasty(pd), BufferPool::new(pd, 64, 1).unwrap());
        prepared.start_receive(pool.take().unwrap()).unwrap();
        prepared
    };
    let hello = |channel: &mut Channel| {
        let from = filled(channel, 3, 64);
        channel.send(from.gather_element(..).unwrap()).unwrap();
        let ticket = channel.prepared_receives()[0];
        let (received, _) = channel.wait_success(ticket).unwrap();
        assert_eq!(received.byte_len(), 64);
    };
    for _ in 0..10 {
        thread::scope(|threads| {
            let client = threads.spawn(move || {
                let prepared = ready(&pd_to(addr));
                let connected = prepared.connect(
                    Peer::cm(addr),
                    Connect::within(PATIENCE).raw_private_data(b"\x00raw"),
                );
                let Met {
                    channel: mut client,
                    private_data,
                    ..
                } = connected.unwrap();
                assert!(is_padded(&private_data, b"too"));
                hello(&mut client);
                client
            });
            let prepared = ready(&server.pd);
            let request = server.listener.request(Some(PATIENCE)).unwrap().unwrap();
            assert!(is_padded(request.private_data().as_bytes(), b"\x00raw"));
            assert!(request.initiator_depth() > 0);
            let accepted =
                prepared.accept(request, Connect::within(PATIENCE).raw_private_data(b"too"));
            let mut accepted = accepted.unwrap().channel;
            hello(&mut accepted);
            works(&mut accepted, &mut client.join().unwrap(), 100);
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn channel_of_another_device_than_the_address_is_an_error_that_names_both() {
    let test = begin!();
    let Some(server) = Server::new(&test) else {
        return;
    };
    let needed = pd_to(server.addr).context().device().name().to_owned();
    let names = Device::list().unwrap();
    let Some(other) = names.iter().find(|device| device.name() != needed) else {
        test.skip("there is only one device");
        return;
    };
    let pd = other.open().unwrap().alloc_pd().unwrap();
    let error = patient(&pd).connect(Peer::cm(server.addr), Duration::from_secs(1));
    let text = format!(
        "{} is connected to by {needed}, and this channel is of {}: open {needed}",
        server.addr,
        other.name()
    );
    assert_eq!(error.unwrap_err().to_string(), text);
}
