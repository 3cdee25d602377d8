//! Connecting over TCP: two processes, and a peer that sends at once.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use verbs_channel::verbs_core::MaxRnrRetries;
use verbs_channel::{BufferPool, Channel};
use verbs_harness::{PATIENCE, begin};

use super::ends::{filled, here, patient, pattern, there};

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Connects, and sends this many messages at once, whose device does not retry.
fn send_at_once(address: SocketAddr, messages: usize) {
    let builder = Channel::builder(&there()).timeout(PATIENCE);
    let prepared = builder.rnr_retry(MaxRnrRetries::new(0).unwrap()).build();
    let mut channel = prepared
        .unwrap()
        .connect(address, PATIENCE)
        .unwrap()
        .channel;
    for message in 0..messages {
        let from = filled(&channel, message, 64);
        channel.send(from.gather_element(..).unwrap()).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_sends_at_once_finds_the_prepared_receives() {
    let _test = begin!();
    for _ in 0..10 {
        let (listener, address) = listener();
        let pd = here();
        let pool = BufferPool::new(&pd, 64, 3).unwrap();
        let mut prepared = patient(&pd);
        while let Some(block) = pool.take() {
            prepared.start_receive(block).unwrap();
        }
        let peer = thread::spawn(move || send_at_once(address, 3));
        let mut channel = prepared.accept(&listener, PATIENCE).unwrap().channel;
        peer.join().unwrap();
        for (message, ticket) in channel.prepared_receives().into_iter().enumerate() {
            let (received, block) = channel.wait_success(ticket).unwrap();
            assert!(received.message_in(&block).unwrap() == pattern(message, 64));
        }
        assert_eq!(pool.available(), 3);
    }
}
