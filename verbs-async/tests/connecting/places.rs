//! Connections that a listener takes in place of lost ones, and peers that take the places of silent ones.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use verbs_async::Listener;
use verbs_async::verbs_channel::exchange::{Exchange, ExchangeError, Io};

use crate::accept;
use crate::gate::{LONG, group};
use crate::listeners::{bind, connect, failure, on_all, on_one};

/// The peer at the other end of this stream is the next to arrive, since it was late.
async fn loses_its_place(listener: &mut Listener, peer: &TcpStream) {
    let arrival = listener.accept().await.unwrap();
    assert_eq!(arrival.peer, Some(peer.local_addr().unwrap().into()));
    let error = arrival.outcome.unwrap_err();
    assert!(
        matches!(failure(&error), ExchangeError::TimedOut { .. }),
        "{error}"
    );
}

#[test]
fn peer_that_shows_nothing_loses_its_place_to_one_that_comes() {
    on_one(|events| async move {
        let group = group(&events, 2);
        let (listener, address) = bind();
        let listener = group.listen(listener, LONG).await.unwrap();
        let mut listener = listener.max_handshakes(2);
        let silent = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        let good = tokio::spawn(connect(group.clone(), address, LONG));
        // The oldest two make room for the third, and for the good one.
        for silent in &silent[..2] {
            loses_its_place(&mut listener, silent).await;
        }
        let met = listener.accept().await.unwrap().outcome.unwrap();
        good.await.unwrap().unwrap();
        drop((met, silent));
    });
}

#[test]
fn time_in_which_this_side_prepares_is_not_silence_of_the_peer() {
    on_one(|events| async move {
        let group = group(&events, 4);
        let (listener, address) = bind();
        let listener = group.listen(listener, LONG).await.unwrap();
        // Longer than a peer may be silent while another waits.
        let pause = Mutex::new(Some(Duration::from_millis(2500)));
        let listener = listener.prepare_with(move |group, _peer| {
            let pause = pause.lock().unwrap().take();
            thread::sleep(pause.unwrap_or_default());
            group.prepare()
        });
        let mut listener = listener.max_handshakes(1);
        let clients = [(); 2].map(|()| tokio::spawn(connect(group.clone(), address, LONG)));
        let mut met = Vec::new();
        for _ in &clients {
            met.push(listener.accept().await.unwrap().outcome.unwrap());
        }
        for client in clients {
            met.push(client.await.unwrap().unwrap());
        }
    });
}

#[test]
fn peers_that_never_become_ready_lose_places_beyond_a_share() {
    on_one(|events| async move {
        let group = group(&events, 4);
        let (listener, address) = bind();
        let listener = group.listen(listener, LONG).await.unwrap();
        let mut listener = listener.max_handshakes(2);
        // They send their endpoints, and nothing more.
        let endpoint = group.prepare().unwrap().endpoint();
        let shown = [(); 2].map(|()| {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut exchange = Exchange::new(&endpoint, b"").unwrap();
            while let Some(Io::Write(bytes)) = exchange.io().unwrap() {
                let written = stream.write(bytes);
                exchange.moved(written);
            }
            stream
        });
        let good = tokio::spawn(connect(group.clone(), address, LONG));
        loses_its_place(&mut listener, &shown[0]).await;
        let met = listener.accept().await.unwrap().outcome.unwrap();
        good.await.unwrap().unwrap();
        drop((met, shown));
    });
}

#[test]
fn connection_lost_before_it_is_accepted_is_skipped() {
    on_all(|events| async move {
        let group = group(&events, 2);
        let (listener, address) = bind();
        let mut listener = group.listen(listener, LONG).await.unwrap();
        let good = tokio::spawn(connect(group.clone(), address, LONG));
        accept::fail(&[
            libc::ECONNABORTED,
            libc::ECONNRESET,
            libc::EPROTO,
            libc::EHOSTUNREACH,
        ]);
        let _met = listener.accept().await.unwrap().outcome.unwrap();
        let _good = good.await.unwrap().unwrap();
        assert_eq!(accept::failures_left(), 0);
        // A local fault is an error, after which the next call goes on.
        accept::fail(&[libc::EMFILE]);
        let _late = TcpStream::connect(address).unwrap();
        let error = listener.accept().await.unwrap_err();
        let ExchangeError::Tcp { source, .. } = failure(&error) else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::EMFILE));
    });
}
