//! Bytes on the wire: what a probe exchanged with the kernel's rxe, and what is dropped (9.2, annex A17).

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::link::{ALL, World, pattern};
use soft_nic::packet::{Aeth, Body, Extra, Header, Place, Syndrome, icrc};
use soft_nic::{Psn, Route, SendOpcode, Transport};

/// CRC-32 by the book, as zlib's.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

/// The invariant CRC as the probe computed it that the kernel's rxe took.
fn probed(route: &Route, bth: &[u8]) -> u32 {
    let length = bth.len() as u16 + 4;
    let v4 = |gid: std::net::Ipv6Addr| gid.to_ipv4_mapped().unwrap().octets();
    let mut all = vec![0xff; 8];
    all.extend([0x45, 0xff]);
    all.extend((20 + 8 + length).to_be_bytes());
    all.extend([0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
    all.extend(v4(route.source));
    all.extend(v4(route.destination));
    all.extend(4791_u16.to_be_bytes());
    all.extend(4791_u16.to_be_bytes());
    all.extend((8 + length).to_be_bytes());
    all.extend([0xff, 0xff]);
    let start = all.len();
    all.extend(bth);
    all[start + 4] = 0xff;
    crc32(&all)
}

#[test]
fn a_send_is_the_bytes_that_rxe_takes() {
    let gid = |last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped();
    let route = Route::new(gid(1), gid(2));
    let mut header = Header::new(
        Transport::Rc,
        Body::Send(Place::Only, Extra::None),
        0x12,
        Psn::new(0x100),
    );
    header.wants_ack = true;
    let packet = header.packet(&route, &[1, 2, 3, 4, 5]);
    let expected = [
        4, 0x30, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0, 1, 0, 1, 2, 3, 4, 5, 0, 0, 0,
    ];
    assert_eq!(packet[..20], expected);
    assert_eq!(packet[20..], probed(&route, &expected).to_le_bytes());
    assert_eq!(icrc(&route, &expected), probed(&route, &expected));
    assert_eq!(Header::parse(&packet), Some((header, &[1, 2, 3, 4, 5][..])));
}

#[test]
fn an_acknowledgement_has_no_limit_of_credits() {
    let route = Route::new(std::net::Ipv6Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
    let aeth = Aeth {
        syndrome: Syndrome::ACK,
        msn: 0x010203,
    };
    let header = Header::new(
        Transport::Rc,
        Body::Acknowledge(aeth),
        0x123456,
        Psn::new(7),
    );
    let packet = header.packet(&route, &[]);
    assert_eq!(
        packet[..16],
        [
            0x11, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0, 0, 7, 0x1f, 1, 2, 3
        ]
    );
    assert_eq!(packet.len(), 20);
}

#[test]
fn packets_that_are_damaged_or_for_others_are_dropped() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (sent, received) = (world.a.filled(&pattern(64)), world.b.buffer(64, ALL));
    world.receive_b(qb, 1, &[received.element()]);
    world.post_a(qa, 1, SendOpcode::Send, &[sent.element()]);
    let mut packet = Vec::new();
    let route = world.a.nic.transmit(Duration::ZERO, &mut packet).unwrap();
    for at in 0..packet.len() * 8 {
        // FECN, BECN and six reserved bits are not covered: routers change them.
        if at / 8 == 4 {
            continue;
        }
        let mut damaged = packet.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        world.b.nic.receive(Duration::ZERO, &route, &damaged);
    }
    assert_eq!(
        world.b.nic.counters().damaged,
        (packet.len() as u64 - 1) * 8
    );
    let mut other = route;
    other.destination = Ipv4Addr::new(127, 0, 0, 3).to_ipv6_mapped();
    let (header, payload) = Header::parse(&packet).unwrap();
    world
        .b
        .nic
        .receive(Duration::ZERO, &other, &header.packet(&other, payload));
    let mut stranger = route;
    stranger.source = Ipv4Addr::new(127, 0, 0, 3).to_ipv6_mapped();
    world.b.nic.receive(
        Duration::ZERO,
        &stranger,
        &header.packet(&stranger, payload),
    );
    let mut partition = header;
    partition.partition = 0x1234;
    world
        .b
        .nic
        .receive(Duration::ZERO, &route, &partition.packet(&route, payload));
    assert_eq!(world.b.poll(), None);
    assert_eq!(world.b.nic.counters().strange, 1);
    assert_eq!(world.b.nic.counters().malformed, 2);
    world.b.nic.receive(Duration::ZERO, &route, &packet);
    assert_eq!(received.bytes(), pattern(64));
}

#[test]
fn the_crc_of_a_packet_out_of_a_udp_socket_is_checked_too() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.receive_b(qb, 1, &[]);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    let mut packet = Vec::new();
    let mut route = world.a.nic.transmit(Duration::ZERO, &mut packet).unwrap();
    route.identification = None;
    *packet.last_mut().unwrap() ^= 1;
    world.b.nic.receive(Duration::ZERO, &route, &packet);
    assert_eq!(world.b.poll(), None);
    assert_eq!(world.b.nic.counters().damaged, 1);
    *packet.last_mut().unwrap() ^= 1;
    world.b.nic.receive(Duration::ZERO, &route, &packet);
    assert!(world.b.poll().is_some());
}

#[test]
fn a_link_that_is_down_loses_packets_in_both_directions() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.receive_b(qb, 1, &[]);
    world.a.nic.set_port_up(false);
    assert_eq!(world.a.events(), [soft_nic::Event::PortError]);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.run();
    assert!(world.seen.is_empty());
    world.a.nic.set_port_up(true);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.a.statuses().len(), 1);
}
