//! Connecting over TCP on iWARP, where that leads to a connection by `rdma_cm`: peers that lie, die or are late,
//! and strangers.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use verbs_channel::__private::{CmExchange, CmStep, Meeting};
use verbs_channel::exchange::{Exchange, ExchangeError, Io, RefusalCode, Side};
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::rdmacm::Listener;
use verbs_channel::{Channel, Connect, DownReason, Error};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, begin};

use super::ends::{bounded, filled, here, patient, pattern, there, works, zeros};

/// Begins a test of iWARP.
macro_rules! begin_iwarp {
    () => {{
        let test = begin!();
        if !is_iwarp() {
            return test.skip("it is about iWARP");
        }
        test
    }};
}

/// Time for what is bounded by a deadline, and for ending an identifier, which takes 7 s on soft-iWARP.
const BOUND: Duration = Duration::from_secs(15);

fn tcp_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A peer that runs its side of the exchange by hand.
struct Peer {
    stream: TcpStream,
    exchange: Exchange,
}

impl Peer {
    fn new(stream: TcpStream, side: Side) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let exchange = Exchange::by_manager(b"", side).unwrap();
        Self { stream, exchange }
    }

    /// Runs the exchange until it is done.
    fn run(&mut self) -> Result<Meeting, ExchangeError> {
        while let Some(io) = self.exchange.io()? {
            let moved = match io {
                Io::Write(bytes) => self.stream.write(bytes),
                Io::Read(buffer) => self.stream.read(buffer),
            };
            self.exchange.moved(moved);
        }
        Ok(self.exchange.meeting().unwrap().clone())
    }

    /// The meeting with a side that listens.
    fn reach(&mut self) -> Meeting {
        assert!(!self.run().unwrap().listens);
        self.exchange.listens_at(None);
        self.run().unwrap()
    }
}

/// The private data of a message of `rdma_cm` that carries these bytes.
fn hello(data: &[u8]) -> Vec<u8> {
    let len = u8::try_from(data.len()).unwrap();
    [b"VRBC\0\x01", &[len][..], data].concat()
}

/// A listener at an address of the peer's device.
fn listener() -> Listener {
    let at = there().context().local_addr().unwrap();
    Listener::bind(at, 16).unwrap()
}

/// The error of a stranger on the same device that asks with these bytes.
fn rejected(at: SocketAddr, request: &[u8]) -> ExchangeError {
    let options = Connect::within(PATIENCE).raw_private_data(request);
    let error = patient(&here()).connect(verbs_channel::Peer::cm(at), options);
    match error.unwrap_err() {
        Error::Exchange(failure) => failure.error,
        other => panic!("{other:?}"),
    }
}

/// The error of a side that accepts, with this timeout, and its peer's address, while the peer does this.
fn accepting(timeout: Duration, peer: impl FnOnce(Peer) + Send) -> (Error, SocketAddr) {
    let (tcp, address) = tcp_listener();
    thread::scope(|threads| {
        let connecting = TcpStream::connect(address).unwrap();
        let theirs = connecting.local_addr().unwrap();
        threads.spawn(|| peer(Peer::new(connecting, Side::Connects)));
        let start = Instant::now();
        let error = patient(&here()).accept(&tcp, timeout).unwrap_err();
        assert!(start.elapsed() < timeout + BOUND, "{error}");
        (error, theirs)
    })
}

/// The same of a side that connects, and the TCP address of the peer.
fn connecting(timeout: Duration, peer: impl FnOnce(Peer) + Send) -> (Error, SocketAddr) {
    let (tcp, address) = tcp_listener();
    thread::scope(|threads| {
        threads.spawn(|| peer(Peer::new(tcp.accept().unwrap().0, Side::Accepts)));
        let start = Instant::now();
        let error = patient(&here()).connect(address, timeout).unwrap_err();
        assert!(start.elapsed() < timeout + BOUND, "{error}");
        (error, address)
    })
}

fn of_exchange(error: &Error) -> &ExchangeError {
    match error {
        Error::Exchange(failure) => &failure.error,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn either_side_sends_first_and_each_knows_the_address_over_tcp() {
    let _test = begin_iwarp!();
    for accepting_sends_first in [true, false] {
        let (tcp, address) = tcp_listener();
        thread::scope(|threads| {
            let connecting = threads.spawn(|| patient(&there()).connect(address, PATIENCE));
            let mut a = patient(&here()).accept(&tcp, PATIENCE).unwrap().channel;
            let mut b = connecting.join().unwrap().unwrap().channel;
            assert_eq!(b.peer_addr(), Some(address));
            assert_eq!(a.peer_addr().unwrap().ip(), address.ip());
            match accepting_sends_first {
                true => works(&mut a, &mut b, 5000),
                false => works(&mut b, &mut a, 5000),
            }
            works(&mut a, &mut b, 1);
            works(&mut b, &mut a, 1);
            drop(a);
            assert!(bounded(|| b.wait_completed(Some(PATIENCE / 4))).is_none());
            assert_eq!(b.down_reason(), Some(DownReason::PeerClosed));
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn stranger_is_rejected_and_the_peer_connects() {
    let _test = begin_iwarp!();
    let (tcp, address) = tcp_listener();
    thread::scope(|threads| {
        let peer = threads.spawn(|| {
            let mut peer = Peer::new(TcpStream::connect(address).unwrap(), Side::Connects);
            let meeting = peer.reach();
            let at = meeting.listener.unwrap();
            for stranger in [hello(b"another"), Vec::new()] {
                let rejected = rejected(at, &stranger);
                let ExchangeError::Refused { code, words } = rejected else {
                    panic!("{rejected:?}");
                };
                assert_eq!(code, RefusalCode::HANDSHAKE);
                assert!(
                    words.contains("this address is for another connection"),
                    "{words}"
                );
            }
            let pd = there();
            let side = CmExchange::meet(patient(&pd), &meeting, None, PATIENCE, Instant::now());
            let mut side = side.unwrap();
            side.meets(Some(at));
            let mut channel = None;
            let connection = loop {
                match side.step().unwrap() {
                    CmStep::Wait(_) => thread::sleep(Duration::from_millis(1)),
                    CmStep::Connected(connected) => {
                        channel = Some(connected);
                        side.ready();
                    }
                    CmStep::Established(connection) => break connection,
                }
            };
            let mut channel = channel.unwrap();
            channel.watch_connection(connection).unwrap();
            peer.exchange.ready();
            peer.run().unwrap();
            (peer, channel)
        });
        let mut a = patient(&here()).accept(&tcp, PATIENCE).unwrap().channel;
        let (_peer, mut b) = peer.join().unwrap();
        works(&mut a, &mut b, 1000);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_never_connects_is_an_error_at_the_deadline_with_its_address() {
    let _test = begin_iwarp!();
    let timeout = PATIENCE / 8;
    let (error, peer) = accepting(timeout, |mut peer| {
        assert!(peer.reach().listener.is_some());
        peer.exchange.read_ahead();
        // The end of the stream.
        peer.run().unwrap_err();
    });
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("{peer} did not connect within")),
        "{text}"
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_dies_or_gives_the_reason_in_between_is_an_error_at_once() {
    let _test = begin_iwarp!();
    let hour = Duration::from_secs(3600);
    let (error, _) = accepting(hour, |mut peer| drop(peer.reach()));
    assert!(
        matches!(of_exchange(&error), ExchangeError::HungUp { .. }),
        "{error}"
    );
    let (error, peer) = accepting(hour, |mut peer| {
        drop(peer.reach());
        let why = std::io::Error::other("no route leads there");
        peer.exchange.refuse(&why);
        drop(peer.run());
    });
    let text = error.to_string();
    assert_eq!(
        text,
        format!("{peer} refused the connection: \"no route leads there\"")
    );
    // As it does not listen any more, too.
    let (error, _) = connecting(hour, |mut peer| {
        assert!(peer.run().unwrap().listens);
        let gone = listener();
        peer.exchange.listens_at(gone.local_addr());
        drop(gone);
        drop(peer.run());
    });
    assert!(
        matches!(of_exchange(&error), ExchangeError::NotListening { .. }),
        "{error:?}"
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn another_program_at_the_listener_s_address_is_an_error_that_names_it() {
    let _test = begin_iwarp!();
    for answer in [hello(b"another"), Vec::new()] {
        let mut at = None;
        let (error, _) = connecting(PATIENCE, |mut peer| {
            assert!(peer.run().unwrap().listens);
            let pd = there();
            let mut other = listener();
            at = other.local_addr();
            peer.exchange.listens_at(at);
            drop(peer.run());
            let request = other.request(Some(PATIENCE)).unwrap().unwrap();
            let options = Connect::within(PATIENCE).raw_private_data(&answer);
            let accepted = patient(&pd).accept(request, options);
            peer.exchange.read_ahead();
            drop(peer.run());
            drop(accepted);
        });
        assert!(
            matches!(of_exchange(&error), ExchangeError::Stranger),
            "{error:?}"
        );
        assert!(error.to_string().starts_with(&at.unwrap().to_string()));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_meet_over_ipv6_and_over_the_device_s_own_interface() {
    let test = begin_iwarp!();
    let pd = there();
    let own = pd.context().local_addrs().unwrap();
    let ips = [Ipv6Addr::LOCALHOST.into()].into_iter();
    let ips: Vec<_> = ips.chain(own.iter().map(SocketAddr::ip)).collect();
    if ips.len() < 2 {
        return test.skip("the device has no address");
    }
    for ip in ips {
        // A link-local one needs the number of its link.
        let Ok(tcp) = TcpListener::bind((ip, 0)) else {
            continue;
        };
        let address = tcp.local_addr().unwrap();
        thread::scope(|threads| {
            let connecting = threads.spawn(|| patient(&here()).connect(address, PATIENCE));
            let mut b = patient(&pd).accept(&tcp, PATIENCE).unwrap().channel;
            let mut a = connecting.join().unwrap().unwrap().channel;
            works(&mut a, &mut b, 1000);
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn everything_sent_arrives_before_the_end_of_a_peer_that_leaves_at_once() {
    const MESSAGES: usize = 64;
    let _test = begin_iwarp!();
    for accepting_leaves in [true, false] {
        let (tcp, address) = tcp_listener();
        let prepared = |pd: &ProtectionDomain| {
            let mut prepared = Channel::builder(pd).timeout(PATIENCE).build().unwrap();
            for _ in 0..MESSAGES {
                let region = pd.reg_mr(vec![0_u8; 5000]).unwrap();
                prepared.start_receive(region).unwrap();
            }
            prepared
        };
        thread::scope(|threads| {
            let leaves = |mut channel: Channel| {
                for seed in 0..MESSAGES {
                    let from = filled(&channel, seed, 5000);
                    channel.send(from.gather_element(..).unwrap()).unwrap();
                }
            };
            let connecting = threads.spawn(|| prepared(&there()).connect(address, PATIENCE));
            let accepted = prepared(&here()).accept(&tcp, PATIENCE).unwrap().channel;
            let connected = connecting.join().unwrap().unwrap().channel;
            let (mut stays, goes) = match accepting_leaves {
                true => (connected, accepted),
                false => (accepted, connected),
            };
            threads.spawn(move || leaves(goes));
            for (seed, ticket) in stays.prepared_receives().into_iter().enumerate() {
                let (_, region) = bounded(|| stays.wait_success(ticket)).unwrap();
                assert!(region[..] == pattern(seed, 5000), "{seed}");
            }
            let ended = bounded(|| stays.wait_completed(Some(PATIENCE / 4)));
            assert!(ended.is_none());
            assert_eq!(stays.down_reason(), Some(DownReason::PeerClosed));
            let mut into = zeros(&stays, 8);
            stays
                .receive(into.scatter_element(..).unwrap())
                .unwrap_err();
        });
    }
}
