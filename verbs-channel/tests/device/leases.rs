//! Leases, and peers that come late with their key.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use verbs_channel::lease::LeaseKind;
use verbs_channel::verbs_core::codes::DeviceCapFlags;
use verbs_channel::verbs_core::memory::MwType;
use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion, SharedRegion};
use verbs_channel::{Channel, PreparedChannel, SharedMemory};
use verbs_harness::allocations::allocations;
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, pair_of};

const LEN: usize = 64 << 10;
const WRITTEN: u8 = 7;
const SECRET: u8 = 0xee;
const ALL: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);

fn with_windows(pd: &ProtectionDomain) -> PreparedChannel {
    let builder = Channel::builder(pd).lease_windows(2).timeout(PATIENCE);
    builder.build().unwrap()
}

/// How the device grants leases.
fn kind(pd: &ProtectionDomain) -> LeaseKind {
    let type_2 = DeviceCapFlags::MEM_WINDOW_TYPE_2A | DeviceCapFlags::MEM_WINDOW_TYPE_2B;
    let has = pd.context().query_device().unwrap().device_cap_flags();
    let is_window = has.intersects(type_2) && pd.alloc_mw(MwType::Type2).unwrap().checks_bounds();
    match is_window {
        true => LeaseKind::Window,
        false => LeaseKind::Registration,
    }
}

fn memory(channel: &Channel, len: usize) -> SharedMemory {
    SharedMemory::register([channel.pd()], vec![0_u8; len], AccessFlags::MW_BIND).unwrap()
}

fn contents(memory: &SharedMemory) -> Vec<u8> {
    bytes(memory.region::<SharedRegion<Vec<u8>>>().unwrap())
}

/// Writes and reads all of the memory until that fails. Returns how many have succeeded, and whether one has read the secret.
fn use_until_it_ends(
    mut peer: Channel,
    remote: RemoteMemoryRegion,
    done: &AtomicU32,
) -> (u32, bool) {
    let source = peer.pd().reg_mr(vec![WRITTEN; LEN]).unwrap();
    let mut sink = peer.pd().reg_mr(vec![0_u8; LEN]).unwrap();
    let mut succeeded = 0;
    let mut is_secret = false;
    loop {
        // The owner waits for the first write, and ends the lease at any time after it.
        if peer
            .write(source.gather_element(..).unwrap(), remote)
            .is_err()
        {
            return (succeeded, is_secret);
        }
        done.fetch_add(1, Ordering::Relaxed);
        let read = peer.read(sink.scatter_element(..).unwrap(), remote);
        is_secret |= sink.contains(&SECRET);
        if read.is_err() {
            return (succeeded + 1, is_secret);
        }
        succeeded += 2;
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn late_peer_reads_and_writes_not_one_byte_after_revoke() {
    let _test = begin!();
    let mut counts = [(0, 0); 2];
    for round in 0..40_u32 {
        let is_part = round % 2 == 1;
        let (mut owner, peer) = pair_of(with_windows);
        let memory = memory(&owner, LEN * if is_part { 3 } else { 1 });
        let at = if is_part { LEN } else { 0 };
        let lease = owner
            .lease(memory.slice(at..at + LEN).unwrap(), ALL)
            .unwrap();
        assert_eq!(lease.kind(), kind(owner.pd()));
        let (remote, done) = (lease.remote(), AtomicU32::new(0));
        let (used, is_secret) = thread::scope(|scope| {
            let peer = scope.spawn(|| use_until_it_ends(peer, remote, &done));
            while done.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(u64::from(round) * 97));
            drop(owner.revoke(lease).unwrap());
            let region = memory.region::<SharedRegion<Vec<u8>>>().unwrap();
            region.write(at, &vec![SECRET; LEN]).unwrap();
            let expected = contents(&memory);
            let ended = peer.join().unwrap();
            assert!(
                contents(&memory) == expected,
                "a late write in round {round}"
            );
            ended
        });
        assert!(!is_secret, "a late read in round {round}");
        let count = &mut counts[usize::from(is_part)];
        *count = (count.0 + used, count.1 + 1);
        let before = contents(&memory);
        assert!(
            before[..at]
                .iter()
                .chain(&before[at + LEN..])
                .all(|byte| *byte == 0)
        );
    }
    let [all, part] = counts;
    println!(
        "all of a region: {} accesses, {} late; a part: {} accesses, {} late",
        all.0, all.1, part.0, part.1
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn window_is_lent_without_an_allocation() {
    let test = begin!(alone);
    let (mut owner, _peer) = pair_of(with_windows);
    if kind(owner.pd()) == LeaseKind::Registration {
        return test.skip("the device has no memory windows of type 2 that check their bounds");
    }
    let mut slice = memory(&owner, 1 << 20).slice(..).unwrap();
    let mut turn = |count| {
        for _ in 0..count {
            let lease = owner.lease(slice.clone(), ALL).unwrap();
            slice = owner.revoke(lease).unwrap();
        }
    };
    turn(10);
    let before = allocations();
    turn(100);
    assert_eq!(allocations() - before, 0);
}
