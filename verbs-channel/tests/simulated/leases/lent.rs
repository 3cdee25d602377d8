//! Leases that a transfer has lent: they end with it if it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::{Channel, Outgoing, OwnedBuffer, OwnedRequest, Transfer};

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
        // Nothing comes for the second.
        transfer.add(other.id(), OwnedRequest::receive(OwnedBuffer::empty()));
        transfer.add(other.id(), OwnedRequest::receive(OwnedBuffer::empty()));
        end.start_send(OwnedBuffer::empty()).unwrap();
        let deadline = Some(Instant::now() + SOON);
        match early {
            Early::Late => drop(other.transfer(&mut transfer, deadline).unwrap_err()),
            Early::Aborted => {
                other.abort_handle().abort();
                other.transfer(&mut transfer, None).unwrap_err();
            }
            Early::Dropped => {}
            Early::Panicked => {
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
    for early in [Early::Late, Early::Aborted, Early::Dropped, Early::Panicked] {
        for windows in [0, 4] {
            attempt(early, windows);
        }
    }
}

#[test]
fn transfer_that_ends_well_keeps_its_leases() {
    let mut ends = Ends::new(10, 4);
    let (host, far) = (ends.hosts[0].clone(), ends.hosts[1].clone());
    let memory = ends.memory(LEN);
    let slice = memory.slice(..).unwrap();
    let mut transfer = Transfer::default();
    let remote = host.enter(|| {
        let lease = ends.owner.lease(slice, AccessFlags::REMOTE_WRITE).unwrap();
        let remote = lease.remote();
        transfer.lend(lease);
        ends.owner
            .transfer(&mut transfer, Some(Instant::now() + SOON))
            .unwrap();
        remote
    });
    far.enter(|| {
        let buffer = ends.peer.pd().reg_mr(vec![7; LEN]).unwrap();
        let ticket = ends.peer.start(Outgoing::write(buffer, remote)).unwrap();
        ends.peer
            .wait(ticket, None)
            .unwrap()
            .unwrap()
            .result
            .unwrap();
    });
    assert_eq!(bytes(&memory), [7; LEN]);
    let lease = transfer.take_leases().next().unwrap();
    host.enter(|| ends.owner.revoke(lease).unwrap());
    assert!(memory.is_idle());
}
