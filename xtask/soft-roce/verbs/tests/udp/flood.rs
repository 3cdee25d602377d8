//! Packets of strangers.

use std::fs;
use std::net::{Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use verbs_harness::begin;
use verbs_harness::child::{Child, role};
use verbs_harness::pair::{End, Side};

use crate::over_udp;

#[test]
fn a_flood_of_garbage_and_of_forged_packets_neither_harms_nor_is_remembered() {
    over_udp("flood::flood");
}

/// Ends the flood when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Memory of this process, in KiB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
#[ignore = "a part of a_flood_of_garbage_and_of_forged_packets_neither_harms_nor_is_remembered"]
fn flood() {
    let test = begin!();
    let side = Side::here();
    let prepared = side.prepared();
    let number = prepared.endpoint().qp_num();
    let gid = Ipv6Addr::from(prepared.endpoint().gid().unwrap().raw());
    if let Some((_, mut line)) = role() {
        line.write(&gid.to_string());
        let end = End::connect(side, prepared, &mut line);
        for _ in 0..20 {
            end.exchange(&mut line, false, 50_000);
        }
        return;
    }
    let mut child = Child::start(&test, "peer");
    let peers: Ipv6Addr = child.line.read().parse().unwrap();
    let end = End::connect(side, prepared, &mut child.line);
    // At another port of the peer's address, and at one of a stranger.
    let [forger, stranger] = [peers.to_ipv4_mapped().unwrap(), [127, 0, 99, 99].into()]
        .map(|address| UdpSocket::bind((address, 0)).unwrap());
    let target = (gid.to_ipv4_mapped().unwrap(), 4791);
    let (is_over, sent, before) = (AtomicBool::new(false), AtomicU64::new(0), memory());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut packet = [0_u8; 5000];
            let mut state = 1_u64;
            while !is_over.load(Ordering::Relaxed) {
                // More than a card that is busy can take, less than would leave no place in its socket.
                if state & 0x3f == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let bytes = state.to_le_bytes();
                // Any opcode, the partition, the queue pair, any PSN.
                packet[..4].copy_from_slice(&[bytes[0] & 0x1f, 0, 0xff, 0xff]);
                packet[4..8].copy_from_slice(&number.to_be_bytes());
                packet[8..12].copy_from_slice(&[0x80, bytes[1], bytes[2], bytes[3]]);
                let length = usize::from(u16::from_le_bytes([bytes[4], bytes[5]])) % packet.len();
                for socket in [&forger, &stranger] {
                    socket.send_to(&packet[..length], target).unwrap();
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // Whatever happens.
        let _end = Over(&is_over);
        for _ in 0..20 {
            end.exchange(&mut child.line, true, 50_000);
        }
    });
    let (sent, grown) = (sent.into_inner(), memory().saturating_sub(before));
    assert!(sent > 1000, "{sent} packets are no flood");
    assert!(grown < 16 << 10, "{grown} KiB for {sent} packets");
    assert!(child.ended().success());
}
