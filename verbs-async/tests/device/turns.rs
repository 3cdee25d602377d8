//! Any task can drive: one that sleeps, does not poll again or was leaked stops no other.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::{begin, device_name, peer_name};

use super::ends::{PATIENCE, WAYS, alone, buffer, run};

/// Rounds of ping-pong, on each notifier.
const ROUNDS: u32 = 2000;

/// One message at a time: each end sleeps for each, in a race between the completion and the arming.
async fn rally(channel: &AsyncChannel, group: &AsyncGroup, serves: bool) {
    let word = || buffer(group.pd(), &[0; 4]);
    let (mut spare, mut own) = (word(), word());
    let mut receiving = channel.receive(word());
    for round in 0..ROUNDS {
        own[..].copy_from_slice(&round.to_le_bytes());
        if serves {
            let (sent, bytes) = channel.send(own).await;
            sent.unwrap();
            own = bytes;
        }
        let (received, bytes) = receiving.await;
        received.unwrap();
        assert_eq!(bytes[..], round.to_le_bytes());
        receiving = channel.receive(spare);
        spare = bytes;
        if !serves {
            let (sent, bytes) = channel.send(own).await;
            sent.unwrap();
            own = bytes;
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_wake_up_is_missed_in_thousands_of_rounds() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        let side = move |stream, device: String, serves| async move {
            let group = alone(way, &device);
            let stream = TcpStream::from(OwnedFd::from(stream));
            let channel = group.exchange(stream, PATIENCE).await.unwrap().channel;
            rally(&channel, &group, serves).await;
            // The other side may not have polled its last message yet.
            channel
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peer = thread::spawn(move || run(way, side(theirs, peer_name(), false)));
        let channel = run(way, side(ours, device_name(), true));
        drop((channel, peer.join().unwrap()));
    }
}
