//! Packets of the card, read by other programs: tshark (of Wireshark) and Scapy, where they are installed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::link::{ALL, Buffer, Host, World, pattern};
use soft_nic::packet::{Body, icrc};
use soft_nic::{
    AddressVector, Data, DatagramAddress, Psn, Route, SendOpcode, SendRequest, Transport,
    WindowKind,
};

/// Packets of every opcode that the card sends.
fn every_opcode() -> Vec<(Route, Vec<u8>)> {
    let mut world = World::new();
    for transport in [Transport::Rc, Transport::Uc] {
        let (qa, qb) = world.pair(transport);
        let (local, remote) = (world.a.filled(&pattern(3000)), world.b.buffer(3000, ALL));
        let to = remote.remote(0);
        for length in [100, 3000] {
            for number in 0..4 {
                world.receive_b(qb, number, &[remote.element()]);
            }
            let opcodes = [
                SendOpcode::Send,
                SendOpcode::SendWithImmediate([1; 4]),
                SendOpcode::Write(to),
                SendOpcode::WriteWithImmediate(to, [1; 4]),
            ];
            for opcode in opcodes {
                world.post_a(qa, 1, opcode, &[local.part(0, length)]);
            }
            if transport == Transport::Rc {
                world.post_a(qa, 1, SendOpcode::Read(to), &[local.part(0, length)]);
                let key = bound(&mut world, qb, &remote);
                world.receive_b(qb, 5, &[remote.element()]);
                world.post_a(
                    qa,
                    1,
                    SendOpcode::SendWithInvalidate(key),
                    &[local.part(0, length)],
                );
            }
            world.run();
        }
        if transport == Transport::Rc {
            let (swap, add) = (
                SendOpcode::CompareSwap {
                    remote: to,
                    compare: 0,
                    swap: 1,
                },
                SendOpcode::FetchAdd { remote: to, add: 1 },
            );
            world.post_a(qa, 1, swap, &[local.part(0, 8)]);
            world.post_a(qa, 1, add, &[local.part(0, 8)]);
            world.run();
        }
    }
    datagrams(&mut world.a, world.b.gid);
    world.run();
    let opcodes: std::collections::BTreeSet<u8> =
        world.raw.iter().map(|(_, _, packet)| packet[0]).collect();
    let all = (0..=0x14)
        .chain(0x16..=0x17)
        .chain(0x20..=0x2b)
        .chain(0x64..=0x65);
    assert_eq!(
        opcodes.into_iter().collect::<Vec<u8>>(),
        all.collect::<Vec<u8>>()
    );
    assert!(world.count(Body::is_request) > 40);
    world
        .raw
        .into_iter()
        .map(|(_, route, packet)| (route, packet))
        .collect()
}

fn bound(world: &mut World, qb: u32, to: &Buffer) -> u32 {
    let pd = world.b.pd;
    let key = world.b.nic.alloc_mw(pd, WindowKind::Type2).unwrap();
    let bind = soft_nic::Bind {
        window: key,
        rkey: key,
        lkey: to.lkey,
        address: to.address(),
        length: 8,
        access: soft_nic::Access::REMOTE_READ,
    };
    world.post_b(qb, 1, SendOpcode::BindWindow(bind), &[]);
    world.run();
    key
}

fn datagrams(host: &mut Host, peer: std::net::Ipv6Addr) {
    let options = host.options(Transport::Ud);
    let qp = host.nic.create_qp(&options).unwrap();
    let path = AddressVector::to(peer);
    host.nic
        .connect(qp, path, Psn::new(1), 1, Psn::new(1))
        .unwrap();
    for opcode in [SendOpcode::Send, SendOpcode::SendWithImmediate([1; 4])] {
        let parts = [&b"datagram"[..]];
        let mut request = SendRequest::new(1, opcode, Data::Inline(parts.concat()));
        request.to = Some(DatagramAddress {
            path,
            queue_pair: 99,
            qkey: 1,
        });
        host.nic.post_send(qp, request).unwrap();
    }
}

/// A Python, such as one of an environment that has Scapy.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".into())
}

/// The packet from its IPv4 header on, as a wire has it.
fn datagram(route: &Route, packet: &[u8]) -> Vec<u8> {
    let mut bytes = route.headers(packet.len() as u16);
    bytes.extend(packet);
    bytes
}

/// A file that Wireshark opens: packets of raw IP.
fn pcap(packets: &[(Route, Vec<u8>)], name: &str) -> PathBuf {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0xffff, 101] {
        file.extend(word.to_le_bytes());
    }
    for (route, packet) in packets {
        let bytes = datagram(route, packet);
        let length = bytes.len() as u32;
        for word in [0, 0, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(bytes);
    }
    let path = std::env::temp_dir().join(format!("soft-nic-{name}-{}.pcap", std::process::id()));
    fs::write(&path, file).unwrap();
    path
}

#[test]
fn every_opcode_is_sent() {
    assert!(!every_opcode().is_empty());
}

/// Whether a program runs; if not, the test is skipped by name.
fn has(test: &str, what: &str, program: &mut Command) -> bool {
    let found = program.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    if !is_there {
        println!("SKIPPED tools::{test}: {what} is not installed");
    }
    is_there
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no other program")]
fn tshark_finds_no_malformed_packet() {
    let name = "tshark_finds_no_malformed_packet";
    if !has(
        name,
        "tshark (Debian's package tshark)",
        Command::new("tshark").arg("--version"),
    ) {
        return;
    }
    let packets = every_opcode();
    let path = pcap(&packets, "tshark");
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args([
        "-T",
        "fields",
        "-e",
        "infiniband.bth.opcode",
        "-e",
        "_ws.malformed",
    ]);
    let output = tshark.output().expect("tshark runs");
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), packets.len(), "{text}");
    for (line, (_, packet)) in text.lines().zip(&packets) {
        let (opcode, malformed) = line.split_once('\t').unwrap_or((line, ""));
        assert_eq!(opcode.parse(), Ok(packet[0]), "{line}");
        assert_eq!(malformed, "", "{packet:02x?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no other program")]
fn scapy_computes_the_same_crc() {
    const PROGRAM: &str = "
import sys
from scapy.all import IP, raw
from scapy.contrib import roce
for line in sys.stdin:
    data = bytes.fromhex(line)
    packet = IP(data)
    bth = packet[roce.BTH]
    bth.icrc = None
    print(raw(packet)[-4:].hex())
";
    let mut import = Command::new(python());
    let what = "Scapy (Debian's package python3-scapy)";
    if !has(
        "scapy_computes_the_same_crc",
        what,
        import.args(["-c", "import scapy.contrib.roce"]),
    ) {
        return;
    }
    let packets = every_opcode();
    let mut python = Command::new(python());
    python
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = python.spawn().expect("Python runs");
    let lines: Vec<String> = packets
        .iter()
        .map(|(route, packet)| {
            datagram(route, packet)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        })
        .collect();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        std::io::Write::write_all(&mut stdin, (lines.join("\n") + "\n").as_bytes())
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), packets.len());
    for (line, (route, packet)) in text.lines().zip(&packets) {
        let crc = icrc(route, &packet[..packet.len() - 4]).to_le_bytes();
        let expected: String = crc.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(line, expected, "{packet:02x?}");
    }
}
