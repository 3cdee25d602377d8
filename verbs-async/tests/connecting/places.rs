//! Connections that a listener takes in place of lost ones, and peers that take the places of silent ones.

use std::io::Write as _;
use std::net::TcpStream;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::yield_now;
use verbs_async::Listener;
use verbs_async::verbs_channel::exchange::{Exchange, ExchangeError, Io};

use crate::gate::{LONG, group, have_begun, held_preparations};
use crate::listeners::{bind, connect, failure, on_all, on_one};
use crate::{accept, clock};

/// How long a peer may be silent while another waits.
const SILENCE: Duration = Duration::from_secs(2);
/// Further than the clock of any test moves on.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// The peer at the other end of this stream is the next to arrive, since it was late.
async fn loses_its_place(listener: &mut Listener, peer: &TcpStream) {
    let mut accepting = pin!(listener.accept());
    let arrival = loop {
        if let Some(arrival) = accepting.as_mut().now_or_never() {
            break arrival.unwrap();
        }
        clock::jump(SILENCE);
        yield_now().await;
    };
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
        let listener = group.listen(listener, NEVER).await.unwrap();
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
        let listener = group.listen(listener, NEVER).await.unwrap();
        let mut listener = listener.max_handshakes(1);
        let held = held_preparations(1);
        let _peers = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        let mut accepting = pin!(listener.accept());
        let begun = have_begun(&held, 1);
        tokio::select! {
            arrival = &mut accepting => panic!("{arrival:?}"),
            () = begun => {}
        }
        for _ in 0..100 {
            clock::jump(SILENCE);
            let arrival = accepting.as_mut().now_or_never();
            assert!(arrival.is_none(), "{arrival:?}");
            yield_now().await;
        }
        drop(held);
    });
}

#[test]
fn peers_that_never_become_ready_lose_places_beyond_a_share() {
    on_one(|events| async move {
        let group = group(&events, 4);
        let (listener, address) = bind();
        let listener = group.listen(listener, NEVER).await.unwrap();
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
