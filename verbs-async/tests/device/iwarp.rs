//! Connecting over TCP on iWARP, where that leads to a connection by `rdma_cm`: peers that lie, die
//! or are late, and strangers. The code that both crates share is tested in `verbs-channel`.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use async_io::Timer;
use futures_util::future::{Either, select};
use verbs_async::verbs_channel::__private::Meeting;
use verbs_async::verbs_channel::exchange::{Exchange, ExchangeError, Io, Side};
use verbs_async::verbs_channel::verbs_core::rdmacm::Listener;
use verbs_async::verbs_channel::verbs_core::{Device, ProtectionDomain};
use verbs_async::verbs_channel::{self, Channel};
use verbs_async::{AsyncGroup, Error};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{begin, context, peer_name};

use super::ends::{PATIENCE, Way, events, run};

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

fn group() -> AsyncGroup {
    let pd = context().alloc_pd().unwrap();
    let events = events(Way::AsyncIo, pd.context());
    AsyncGroup::new(Channel::builder(&pd), 1, &events).unwrap()
}

fn there() -> ProtectionDomain {
    let there = Device::by_name(&peer_name()).unwrap().open().unwrap();
    there.alloc_pd().unwrap()
}

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
        let exchange = Exchange::by_manager(b"theirs", side).unwrap();
        Self { stream, exchange }
    }

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
}

/// A listener at an address of the peer's device.
fn listener() -> Listener {
    let at = there().context().local_addr().unwrap();
    Listener::bind(at, 16).unwrap()
}

/// The output of a future, beside which another task goes on: nothing blocks their thread.
async fn beside<T>(future: impl Future<Output = T>) -> T {
    let turns = AtomicUsize::new(0);
    let ticks = async {
        loop {
            Timer::after(Duration::from_millis(5)).await;
            turns.fetch_add(1, Ordering::Relaxed);
        }
    };
    let Either::Left((output, _)) = select(pin!(future), pin!(ticks)).await;
    assert!(turns.load(Ordering::Relaxed) > 0, "the thread was blocked");
    output
}

fn of_exchange(error: &Error) -> &ExchangeError {
    match error {
        Error::Channel(verbs_channel::Error::Exchange(failure)) => &failure.error,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_listener_that_never_answers_is_an_error_in_time_and_blocks_nothing() {
    let _test = begin_iwarp!();
    let (tcp, address) = tcp_listener();
    let peer = thread::spawn(move || {
        let mut peer = Peer::new(tcp.accept().unwrap().0, Side::Accepts);
        assert!(peer.run().unwrap().listens);
        let silent = listener();
        let at = silent.local_addr();
        peer.exchange.listens_at(at);
        drop(peer.run());
        peer.exchange.read_ahead();
        peer.run().unwrap_err();
        at.unwrap()
    });
    let error = run(Way::AsyncIo, async move {
        let group = group();
        let second = Duration::from_secs(1);
        let connecting = group.connect(address, second);
        beside(connecting).await.unwrap_err()
    });
    assert!(
        matches!(of_exchange(&error), ExchangeError::TimedOut { .. }),
        "{error:?}"
    );
    // The end of the stream: nothing of this side waits on.
    let at = peer.join().unwrap();
    assert_eq!(error.to_string(), format!("{at} did not answer within 1 s"));
}
