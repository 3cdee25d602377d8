//! Packets of strangers.

use std::net::{Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use soft_nic::Route;
use soft_nic::packet::icrc;
use verbs_harness::begin;
use verbs_harness::child::{Child, role};
use verbs_harness::pair::{End, Side};

use crate::{memory, over_udp};

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

/// A packet for a queue pair with a right CRC, and with a PSN far from those of `base`: long ago, or not yet.
fn sealed(route: &Route, number: u32, base: u32, random: u64) -> Vec<u8> {
    let [opcode, length, is_ahead, low, high, ..] = random.to_le_bytes();
    let distance = (1 << 20) + u32::from(u16::from_le_bytes([low, high]));
    let psn = match is_ahead & 1 {
        0 => base.wrapping_sub(distance),
        _ => base.wrapping_add(distance),
    };
    let mut packet = vec![opcode % 0x15, 0, 0xff, 0xff];
    packet.extend(number.to_be_bytes());
    packet.extend((psn & 0xff_ffff | 1 << 31).to_be_bytes());
    packet.resize(packet.len() + 4 * usize::from(length), low);
    let crc = icrc(route, &packet);
    packet.extend(crc.to_le_bytes());
    packet
}

#[test]
#[ignore = "a part of a_flood_of_garbage_and_of_forged_packets_neither_harms_nor_is_remembered"]
fn flood() {
    let test = begin!();
    let side = Side::here();
    let prepared = side.prepared();
    let number = prepared.endpoint().qp_num();
    let gid = Ipv6Addr::from(prepared.endpoint().gid().unwrap().raw());
    let psn = prepared.endpoint().psn().get();
    if let Some((_, mut line)) = role() {
        line.write(&format!("{gid} {psn}"));
        let end = End::connect(side, prepared, &mut line);
        for _ in 0..20 {
            end.exchange(&mut line, false, 50_000);
        }
        return;
    }
    let mut child = Child::start(&test, "peer");
    let text = child.line.read();
    let (peers, peers_psn) = text.split_once(' ').unwrap();
    let (peers, peers_psn): (Ipv6Addr, u32) = (peers.parse().unwrap(), peers_psn.parse().unwrap());
    let end = End::connect(side, prepared, &mut child.line);
    // At another port of the peer's address, and at one of a stranger.
    let [forger, stranger] = [peers.to_ipv4_mapped().unwrap(), [127, 0, 99, 99].into()]
        .map(|address| UdpSocket::bind((address, 0)).unwrap());
    let target = (gid.to_ipv4_mapped().unwrap(), 4791);
    let route = Route {
        source_port: forger.local_addr().unwrap().port(),
        ..Route::new(peers, gid)
    };
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
                // Answers are to what this side has sent.
                let is_answer = (0xd..=0x12).contains(&(bytes[0] % 0x15));
                let base = if is_answer { psn } else { peers_psn };
                let packet = sealed(&route, number, base, state);
                forger.send_to(&packet, target).unwrap();
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
