//! Leases: granted, revoked, given back, and what happens when that is refused.
#![expect(clippy::mem_forget, reason = "leases that are leaked end, too")]

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use verbs_channel::lease::LeaseKind;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::{AccessFlags, Context, RemoteMemoryRegion};
use verbs_channel::{
    DownReason, Error, Outgoing, OwnedBuffer, RejectReason, SharedMemory, TransportError,
};

use soft_verbs::Fabric;

use super::{Ends, bytes, config};

const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;

impl Ends {
    fn write(&mut self, remote: RemoteMemoryRegion, len: usize) -> Result<(), TransportError> {
        self.hosts[1].enter(|| {
            let bytes = self.peer.pd().reg_mr(vec![7_u8; len]).unwrap();
            self.peer
                .write(bytes.gather_element(..).unwrap(), remote)
                .map(drop)
        })
    }
}

fn is_refused(result: Result<(), TransportError>) -> bool {
    matches!(result, Err(TransportError::Work { error, .. }) if error.status == WcStatus::REM_ACCESS_ERR)
}

#[test]
fn a_lease_opens_its_part_until_it_is_revoked() {
    for past_the_end in [false, true] {
        let mut ends = Ends::new(1, 2);
        let memory = ends.memory(64);
        let lease = ends
            .owner
            .lease(memory.slice(16..32).unwrap(), WRITE)
            .unwrap();
        assert_eq!(
            (lease.kind(), lease.remote().len()),
            (LeaseKind::Window, 16)
        );
        let remote = lease.remote();
        ends.write(remote, 16).unwrap();
        let expected: Vec<u8> = (0..64).map(|at| if at / 16 == 1 { 7 } else { 0 }).collect();
        assert_eq!(bytes(&memory), expected);
        let remote = if past_the_end {
            RemoteMemoryRegion::new(remote.addr(), 64, remote.rkey()).unwrap()
        } else {
            let slice = ends.owner.revoke(lease).unwrap();
            assert_eq!((slice.offset(), slice.len()), (16, 16));
            remote
        };
        assert!(is_refused(
            ends.write(remote, 17 - usize::from(!past_the_end))
        ));
        assert_eq!(bytes(&memory), expected);
    }
}

#[test]
fn a_lease_of_a_region_without_mw_bind_or_without_windows_is_a_registration() {
    for (windows, access) in [(0, AccessFlags::MW_BIND), (2, AccessFlags::empty())] {
        let mut ends = Ends::new(1, windows);
        let memory = ends.memory_with(64, access);
        let lease = ends
            .owner
            .lease(memory.slice(16..32).unwrap(), WRITE)
            .unwrap();
        assert_eq!(lease.kind(), LeaseKind::Registration);
        let remote = lease.remote();
        ends.write(remote, 16).unwrap();
        assert_eq!(bytes(&memory).iter().filter(|byte| **byte == 7).count(), 16);
        drop(ends.owner.revoke(lease).unwrap());
        assert!(ends.owner.down_reason().is_none());
        assert!(is_refused(ends.write(remote, 1)));
    }
}

#[test]
fn a_peer_gives_a_lease_back_by_a_send_on_its_channel() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    for _ in 0..3 {
        let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
        let remote = lease.remote();
        ends.write(remote, 64).unwrap();
        let receive = ends.owner.start_receive(OwnedBuffer::empty()).unwrap();
        let other = ends.owner.start_receive(OwnedBuffer::empty()).unwrap();
        let (plain, giving) = (
            Outgoing::send(OwnedBuffer::empty()),
            Outgoing::send(OwnedBuffer::empty()).invalidate(remote.rkey()),
        );
        for send in [plain, giving] {
            let ticket = ends.peer.start(send).unwrap();
            ends.peer.wait_success(ticket).unwrap();
        }
        let (plain, _) = ends.owner.wait_success(receive).unwrap();
        let (received, _) = ends.owner.wait_success(other).unwrap();
        assert_eq!(received.invalidated_rkey(), Some(remote.rkey()));
        let id = ends.owner.id();
        let lease = lease.given_back(id, &plain).unwrap_err();
        // A key of another device with the same number.
        let lease = lease.given_back(ends.peer.id(), &received).unwrap_err();
        drop(lease.given_back(id, &received).unwrap());
    }
}

#[test]
fn a_write_that_is_to_invalidate_is_rejected() {
    let mut ends = Ends::new(1, 0);
    let memory = ends.memory(64);
    let write = Outgoing::write(
        OwnedBuffer::empty(),
        memory.remote(ends.owner.pd()).unwrap(),
    )
    .invalidate(7);
    let rejected = ends.peer.start(write).unwrap_err();
    assert_eq!(*rejected.error(), RejectReason::InvalidatingWrite);
}

#[test]
fn a_window_rests_after_255_leases() {
    let rest = Duration::from_secs(3);
    let mut ends = Ends::with(1, 2, |config| config.lease_rest = rest);
    let memory = ends.memory(64);
    let mut keys = std::collections::HashSet::new();
    let fabric = ends.fabric.clone();
    let owner = ends.hosts[0].clone();
    owner.enter(|| {
        for turn in 0..2 {
            for at in 0..510 {
                let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE);
                let lease = lease.unwrap_or_else(|error| panic!("turn {turn}, lease {at}: {error}"));
                assert!(keys.insert(lease.remote().rkey()) || turn > 0, "a key is used twice");
                drop(ends.owner.revoke(lease).unwrap());
            }
            let rejected = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap_err();
            let reason = RejectReason::NoWindow { max: 2 };
            assert!(matches!(rejected.error(), Error::Transport(TransportError::Rejected(found)) if *found == reason));
            fabric.run_for(rest);
        }
    });
}

#[test]
fn a_dropped_lease_ends_and_its_window_is_replaced() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    for _ in 0..3 {
        let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
        assert_eq!(lease.kind(), LeaseKind::Window);
        let full = ends
            .owner
            .lease(memory.slice(..).unwrap(), WRITE)
            .unwrap_err();
        let reason = RejectReason::NoWindow { max: 1 };
        assert!(
            matches!(full.error(), Error::Transport(TransportError::Rejected(found)) if *found == reason)
        );
        drop(lease);
    }
    assert!(ends.owner.down_reason().is_none());
    let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
    let remote = lease.remote();
    drop(lease);
    assert!(is_refused(ends.write(remote, 1)));
}

#[test]
fn memory_stays_registered_while_it_is_leased() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
    let end = memory.deregister();
    ends.write(lease.remote(), 64).unwrap();
    assert!(end.wait(Some(Duration::ZERO)).is_none());
    let slice = ends.owner.revoke(lease).unwrap();
    assert_eq!(bytes(&slice.memory()), [7; 64]);
    drop(slice);
    end.wait(Some(Duration::ZERO)).unwrap().unwrap();
}

#[test]
fn a_lease_of_a_full_queue_is_revoked_all_the_same() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    let owner = ends.hosts[0].clone();
    owner.enter(|| {
        let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
        let remote = lease.remote();
        while ends.owner.start_send(OwnedBuffer::empty()).is_ok() {}
        assert_eq!(ends.owner.revoke(lease).unwrap().len(), 64);
        assert!(ends.owner.down_reason().is_none());
        assert!(is_refused(ends.write(remote, 1)));
    });
}

#[test]
fn a_window_that_the_driver_does_not_deallocate_costs_its_channel() {
    // The latter on a channel that is full.
    for way in ["dropped", "ended twice", "revoked"] {
        let mut ends = Ends::new(1, 1);
        let memory = ends.memory(64);
        let owner = ends.hosts[0].clone();
        owner.enter(|| {
            let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
            let remote = lease.remote();
            while ends.owner.start_send(OwnedBuffer::empty()).is_ok() {}
            owner.refuse("ibv_dealloc_mw", libc::EBUSY);
            match way {
                "revoked" => assert_eq!(ends.owner.revoke(lease).unwrap().len(), 64),
                "dropped" => drop(lease),
                _ => {
                    let kept = lease.end().unwrap_err();
                    while ends.owner.next_completed().is_some() {}
                    assert_eq!(kept.end().unwrap().len(), 64);
                }
            }
            while ends.owner.next_completed().is_some() {}
            assert!(ends.owner.down_reason().is_some());
            assert!(ends.write(remote, 1).is_err());
            assert_eq!(bytes(&memory), [0; 64]);
            let ended = memory.deregister().wait(Duration::ZERO);
            ended.expect("nothing has the memory any more").unwrap();
        });
    }
}

#[test]
fn a_lease_that_the_driver_does_not_end_with_its_scope_costs_the_channel() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    let owner = ends.hosts[0].clone();
    owner.enter(|| {
        let leaked = ends.owner.scope(|scope| {
            let lease = scope.lease(memory.slice(..).unwrap(), WRITE).unwrap();
            let remote = lease.remote();
            mem::forget(lease);
            owner.refuse("ibv_dealloc_mw", libc::EBUSY);
            Ok::<_, Error>(remote)
        });
        assert!(ends.owner.down_reason().is_some());
        assert!(ends.write(leaked.unwrap(), 1).is_err());
        assert_eq!(bytes(&memory), [0; 64]);
    });
}

#[test]
fn a_lease_of_another_engine_does_not_end_with_the_channel_that_revokes_it() {
    let (mut other, mut ends) = (Ends::new(1, 1), Ends::new(2, 1));
    let memory = ends.memory(64);
    let [there, owner] = [&other, &ends].map(|ends| ends.hosts[0].clone());
    // Its queue pair is destroyed.
    there.enter(|| {
        there.refuse("ibv_modify_qp", libc::EIO);
        other.owner.abort();
    });
    owner.enter(|| {
        let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
        let remote = lease.remote();
        owner.refuse("ibv_dealloc_mw", libc::EBUSY);
        let revoked = other.owner.revoke(lease);
        assert!(revoked.is_err() || is_refused(ends.write(remote, 1)));
    });
}

#[test]
fn a_device_that_is_gone_ends_a_revoke() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    let owner = ends.hosts[0].clone();
    owner.enter(|| {
        let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
        owner.die();
        assert_eq!(ends.owner.revoke(lease).map(|slice| slice.len()), Ok(64));
        let again = ends.owner.lease(memory.slice(..).unwrap(), WRITE);
        assert_eq!(again.unwrap_err().into_given().len(), 64);
    });
}

#[test]
fn access_that_the_region_does_not_permit_is_rejected() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    for access in [AccessFlags::empty(), AccessFlags::LOCAL_WRITE] {
        let rejected = ends
            .owner
            .lease(memory.slice(..).unwrap(), access)
            .unwrap_err();
        assert!(matches!(
            rejected.error(),
            Error::Transport(TransportError::Rejected(RejectReason::LeaseAccess))
        ));
        assert_eq!(rejected.into_given().len(), 64);
    }
    assert!(
        ends.owner
            .lease(memory.slice(3..3).unwrap(), WRITE)
            .is_err()
    );
    let other = Ends::new(2, 0).memory(64);
    let rejected = ends
        .owner
        .lease(other.slice(..).unwrap(), WRITE)
        .unwrap_err();
    assert!(matches!(
        rejected.error(),
        Error::Transport(TransportError::Rejected(RejectReason::OtherDomain))
    ));
    assert!(ends.owner.down_reason().is_none());
}

#[test]
fn a_lease_that_is_revoked_though_it_was_given_back_costs_its_channel() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    let lease = ends.owner.lease(memory.slice(..).unwrap(), WRITE).unwrap();
    let receive = ends.owner.start_receive(OwnedBuffer::empty()).unwrap();
    let giving = Outgoing::send(OwnedBuffer::empty()).invalidate(lease.remote().rkey());
    let sent = ends.peer.start(giving).unwrap();
    ends.peer.wait_success(sent).unwrap();
    // Its receive was not looked at.
    assert_eq!(ends.owner.revoke(lease).unwrap().len(), 64);
    let reason = ends.owner.down_reason();
    assert!(
        matches!(reason, Some(DownReason::Work { .. })),
        "{reason:?}"
    );
    assert!(ends.owner.wait(receive, None).unwrap().is_some());
}

#[test]
fn a_scope_that_panics_ends_its_leases() {
    for kind in [LeaseKind::Window, LeaseKind::Registration] {
        let mut ends = Ends::new(1, u32::from(kind == LeaseKind::Window));
        let memory = ends.memory(64);
        let mut remote = None;
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            ends.owner.scope(|scope| {
                let lease = scope.lease(memory.slice(..).unwrap(), WRITE).unwrap();
                assert_eq!(lease.kind(), kind);
                remote = Some(lease.remote());
                mem::forget(lease);
                panic::resume_unwind(Box::new("of the test"));
                #[expect(unreachable_code, reason = "names the error")]
                Ok::<(), Error>(())
            })
        }));
        assert!(panicked.is_err());
        assert!(ends.write(remote.unwrap(), 1).is_err());
        assert_eq!(bytes(&memory), [0; 64]);
    }
}

#[test]
fn a_lease_outlives_its_scope_without_access_and_returns_its_memory() {
    let mut ends = Ends::new(1, 1);
    let memory = ends.memory(64);
    let lease = ends.owner.scope(|scope| {
        let revoked = scope.lease(memory.slice(..8).unwrap(), WRITE).unwrap();
        assert_eq!(scope.revoke(revoked)?.len(), 8);
        Ok::<_, Error>(scope.lease(memory.slice(8..24).unwrap(), WRITE).unwrap())
    });
    let lease = lease.unwrap();
    let remote = lease.remote();
    assert_eq!(ends.owner.revoke(lease).unwrap().len(), 16);
    assert!(ends.owner.down_reason().is_none());
    assert!(is_refused(ends.write(remote, 1)));
}

#[test]
fn a_lease_of_another_channel_of_the_group_is_revoked_without_that_channel() {
    let host = Fabric::seeded(1).host("a");
    host.enter(|| {
        let pd = Context::first_active().unwrap().alloc_pd().unwrap();
        let config = config(&pd, 1);
        let mut group = config.group(2).unwrap();
        let [first, second] = [(); 2].map(|()| {
            let prepared = group.prepare().unwrap();
            let itself = prepared.endpoint();
            group.join(prepared.handshake(&itself).unwrap()).unwrap()
        });
        let memory = SharedMemory::register([&pd], vec![0_u8; 64], AccessFlags::MW_BIND).unwrap();
        for _ in 0..2 {
            let slice = memory.slice(..).unwrap();
            let lease = group.channel(first).unwrap().lease(slice, WRITE).unwrap();
            assert_eq!(lease.kind(), LeaseKind::Window);
            let mut other = group.channel(second).unwrap();
            assert_eq!(other.revoke(lease).unwrap().len(), 64);
        }
        for channel in [first, second] {
            assert!(group.channel(channel).unwrap().down_reason().is_none());
        }
    });
}
