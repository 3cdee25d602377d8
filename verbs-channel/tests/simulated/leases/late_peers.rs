//! Peers that come late: their reads and writes are in flight while a lease ends.
#![expect(clippy::mem_forget, reason = "leases that are leaked end, too")]

use std::mem;
use std::time::Duration;

use verbs_channel::lease::LeaseKind;
use verbs_channel::verbs_core::error::Rejected;
use verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion};
use verbs_channel::{Channel, Error, Ticket};

use super::{Ends, bytes, region};

const LEN: usize = 16 * 1024;
const WRITTEN: u8 = 7;
const SECRET: u8 = 0xee;

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Revoked,
    Dropped,
    Ended,
    /// With its scope, which it was leaked in.
    Scoped,
    /// The deadline has passed when it is revoked.
    Late,
    /// With its channel.
    Closed,
}

const ENDS: [End; 6] = [
    End::Revoked,
    End::Dropped,
    End::Ended,
    End::Scoped,
    End::Late,
    End::Closed,
];

/// Attempts of peers.
#[derive(Debug, Default)]
struct Counts {
    begun_before: usize,
    in_flight_at_the_end: usize,
    begun_after: usize,
    written_before: usize,
}

/// Begins writes and reads of the whole lease, while there is room.
fn begin(peer: &mut Channel, remote: RemoteMemoryRegion) -> Vec<Ticket> {
    let pd = peer.pd().clone();
    let each = (0..6).map_while(|at| {
        let buffer = pd.reg_mr(vec![WRITTEN; LEN]).unwrap();
        match at % 2 {
            0 => peer.start_write(buffer, remote).ok(),
            _ => peer.start_read(buffer, remote).ok(),
        }
    });
    each.collect()
}

fn attempt(seed: u64, end: End, kind: LeaseKind, counts: &mut Counts) {
    let windows = u32::from(kind == LeaseKind::Window);
    let ends = Ends::new(seed, windows);
    let memory = ends.memory(3 * LEN);
    let Ends {
        fabric,
        hosts: [host, far],
        owner,
        mut peer,
    } = ends;
    let link = fabric.link(&host, &far);
    link.loss(0.02).duplication(0.05).reordering(0.1);
    link.delay(Duration::from_micros(20));
    let mut owner = Some(owner);
    let slice = memory.slice(LEN..2 * LEN).unwrap();
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let steps = seed.wrapping_mul(6_364_136_223_846_793_005) >> 60;
    let mut begin_some = |remote| {
        let tickets = far.enter(|| begin(&mut peer, remote));
        for _ in 0..steps {
            fabric.step();
        }
        (remote, tickets)
    };
    let (remote, tickets) = host.enter(|| match end {
        End::Scoped => {
            let owner = owner.as_mut().unwrap();
            let scoped = owner.scope(|scope| {
                let lease = scope.lease(slice, access).map_err(Rejected::into_error)?;
                let begun = begin_some(lease.remote());
                mem::forget(lease);
                Ok::<_, Error>(begun)
            });
            scoped.unwrap()
        }
        _ => {
            let up = owner.as_mut().unwrap();
            let lease = up.lease(slice, access).unwrap();
            assert_eq!(lease.kind(), kind);
            let begun = begin_some(lease.remote());
            match end {
                End::Dropped => drop(lease),
                End::Ended => drop(lease.end().unwrap()),
                End::Late => {
                    up.set_timeout(Duration::ZERO);
                    drop(up.revoke(lease).unwrap());
                }
                End::Closed => {
                    mem::forget(lease);
                    owner.take().unwrap().close().unwrap();
                }
                End::Revoked | End::Scoped => drop(up.revoke(lease).unwrap()),
            }
            begun
        }
    });
    let written = bytes(&memory);
    counts.written_before += written.iter().filter(|byte| **byte == WRITTEN).count();
    // The memory is used for something else.
    region(&memory).write(LEN, &vec![SECRET; LEN]).unwrap();
    let expected = bytes(&memory);
    far.enter(|| {
        let is_in_flight = |ticket: &&Ticket| matches!(peer.poll(**ticket), Ok(None));
        counts.begun_before += tickets.len();
        let mut late: Vec<_> = tickets.iter().filter(is_in_flight).copied().collect();
        counts.in_flight_at_the_end += late.len();
        let after = begin(&mut peer, remote);
        counts.begun_after += after.len();
        late.extend(after);
        fabric.run_for(Duration::from_secs(5));
        for ticket in late {
            let ended = peer.wait(ticket, None).unwrap().unwrap();
            let read = ended.buffer.unwrap();
            let is_secret = read.contains(&SECRET);
            assert!(
                !is_secret,
                "seed {seed}, {end:?}: a late read has the bytes"
            );
        }
    });
    assert_eq!(
        bytes(&memory),
        expected,
        "seed {seed}, {end:?}: a late write"
    );
}

#[test]
fn not_one_byte_is_read_or_written_after_a_lease_has_ended() {
    for kind in [LeaseKind::Window, LeaseKind::Registration] {
        let mut counts = Counts::default();
        for seed in 0..200 {
            for end in ENDS {
                attempt(seed, end, kind, &mut counts);
            }
        }
        println!("{kind:?}: {counts:?}");
        assert!(counts.in_flight_at_the_end > 1000 && counts.written_before > 0);
    }
}
