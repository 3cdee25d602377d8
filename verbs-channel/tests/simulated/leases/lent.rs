//! Leases that a transfer has lent: they end with it if it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use verbs_channel::engine::TransferError;
use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::{Channel, Outgoing, OwnedBuffer, OwnedRequest, Rails, SharedMemory, Transfer};

use super::{Ends, bytes};

const LEN: usize = 4096;
const SOON: Duration = Duration::from_millis(100);

/// How a transfer ends early.
#[derive(Clone, Copy, Debug)]
enum Early {
    Late,
    Aborted,
    Dropped,
    Panicked,
    PanickedLast,
}

fn attempt(early: Early, windows: u32) {
    let mut ends = Ends::new(9, windows);
    let (host, far) = (ends.hosts[0].clone(), ends.hosts[1].clone());
    let memory = ends.memory(LEN);
    let slice = memory.slice(..).unwrap();
    let (remote, _others) = host.enter(|| {
        let pd = ends.owner.pd().clone();
        let (mut other, mut end) = Channel::loopback(&pd).unwrap();
        let lease = ends.owner.lease(slice, AccessFlags::REMOTE_WRITE).unwrap();
        let remote = lease.remote();
        let mut transfer = Transfer::default();
        transfer.lend(lease);
        // Nothing comes for the second. One of a channel elsewhere is rejected.
        let channels = match early {
            Early::PanickedLast => vec![ends.owner.id()],
            _ => vec![other.id(); 2],
        };
        for channel in channels {
            transfer.add(channel, OwnedRequest::receive(OwnedBuffer::empty()));
        }
        end.start_send(OwnedBuffer::empty()).unwrap();
        let deadline = Some(Instant::now() + SOON);
        match early {
            Early::Late => drop(other.transfer(&mut transfer, deadline).unwrap_err()),
            Early::Aborted => {
                other.abort_handle().abort();
                other.transfer(&mut transfer, None).unwrap_err();
            }
            Early::Dropped => {}
            Early::Panicked | Early::PanickedLast => {
                let each = |_, _| panic!("of the program");
                let run = || other.transfer_with(&mut transfer, deadline, each);
                catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            }
        }
        assert!(matches!(early, Early::Dropped) || transfer.take_leases().next().is_none());
        drop(transfer);
        (remote, (other, end))
    });
    assert!(!ends.owner.is_down(), "it has no part in the transfer");
    let late = far.enter(|| {
        let buffer = ends.peer.pd().reg_mr(vec![7; LEN]).unwrap();
        let ticket = ends.peer.start(Outgoing::write(buffer, remote)).unwrap();
        ends.peer.wait(ticket, None).unwrap().unwrap().result
    });
    assert!(late.is_err(), "{early:?}: a late write");
    assert_eq!(bytes(&memory), [0; LEN]);
}

#[test]
fn transfer_that_ends_early_ends_the_leases_that_it_has_lent() {
    for early in [
        Early::Late,
        Early::Aborted,
        Early::Dropped,
        Early::Panicked,
        Early::PanickedLast,
    ] {
        for windows in [0, 4] {
            attempt(early, windows);
        }
    }
}

/// A transfer of a write whose outcome comes at about the deadline. Returns whether it has succeeded, and whether its
/// lease is left.
fn at_the_deadline(micros: u64, over_rails: bool) -> (bool, bool) {
    let mut ends = Ends::new(micros, 4);
    let [host, far] = ends.hosts.clone();
    let link = ends.fabric.link(&host, &far);
    link.delay(Duration::from_micros(20));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let [lent, source] = [AccessFlags::MW_BIND, access].map(|access| ends.memory_with(LEN, access));
    let there = SharedMemory::register([ends.peer.pd()], vec![0_u8; LEN], access).unwrap();
    let remote = there.remote(ends.peer.pd()).unwrap();
    host.enter(|| {
        let slice = lent.slice(..).unwrap();
        let lease = ends.owner.lease(slice, AccessFlags::REMOTE_WRITE).unwrap();
        let mut transfer = Transfer::default();
        transfer.lend(lease);
        let write = Outgoing::write(source.slice(..).unwrap(), remote);
        transfer.add(ends.owner.id(), write);
        let deadline = Some(Instant::now() + Duration::from_micros(micros));
        let result = match over_rails {
            true => Rails::new([ends.owner]).transfer(&mut transfer, deadline),
            false => ends.owner.transfer(&mut transfer, deadline),
        };
        (result.is_ok(), transfer.take_leases().next().is_some())
    })
}

#[test]
fn transfer_that_succeeds_after_its_deadline_keeps_its_leases() {
    for over_rails in [false, true] {
        for micros in 1..100 {
            let (is_success, is_left) = at_the_deadline(micros, over_rails);
            assert_eq!(is_success, is_left, "{over_rails} {micros}");
        }
    }
}

#[test]
fn transfer_whose_leases_cannot_be_ended_says_why_it_failed_and_takes_their_channel_down() {
    for over_rails in [false, true] {
        let mut ends = Ends::new(11, 4);
        let memory = ends.memory(LEN);
        let host = ends.hosts[0].clone();
        host.enter(|| {
            let slice = memory.slice(..).unwrap();
            let lease = ends.owner.lease(slice, AccessFlags::REMOTE_WRITE).unwrap();
            let mut transfer = Transfer::default();
            transfer.lend(lease);
            // It is rejected. The channel stays up.
            let elsewhere = ends.peer.id();
            transfer.add(elsewhere, OwnedRequest::receive(OwnedBuffer::empty()));
            host.refuse("ibv_dealloc_mw", libc::EBUSY);
            let (error, is_down) = if over_rails {
                let mut rails = Rails::new([ends.owner]);
                let error = rails.transfer(&mut transfer, None).unwrap_err();
                (error, rails.channels().all(Channel::is_down))
            } else {
                let error = ends.owner.transfer(&mut transfer, None).unwrap_err();
                (error, ends.owner.is_down())
            };
            assert!(is_down, "{over_rails}");
            assert!(error.is_stuck());
            // The reason is that of the operation: rails do not have its channel.
            assert_eq!(error.down_reason().is_none(), over_rails);
            let TransferError::LeasesStuck {
                leases,
                failed,
                of,
                first,
            } = error
            else {
                panic!("{error}");
            };
            let outcome = transfer.drain().next().unwrap();
            assert_eq!(
                (leases, failed, of, Err(first)),
                (1, 1, 1, outcome.result.map(drop))
            );
            assert!(outcome.buffer.is_some());
        });
    }
}
