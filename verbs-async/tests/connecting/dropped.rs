//! Handshakes that do not complete: their queue pairs are destroyed by helper threads.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use tokio::io::AsyncReadExt as _;

use crate::bench::held_destroys;
use crate::gate::{LONG, block_on, events, group};

const DESTROY: &str = "ibv_destroy_qp";

#[test]
fn exchange_that_does_not_complete_destroys_on_a_helper_thread() {
    block_on(async {
        let group = group(&events(), 1);
        let destroys = held_destroys();
        for (is_prepared, is_cancelled) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ours = TcpStream::from(OwnedFd::from(ours));
            theirs.set_nonblocking(true).unwrap();
            let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
            let prepared = is_prepared.then(|| group.prepare().unwrap());
            let group = group.clone();
            let exchange = tokio::spawn(async move {
                match prepared {
                    Some(prepared) => group.exchange_prepared(prepared, ours, LONG).await,
                    None => group.exchange(ours, LONG).await,
                }
            });
            // It waits for its peer.
            theirs.read_u8().await.unwrap();
            destroys.returns();
            if is_cancelled {
                exchange.abort();
                exchange.await.unwrap_err();
            } else {
                drop(theirs);
                exchange.await.unwrap().unwrap_err();
            }
            destroys.begins(DESTROY);
        }
    });
}

#[test]
fn connecting_that_is_never_polled_or_finds_no_place_destroys_on_a_helper_thread() {
    block_on(async {
        let group = group(&events(), 1);
        let prepared = || group.prepare().unwrap();
        let stream = || TcpStream::from(OwnedFd::from(UnixStream::pair().unwrap().0));
        let [first, second, third] = [(); 3].map(|()| prepared());
        let endpoint = first.endpoint();
        let first = group.handshake(first, &endpoint).await.unwrap();
        let destroys = held_destroys();
        drop(group.handshake(second, &endpoint));
        destroys.begins(DESTROY);
        drop(group.exchange_prepared(prepared(), stream(), LONG));
        destroys.begins(DESTROY);
        drop(group.connect_prepared(prepared(), "192.0.2.1:7471", LONG));
        destroys.begins(DESTROY);
        #[cfg(feature = "rdmacm")]
        {
            use verbs_async::verbs_channel::{Connect, Peer};

            // Its data is too long for the manager.
            let options = Connect::within(LONG).private_data(&[0; 300]);
            let peer = Peer::cm("192.0.2.1:7471");
            let connecting = group.connect_prepared(prepared(), peer, options);
            connecting.await.unwrap_err();
            destroys.begins(DESTROY);
        }
        group.handshake(third, &endpoint).await.unwrap_err();
        destroys.begins(DESTROY);
        assert!(!first.is_down());
    });
}
