//! Tests that two machines on one wire run at the same time: `SOFT_ROCE_HOST` is the number of this
//! one, `SOFT_ROCE_PEER` is the address of the other.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use verbs_channel::verbs_core::memory::SharedElement;
use verbs_channel::verbs_core::{ProtectionDomain, RemoteMemoryRegion, SharedRegion};
use verbs_channel::{Channel, Connect, DownReason, PreparedChannel, TransportError};
use verbs_harness::{PATIENCE, Test, begin, faults};

use super::ends::{bounded, filled, given, here, patient, pattern, zeros};

/// A port that is free on a machine that runs nothing else.
const PORT: u16 = 18601;

/// Bytes of the message that each machine sends first.
const LEN: usize = 100_000;

type Build = fn(&ProtectionDomain) -> PreparedChannel;

/// Whether this is the first of two machines, and a channel to the other, with a receive of [`LEN`] bytes.
fn other(test: &Test, build: Build, data: &[u8]) -> Option<(bool, Channel, Vec<u8>)> {
    let (first, peer) = test.two_hosts()?;
    let pd = here();
    let mut prepared = build(&pd);
    let into = pd.reg_mr(vec![0_u8; LEN]).unwrap();
    prepared.start_receive(into).unwrap();
    let patience = 2 * PATIENCE;
    let met = if first {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        prepared
            .accept(&listener, Connect::within(patience).private_data(data))
            .unwrap()
    } else {
        // The other machine may still be booting, and not answer at first.
        prepared
            .connect((peer, PORT), Connect::within(patience).private_data(data))
            .unwrap()
    };
    Some((first, met.channel, met.private_data))
}

#[test]
#[ignore = "needs an RDMA device"]
fn bytes_cross() {
    let test = begin!();
    let Some((first, mut channel, data)) = other(&test, patient, b"private") else {
        return;
    };
    assert_eq!(data, b"private");
    let seed = usize::from(first);
    let received = channel.prepared_receives().pop().unwrap();
    // Before the other machine has everything from this one.
    let last = channel.start_receive(zeros(&channel, 1)).unwrap();
    let sent = channel.start_send(filled(&channel, seed, LEN)).unwrap();
    let (_, into) = channel.wait_success(received).unwrap();
    assert!(into[..] == pattern(1 - seed, LEN));
    channel.wait_success(sent).unwrap();
    // Neither leaves before the other has received everything.
    let one = filled(&channel, 1, 1);
    channel.send(one.gather_element(..).unwrap()).unwrap();
    channel.wait_success(last).unwrap();
}

/// Makes the other machine send its region's address and key, and then die.
fn until_it_dies(test: &Test, build: Build) -> Option<(Channel, RemoteMemoryRegion)> {
    let (first, mut channel, _) = other(test, build, b"")?;
    if !first {
        let region = given(&channel, vec![0_u8; 4096]);
        let remote = region.remote();
        let words = [remote.addr(), u64::from(remote.rkey())]
            .map(u64::to_be_bytes)
            .concat();
        let die = channel.prepared_receives().pop().unwrap();
        channel.send(scope_region(&words, &region)).unwrap();
        channel.wait_success(die).unwrap();
        // At once, without closing any connection.
        fs::write("/proc/sysrq-trigger", "o").unwrap();
        std::thread::sleep(PATIENCE);
        panic!("this machine does not die");
    }
    let words = channel.prepared_receives().pop().unwrap();
    let (received, words) = channel.wait_success(words).unwrap();
    let (addr, rkey) = received.message_in(&words).unwrap().split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let rkey = u32::try_from(number(rkey)).unwrap();
    let remote = RemoteMemoryRegion::new(number(addr), 4096, rkey).unwrap();
    Some((channel, remote))
}

fn scope_region<'r>(words: &[u8], region: &'r SharedRegion<Vec<u8>>) -> SharedElement<'r> {
    region.write(0, words).unwrap();
    region.element(..words.len()).unwrap()
}

const PEER_TIMEOUT: Duration = Duration::from_secs(3);

/// A channel with a peer timeout and no other timeout.
fn watching(pd: &ProtectionDomain) -> PreparedChannel {
    let builder = Channel::builder(pd).peer_timeout(PEER_TIMEOUT);
    builder.build().unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn dead_host_ends_a_waiting_receive() {
    let test = begin!();
    let Some((mut channel, _)) = until_it_dies(&test, watching) else {
        return;
    };
    let die = filled(&channel, 1, 1);
    channel.send(die.gather_element(..).unwrap()).unwrap();
    // Nothing is sent to it: only keepalive detects that it is dead.
    let (mut into, start) = (zeros(&channel, 64), Instant::now());
    let ended = bounded(|| channel.receive(into.scatter_element(..).unwrap()));
    let reason = DownReason::PeerLost;
    let error = ended.unwrap_err();
    let within = faults::setting(start, "[`peer_timeout`]", PEER_TIMEOUT);
    faults::error(faults::HOST, "channel", &error, within);
    assert!(
        matches!(error, TransportError::Aborted(r) if r == reason),
        "{error:?}"
    );
    assert_eq!(channel.down_reason(), Some(reason));
}
