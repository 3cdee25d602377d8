//! Peers that leave, over TCP: their addresses, and what is left of the connection.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use verbs_channel::exchange::{Exchange, ExchangeError, Io};
use verbs_channel::{Channel, Error, PreparedChannel};
use verbs_harness::child::{end_the_child, fork, wait_for_the_child, without_descriptors};

use crate::fake_device::{DRAIN, bounded, channel, pd, region};
use crate::peers::{CLOSED, ENDED, LONG};

pub(crate) fn tcp() -> (TcpStream, TcpStream, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let ours = TcpStream::connect(address).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (ours, theirs, address)
}

fn prepared() -> PreparedChannel {
    let builder = Channel::builder(&pd()).drain_timeout(DRAIN);
    builder.build().unwrap()
}

/// Runs the exchange of a peer that has no device.
fn run(exchange: &mut Exchange, mut stream: &TcpStream) -> Result<(), ExchangeError> {
    while let Some(io) = exchange.io()? {
        let moved = match io {
            Io::Write(bytes) => stream.write(bytes),
            Io::Read(buffer) => stream.read(buffer),
        };
        exchange.moved(moved);
    }
    Ok(())
}

#[test]
fn over_tcp_the_address_is_known_and_no_bytes_are_read() {
    let mut channel = channel();
    assert_eq!(channel.peer_addr(), None);
    let (ours, mut theirs, address) = tcp();
    let mut duplicate = ours.try_clone().unwrap();
    channel.watch_peer(ours).unwrap();
    assert_eq!(channel.peer_addr(), Some(address));
    theirs.write_all(b"unread").unwrap();
    let nothing = channel.wait_completed(Some(Duration::from_millis(30)));
    assert!(nothing.is_none());
    assert!(!channel.is_down(), "bytes are not an end");
    drop(theirs);
    assert!(bounded(|| channel.wait_completed(Some(Duration::from_millis(30)))).is_none());
    assert_eq!(channel.down_reason(), Some(CLOSED));
    let mut bytes = Vec::new();
    duplicate.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"unread");
    assert_eq!(channel.peer_addr(), Some(address), "it is still known");
}

#[test]
fn reset_connection_is_a_peer_that_closed() {
    let mut channel = channel();
    let (mut ours, theirs, _) = tcp();
    ours.write_all(b"never read").unwrap();
    channel.watch_peer(ours).unwrap();
    // Closed with bytes unread, as when a process is killed: that resets the connection.
    drop(theirs);
    let mut into = region(&channel);
    let ended = bounded(|| channel.receive(into.scatter_element(..).unwrap()));
    assert!(matches!(ended, Err(ENDED)), "{ended:?}");
}

#[test]
fn channel_that_was_connected_over_tcp_watches_its_peer() {
    type Meet = fn(&TcpListener, SocketAddr) -> Channel;
    let connect: Meet = |_, address| prepared().connect(address, LONG).unwrap().channel;
    let accept: Meet = |listener, _| prepared().accept(listener, LONG).unwrap().channel;
    let exchange: Meet = |_, address| {
        let stream = TcpStream::connect(address).unwrap();
        prepared().exchange(&stream, LONG).unwrap().channel
    };
    for (ours, theirs) in [(connect, accept), (accept, connect), (exchange, accept)] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let theirs_of = listener.try_clone().unwrap();
        // It has a device of its own, and leaves.
        let peer = thread::spawn(move || drop(theirs(&theirs_of, address)));
        let mut channel = ours(&listener, address);
        let mut into = region(&channel);
        let ended = bounded(|| channel.receive(into.scatter_element(..).unwrap()));
        assert!(matches!(ended, Err(ENDED)), "{ended:?}");
        peer.join().unwrap();
    }
}

#[test]
fn address_is_known_of_a_peer_that_resets_the_connection_at_once() {
    let (ours, mut theirs, address) = tcp();
    let prepared = prepared();
    let mut exchange = Exchange::new(&prepared.endpoint(), b"").unwrap();
    let peer = thread::spawn(move || {
        run(&mut exchange, &theirs).unwrap();
        // The READY of this side is not read, so that closing resets the connection.
        assert_eq!(theirs.peek(&mut [0]).unwrap(), 1);
        exchange.ready();
        match exchange.io().unwrap() {
            Some(Io::Write(ready)) => theirs.write_all(ready).unwrap(),
            other => panic!("{other:?}"),
        }
    });
    let met = prepared.exchange(&ours, LONG).unwrap();
    assert_eq!(met.peer, Some(address.into()));
    peer.join().unwrap();
}

#[test]
fn stream_is_shut_down_if_the_peer_cannot_be_watched_through_it() {
    let (mut ours, theirs, _) = tcp();
    let mut exchange = Exchange::new(&prepared().endpoint(), b"").unwrap();
    let child = fork();
    if child == 0 {
        end_the_child(|| {
            let prepared = prepared();
            ours.set_read_timeout(Some(LONG)).unwrap();
            without_descriptors();
            let error = prepared.exchange(&ours, LONG).unwrap_err();
            assert!(matches!(error, Error::Exchange(_)), "{error}");
            assert_eq!(ours.read(&mut [0]).unwrap(), 0, "it is shut down");
        });
    }
    run(&mut exchange, &theirs).unwrap();
    exchange.ready();
    run(&mut exchange, &theirs).unwrap();
    wait_for_the_child(child);
}
