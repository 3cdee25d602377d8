//! Listeners and the peers that connect to them: no peer delays another, and every wait is bounded.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::ladder;
#[cfg(feature = "rdmacm")]
use verbs_async::Bind;
#[cfg(feature = "rdmacm")]
use verbs_async::verbs_channel::Peer;
use verbs_async::verbs_channel::connect::Met;
use verbs_async::verbs_channel::exchange::{ExchangeError, RefusalCode};
use verbs_async::verbs_channel::verbs_core::Context;
use verbs_async::verbs_channel::verbs_core::device::EventType;
use verbs_async::verbs_channel::{self, Connect, DownReason};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents, Error, Result};

use verbs_harness::faults;

#[cfg(feature = "rdmacm")]
use crate::gate::held_preparations;
use crate::gate::{LONG, block_on, events, group, have_begun, held_handshakes};

/// A client that connects with private data.
pub(crate) async fn connect(
    group: AsyncGroup,
    peer: SocketAddr,
    timeout: Duration,
) -> Result<Met<AsyncChannel>> {
    let options = Connect::within(timeout).private_data(b"guest");
    group.connect(peer, options).await
}

pub(crate) fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Runs this with the events of each runtime.
pub(crate) fn on_all<F: Future<Output = ()>>(test: impl Fn(CqEvents) -> F) {
    let ways: [fn(&Context) -> Result<CqEvents>; 3] = [
        CqEvents::create_tokio,
        CqEvents::create_async_io,
        CqEvents::create_thread,
    ];
    for way in ways {
        block_on(async {
            let (context, ..) = ladder();
            test(way(&context).unwrap()).await;
        });
    }
}

/// Runs this with the events of one runtime, as it takes a while, or they make no difference.
pub(crate) fn on_one<F: Future<Output = ()>>(test: impl Fn(CqEvents) -> F) {
    block_on(async { test(events()).await });
}

pub(crate) fn failure(error: &Error) -> &ExchangeError {
    match error {
        Error::Channel(verbs_channel::Error::Exchange(failure)) => &failure.error,
        other => panic!("{other}"),
    }
}

#[test]
fn silent_peers_and_blocked_handshakes_delay_no_other_peer() {
    on_all(|events| async move {
        let group = group(&events, 16);
        let (listener, address) = bind();
        let options = Connect::within(LONG).private_data(b"host");
        let mut listener = group.listen(listener, options).await.unwrap();
        let silent = [(); 5].map(|()| TcpStream::connect(address).unwrap());
        // Both ends of two peers.
        let held = held_handshakes(4);
        let connect = || tokio::spawn(connect(group.clone(), address, LONG));
        let blocked = [connect(), connect()];
        let mut accepted = Vec::new();
        {
            // Until the handshakes block: no peer has arrived by then.
            tokio::select! {
                arrival = listener.accept() => panic!("{arrival:?}"),
                () = have_begun(&held, 4) => {}
            }
        }
        let good = connect();
        let arrival = listener.accept().await.unwrap();
        let met = arrival.outcome.unwrap();
        assert_eq!(met.private_data, b"guest");
        assert_eq!((met.channel.is_down(), met.peer), (false, arrival.peer));
        accepted.push(met);
        let met = good.await.unwrap().unwrap();
        assert_eq!(
            (&met.private_data[..], met.peer),
            (&b"host"[..], Some(address.into()))
        );
        assert!(blocked.iter().all(|peer| !peer.is_finished()));
        drop(held);
        // Exchanges continue only while a task accepts, so the peers are awaited after that.
        for _ in &blocked {
            accepted.push(listener.accept().await.unwrap().outcome.unwrap());
        }
        for peer in blocked {
            drop(peer.await.unwrap().unwrap());
        }
        drop((silent, accepted));
    });
}

#[test]
fn each_peer_has_a_timeout_after_which_the_next_is_accepted() {
    on_one(|events| async move {
        let group = group(&events, 4);
        let (listener, address) = bind();
        let timeout = Duration::from_millis(400);
        // One at least.
        let listener = group.listen(listener, timeout).await.unwrap();
        let mut listener = listener.max_handshakes(0);
        let silent = TcpStream::connect(address).unwrap();
        let peer = silent.local_addr().unwrap();
        let good = tokio::spawn(connect(group.clone(), address, LONG));
        let arrival = listener.accept().await.unwrap();
        assert_eq!(arrival.peer, Some(peer.into()));
        let late = arrival.outcome.unwrap_err();
        let ExchangeError::TimedOut { after, .. } = failure(&late) else {
            panic!("{late}");
        };
        assert_eq!(*after, Some(timeout));
        assert!(late.to_string().contains(&peer.to_string()), "{late}");
        let met = listener.accept().await.unwrap().outcome.unwrap();
        good.await.unwrap().unwrap();
        drop((met, silent));
    });
}

#[test]
fn error_of_one_peer_affects_no_other() {
    on_all(|events| async move {
        // One pair, and no more: the driver does not resize its queue.
        let (group, other) = (group(&events, 2), group(&events, 1));
        let (listener, address) = bind();
        let mut listener = group.listen(listener, LONG).await.unwrap();
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let arrival = listener.accept().await.unwrap();
        assert_eq!(arrival.peer, Some(stranger.local_addr().unwrap().into()));
        let error = arrival.outcome.unwrap_err();
        is_not_ours(&error);
        let good = tokio::spawn(connect(group, address, LONG));
        let _met = listener.accept().await.unwrap().outcome.unwrap();
        let _good = good.await.unwrap().unwrap();
        let refused = tokio::spawn(connect(other, address, LONG));
        listener.accept().await.unwrap().outcome.unwrap_err();
        let error = refused.await.unwrap().unwrap_err();
        let ExchangeError::Refused { code, words } = failure(&error) else {
            panic!("{error}");
        };
        assert_eq!(*code, RefusalCode::HANDSHAKE);
        assert!(words.contains("the group is full"), "{words}");
    });
}

#[test]
fn peer_name_that_does_not_listen_yet_is_retried() {
    if let Err(error) = ("localhost", 0).to_socket_addrs() {
        let name = "peer_name_that_does_not_listen_yet_is_retried";
        return println!("SKIPPED {name}: `localhost` has no address here: {error}");
    }
    on_one(|events| async move {
        let group = group(&events, 2);
        let (listener, address) = bind();
        drop(listener);
        let name = format!("localhost:{}", address.port());
        let client = group.clone();
        let connecting = async move { client.connect(&name, LONG).await };
        let mut connecting = tokio::spawn(connecting);
        // The connection is refused meanwhile.
        let early = tokio::time::timeout(Duration::from_millis(50), &mut connecting).await;
        assert!(early.is_err(), "{early:?}");
        let mut listener = group
            .listen(TcpListener::bind(address).unwrap(), LONG)
            .await
            .unwrap();
        let _met = listener.accept().await.unwrap().outcome.unwrap();
        let _channel = connecting.await.unwrap().unwrap();
    });
}

#[test]
fn connecting_times_out_and_names_the_peer() {
    on_one(|events| async move {
        let group = group(&events, 2);
        let (listener, address) = bind();
        let timeout = Duration::from_millis(100);
        // No task accepts.
        let silent = connect(group.clone(), address, timeout).await;
        let error = silent.unwrap_err();
        assert!(
            matches!(failure(&error), ExchangeError::TimedOut { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(&address.to_string()), "{text}");
        assert!(
            text.contains("is connected over TCP but sent no answer within 100 ms"),
            "{text}"
        );
        drop(listener);
        // No socket listens.
        let refused = connect(group.clone(), address, timeout).await;
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!("nothing listened at {address} for 100 ms: is the server started?")
        );
        let pd = group.pd();
        let events = CqEvents::create_thread(pd.context()).unwrap();
        let refused = AsyncChannel::connect(pd, &events, address, timeout).await;
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!("nothing listened at {address} for 100 ms: is the server started?")
        );
        let nowhere = group.connect("not a name", LONG).await;
        let error = nowhere.unwrap_err();
        assert!(
            matches!(failure(&error), ExchangeError::Lookup { .. }),
            "{error}"
        );
        let text = "the peer's address \"not a name\" is not HOST:PORT";
        assert_eq!(error.to_string(), text);
    });
}

#[test]
fn private_data_are_checked_before_a_peer_is_connected_to() {
    on_one(|events| async move {
        let group = group(&events, 1);
        let long = [0; verbs_channel::exchange::MAX_PRIVATE_DATA + 1];
        let options = Connect::within(LONG).private_data(&long);
        // No socket listens.
        let (listener, address) = bind();
        drop(listener);
        let local = (Ipv4Addr::LOCALHOST, 0);
        let errors = [
            group.connect(address, &options).await.map(drop),
            group.listen(local, &options).await.map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            let is_so = matches!(failure(&error), ExchangeError::PrivateData(1025));
            assert!(is_so, "{error}");
        }
        #[cfg(feature = "rdmacm")]
        {
            let cm = Bind::cm("192.0.2.1:7471");
            let error = group.listen(cm, &options).await.unwrap_err();
            let is_so = matches!(
                failure(&error),
                ExchangeError::PrivateDataBeyondManager { .. }
            );
            assert!(is_so, "{error}");
        }
    });
}

#[cfg(feature = "rdmacm")]
#[test]
fn preparing_for_the_manager_is_bound_by_the_deadline() {
    on_one(|events| async move {
        let group = group(&events, 1);
        let held = held_preparations(1);
        let timeout = Duration::from_millis(100);
        let error = group.connect(Peer::cm("192.0.2.1:7471"), timeout).await;
        let error = error.unwrap_err();
        assert!(
            matches!(failure(&error), ExchangeError::TimedOut { .. }),
            "{error}"
        );
        drop(held);
    });
}

#[test]
fn stream_is_shut_down_if_its_exchange_fails_or_is_dropped() {
    on_all(|events| async move {
        let group = group(&events, 1);
        for is_dropped in [false, true] {
            let (listener, address) = bind();
            let ours = TcpStream::connect(address).unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            let _clone = ours.try_clone().unwrap();
            if !is_dropped {
                theirs.write_all(b"220 example.org SMTP\r\n").unwrap();
            }
            let time = if is_dropped { LONG / 100 } else { LONG };
            let exchange = tokio::time::timeout(time, group.exchange(ours, LONG)).await;
            assert_eq!(exchange.is_err(), is_dropped);
            assert!(!matches!(exchange, Ok(Ok(_))));
            // The peer sees the end.
            theirs.set_read_timeout(Some(LONG)).unwrap();
            let ended = theirs.read_to_end(&mut Vec::new());
            let is_late = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            assert!(!ended.as_ref().is_err_and(is_late), "{ended:?}");
        }
    });
}

fn is_not_ours(error: &Error) {
    let is_so = matches!(failure(error), ExchangeError::NotOurs(_));
    assert!(is_so, "{error}");
}

#[test]
fn peer_of_another_protocol_is_an_error_at_once_that_names_it() {
    on_one(|events| async move {
        let group = group(&events, 1);
        let (listener, address) = bind();
        let stranger = thread::spawn(move || {
            let (mut stranger, _) = listener.accept().unwrap();
            stranger.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
            stranger
        });
        let start = Instant::now();
        let error = group.connect(address, LONG).await.unwrap_err();
        faults::error(faults::INVALID, "async", &error, faults::at_once(start));
        is_not_ours(&error);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        drop(stranger.join().unwrap());
    });
}

#[test]
fn listener_that_waits_ends_when_its_group_fails_and_says_why() {
    on_all(|events| async move {
        let group = group(&events, 16);
        let (listener, address) = bind();
        let mut listener = group.listen(listener, LONG).await.unwrap();
        let reason = DownReason::Event(EventType::CQ_ERR);
        let fails = |error: Error| {
            assert_eq!(error.down_reason(), Some(reason), "{error}");
            assert!(matches!(
                error,
                Error::Channel(verbs_channel::Error::GroupFailed(_))
            ));
        };
        assert_eq!(group.failure(), None);
        let later = group.clone();
        let failed = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            later.abort_all(reason);
        });
        let accepted = tokio::time::timeout(LONG, listener.accept()).await;
        fails(accepted.expect("it is woken").unwrap_err());
        failed.await.unwrap();
        // Again, and with a peer that connects.
        let _peer = TcpStream::connect(address).unwrap();
        fails(listener.accept().await.unwrap_err());
        assert_eq!(group.failure(), Some(reason));
    });
}

#[test]
fn channel_of_a_failed_group_is_not_connected() {
    on_one(|events| async move {
        let [failed, other] = [(); 2].map(|()| group(&events, 1));
        let (listener, address) = bind();
        let mut listener = other.listen(listener, LONG).await.unwrap();
        failed.abort_all(DownReason::Event(EventType::DEVICE_FATAL));
        let connected = tokio::spawn(connect(failed.clone(), address, LONG));
        let (connected, arrival) = tokio::join!(connected, listener.accept());
        let reason = Some(DownReason::Event(EventType::DEVICE_FATAL));
        assert_eq!(connected.unwrap().unwrap_err().down_reason(), reason);
        drop(arrival);
        // Closing all is no failure.
        other.abort_all(DownReason::Closed);
        assert_eq!(other.failure(), None);
    });
}

#[test]
fn timeout_counts_from_the_first_poll() {
    let timeout = Duration::from_millis(50);
    on_one(|events| async move {
        let (nobody, peer) = bind();
        drop(nobody);
        let group = group(&events, 1);
        let connecting = group.connect(peer, timeout);
        thread::sleep(2 * timeout);
        let start = Instant::now();
        connecting.await.unwrap_err();
        assert!(start.elapsed() >= timeout);
    });
}
