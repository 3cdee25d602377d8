//! Devices of iWARP, whose peers meet over TCP and connect by `rdma_cm`.
#![expect(unsafe_code, reason = "makes a device one of iWARP")]

use std::error::Error as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use soft_verbs::Host;
use verbs_async::verbs_channel::exchange::{Exchange, ExchangeError, Io, Side};
use verbs_async::verbs_channel::{self, Channel};
use verbs_async::{AsyncGroup, Error};
use verbs_core::verbs_sys::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_transport_type};

use super::{LONG, alone, device};

/// Tests of other files have the same device afterwards.
struct Iwarp;

impl Iwarp {
    fn begin() -> Self {
        set_transport(IBV_TRANSPORT_IWARP);
        Self
    }
}

impl Drop for Iwarp {
    fn drop(&mut self) {
        set_transport(IBV_TRANSPORT_IB);
    }
}

fn set_transport(transport: ibv_transport_type) {
    let (pd, _events) = device();
    // SAFETY: the device lives as long as the process, and this test alone uses it.
    unsafe { (*pd.context().device().as_ptr()).transport_type = transport };
}

/// Both sides, of which none or one is refused by the device.
async fn connect(refused: Option<&'static str>) -> [verbs_async::Result<()>; 2] {
    let (pd, events) = device();
    let group = AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap();
    let mut listener = group.listen("127.0.0.1:0", LONG).await.unwrap();
    let address = listener.local_addr().unwrap();
    if let Some(verb) = refused {
        Host::current().refuse(verb, libc::EPERM);
    }
    let (met, accepted) = tokio::join!(group.connect(address, LONG), listener.accept());
    let outcomes = [met.map(drop), accepted.unwrap().outcome.map(drop)];
    listener.close().await;
    group.closed().await.unwrap();
    outcomes
}

fn is_refused(outcome: verbs_async::Result<()>) -> bool {
    let Err(Error::Channel(verbs_channel::Error::Exchange(failure))) = outcome else {
        panic!("{outcome:?}");
    };
    matches!(failure.error, ExchangeError::Refused { .. })
}

#[test]
fn peers_connect_and_a_side_that_cannot_sends_the_reason_over_tcp() {
    alone(async || {
        let _iwarp = Iwarp::begin();
        for outcome in connect(None).await {
            outcome.unwrap();
        }
        let [here, there] = connect(Some("rdma_resolve_addr")).await;
        assert!(here.unwrap_err().source().is_some());
        assert!(is_refused(there));
        let [here, there] = connect(Some("rdma_accept")).await;
        assert!(is_refused(here));
        assert!(there.unwrap_err().source().is_some());
    });
}

/// A peer that agrees over TCP, and then does not connect.
fn agrees_only(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut exchange = Exchange::by_manager(b"", Side::Connects).unwrap();
    for _ in 0..2 {
        while let Some(io) = exchange.io().unwrap() {
            let moved = match io {
                Io::Write(bytes) => stream.write(bytes),
                Io::Read(buffer) => stream.read(buffer),
            };
            exchange.moved(moved);
        }
        exchange.listens_at(None);
    }
    stream
}

#[test]
fn error_of_a_listener_names_the_step_that_a_late_peer_has_not_taken() {
    alone(async || {
        let _iwarp = Iwarp::begin();
        let (pd, events) = device();
        let group = AsyncGroup::new(Channel::builder(&pd), 1, &events).unwrap();
        let timeout = Duration::from_millis(400);
        let mut listener = group.listen("127.0.0.1:0", timeout).await.unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || agrees_only(address));
        let error = listener.accept().await.unwrap().outcome.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("did not connect within 400 ms"), "{text}");
        drop(peer.join().unwrap());
        listener.close().await;
    });
}
