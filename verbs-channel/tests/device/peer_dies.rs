//! A peer whose process is killed, or that does nothing.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion};
use verbs_channel::{Channel, Error, Outgoing, PreparedChannel, ScopeError, TransportError};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::{PATIENCE, Test, begin};

use super::ends::{failed_send, filled, here, impatient, stubborn, there};

/// The length of the peer's region.
const GIVEN: usize = 8 << 20;

type Build = fn(&ProtectionDomain) -> PreparedChannel;

/// The peer: sends its region's address and key, and does nothing more until it is killed.
fn be_the_peer(port: &str, mut line: Line) {
    let pd = there();
    let region = pd
        .reg_shared(vec![5_u8; GIVEN], AccessFlags::REMOTE)
        .unwrap();
    let remote = region.remote();
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
    let channel = impatient(&pd).connect(address, PATIENCE).unwrap().channel;
    line.write(&format!(
        "{} {} {}",
        remote.addr(),
        remote.len(),
        remote.rkey()
    ));
    line.is_slow();
    line.read();
    drop(channel);
}

/// A peer in a process of its own, a channel to it, and its memory.
fn meet(test: &Test, build: Build) -> (Child, Channel, RemoteMemoryRegion) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut child = Child::start(test, &port.to_string());
    let channel = build(&here()).accept(&listener, PATIENCE).unwrap().channel;
    let numbers = child.line.read();
    let mut numbers = numbers
        .split(' ')
        .map(|number| number.parse::<u64>().unwrap());
    let mut next = || numbers.next().unwrap();
    let (addr, len, rkey) = (next(), next(), u32::try_from(next()).unwrap());
    (
        child,
        channel,
        RemoteMemoryRegion::new(addr, len, rkey).unwrap(),
    )
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_is_killed_during_a_long_write() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!(iwarp lacks "connections that outlive the peer");
    let builds: [Build; 2] = [impatient, stubborn];
    for build in builds {
        let (mut child, mut channel, remote) = meet(&test, build);
        // 64 MiB at a time, in messages that every device can take.
        let from = filled(&channel, 1, GIVEN);
        channel.set_timeout(Some(Duration::from_secs(4)));
        let ended = channel.scope(|scope| {
            let write = Outgoing::write(from.gather_element(..)?, remote);
            let mut window = VecDeque::new();
            for _ in 0..8 {
                window.push_back(scope.post(write)?);
            }
            child.kill();
            // Until one of them fails, however fast the wire is.
            while let Some(work) = window.pop_front() {
                work.spin_poll()?;
                // Requests are rejected once one has failed.
                window.extend(scope.post(write));
            }
            Ok::<_, Error>(())
        });
        match ended.unwrap_err() {
            ScopeError::ClosureError(Error::Transport(TransportError::Work { error, .. })) => {
                let reasons = [
                    WcStatus::RETRY_EXC_ERR,
                    WcStatus::REM_ACCESS_ERR,
                    WcStatus::REM_OP_ERR,
                ];
                assert!(reasons.contains(&error.status), "{error}");
                assert_eq!(channel.down_reason(), Some(failed_send(error)));
            }
            ScopeError::ClosureError(Error::Transport(TransportError::Aborted(reason))) => {
                assert!(reason.is_timed_out(), "{reason:?}");
                assert_eq!(channel.down_reason(), Some(reason));
            }
            other => panic!("{other:?}"),
        }
    }
}
