//! Devices, ports, GIDs, P_Keys and paths that are chosen without a hint: those that can be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_libibverbs::{Port, entry, ladder, with};
use verbs_core::codes::Gid;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::ErrorKind;
use verbs_core::path::{DatagramEndpoint, QKey};
use verbs_core::queue_pair::QueuePairConfig;
use verbs_core::{
    Context, Error, MaximumTransferUnit, PacketSequenceNumber, QueuePair, QueuePairEndpoint,
};
use verbs_harness::assert_says;

fn chosen() -> Result<QueuePairEndpoint, Error> {
    let (_, pd, cq) = ladder();
    Ok(QueuePair::builder(&pd, &cq, &cq).build()?.endpoint())
}

pub(crate) fn ports(ports: &[Port]) {
    with(|library| library.ports = ports.to_vec());
}

fn down(mut port: Port) -> Port {
    port.attr.state.0 = 1;
    port
}

#[test]
fn the_best_port_and_gid_are_chosen() {
    let (ipv4, ipv6, local) = ("::ffff:10.0.0.1", "2001:db8::1", "fe80::1");
    let roce = || Port::roce(&[local, "", ipv4]);
    // RoCE v1 comes before v2 in the tables of most devices.
    let mut of_both_versions = Port::roce(&[]);
    of_both_versions.gids = vec![entry(ipv4, 0, 1), entry(local, 1, 2), entry(ipv4, 5, 2)];
    // A queue pair has 8 bits for the index.
    let mut wide = Port::roce(&[]);
    wide.attr.gid_tbl_len = 1024;
    wide.gids = vec![entry(local, 255, 2), entry(ipv4, 256, 2)];
    let mut cases = vec![
        (vec![down(roce()), roce(), roce()], (2, 2)),
        (vec![Port::roce(&[]), down(roce()), roce()], (3, 2)),
        (vec![Port::roce(&[local, "", "", ipv4, ipv6])], (1, 3)),
        (vec![Port::roce(&[local, ipv4, ipv6])], (1, 1)),
        (vec![Port::roce(&[ipv6, local, ipv4])], (1, 2)),
        (vec![of_both_versions], (1, 5)),
        (vec![wide], (1, 255)),
    ];
    // An address that leads nowhere else is the last choice, also if it is of IPv4.
    for confined in ["::ffff:169.254.3.4", "::ffff:127.0.0.1", "::1", local] {
        cases.push((vec![Port::roce(&[confined, ipv6])], (1, 1)));
    }
    for (case, (given, expected)) in cases.into_iter().enumerate() {
        ports(&given);
        let endpoint = chosen().unwrap();
        let found = (endpoint.port_num(), endpoint.gid_index());
        assert_eq!(found, expected, "case {case}");
        assert_eq!(endpoint.path_mtu(), MaximumTransferUnit::Mtu1024);
    }
    // The port with the GID that was asked for.
    ports(&[Port::roce(&[local]), roce()]);
    let (_, pd, cq) = ladder();
    let builder = QueuePair::builder(&pd, &cq, &cq).gid_index(2);
    assert_eq!(builder.build().unwrap().endpoint().port_num(), 2);
}

#[test]
fn without_an_active_port_or_a_gid_the_error_has_what_to_mend() {
    let roce = || Port::roce(&["fe80::1"]);
    ports(&[down(roce()), down(roce())]);
    assert_says(&chosen().unwrap_err(), "no port of fake0 is ACTIVE");
    // All zeros is a hole, even if the driver lists it.
    for (given, number) in [
        (vec![Port::roce(&[])], 1),
        (vec![Port::roce(&["::"])], 1),
        (vec![down(roce()), Port::roce(&[])], 2),
    ] {
        ports(&given);
        let error = chosen().unwrap_err();
        assert!(
            matches!(error, Error::NoGid { port } if port == number),
            "{error}"
        );
    }
}

#[test]
fn on_infiniband_the_lid_is_enough_unless_the_port_requires_a_grh() {
    for (flags, gid) in [(0, None), (1, Some("fe80::2".parse::<Gid>().unwrap()))] {
        let mut port = Port::infiniband(17);
        port.attr.flags = flags;
        ports(&[port]);
        let (_, pd, cq) = ladder();
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let endpoint = qp.endpoint();
        assert_eq!((endpoint.lid(), endpoint.gid()), (17, gid));
        assert_eq!(endpoint.path_mtu(), MaximumTransferUnit::Mtu4096);
        with(|library| library.modified.clear());
        drop(qp.handshake(&endpoint).unwrap());
        let av = with(|library| library.modified[0].0.ah_attr);
        assert_eq!((av.is_global, av.dlid), (flags, 17));
    }
}

#[test]
fn peer_without_the_required_address_is_rejected() {
    ports(&[Port::infiniband(17)]);
    let (_, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let gid_only = QueuePairEndpoint::builder(5, qp.endpoint().psn());
    let gid_only = gid_only.gid(Gid::new([3; 16])).build().unwrap();
    let refused = qp.handshake(&gid_only).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::InvalidPeer);
}

#[test]
fn pkey_index_after_the_ports_table_is_an_error_with_the_last_index() {
    let (_, pd, cq) = ladder();
    let build = |index| QueuePair::builder(&pd, &cq, &cq).pkey_index(index).build();
    for index in [2, 999] {
        assert_eq!(
            build(index).unwrap_err().to_string(),
            format!("pkey_index {index} is out of range: 0 to 1 are possible")
        );
    }
    drop(build(1).unwrap());
    let datagrams = |index| {
        DatagramQueuePair::builder(&pd, &cq, &cq)
            .pkey_index(index)
            .build()
    };
    assert_eq!(
        datagrams(2).unwrap_err().to_string(),
        "pkey_index 2 is out of range: 0 to 1 are possible"
    );
    drop(datagrams(1).unwrap());
    // A port that has none to choose from.
    let mut port = Port::roce(&["::ffff:10.0.0.1"]);
    port.attr.pkey_tbl_len = 0;
    ports(&[port]);
    let (_, pd, cq) = ladder();
    let error = QueuePair::builder(&pd, &cq, &cq).pkey_index(1).build();
    assert_eq!(
        error.unwrap_err().to_string(),
        "pkey_index 1 is out of range: only 0 is possible"
    );
}

#[test]
fn pkeys_are_in_native_byte_order() {
    let (context, ..) = ladder();
    assert_eq!(context.query_pkey(1, 1).unwrap(), 0x8001);
    assert_eq!(context.pkey_index(1, 0x8001), Some(1));
    assert_eq!(context.pkey_index(1, 0x0180), None);
    assert!(context.query_pkey(1, 2).is_err());
}

#[test]
fn a_second_port_has_a_table_of_its_own() {
    ports(&[
        Port::roce(&["fe80::1", "::ffff:10.0.0.1"]),
        Port::roce(&["", "", "fe80::9"]),
    ]);
    let (context, ..) = ladder();
    let table = context.gid_table(2).unwrap();
    let seen: Vec<_> = table
        .iter()
        .map(|entry| (entry.port_num(), entry.gid_index()))
        .collect();
    assert_eq!(seen, [(2, 2)]);
    assert_eq!(
        context.query_gid(2, 2).unwrap().gid().to_string(),
        "fe80::9"
    );
}

#[test]
fn the_longest_message_is_the_limit_of_the_port_that_was_chosen() {
    let port = |max_msg_sz| {
        let mut port = Port::infiniband(17);
        port.attr.max_msg_sz = max_msg_sz;
        port
    };
    // A driver that gives none, or more than a transport has (siw gives all ones).
    for (given, max) in [
        (1 << 20, 1 << 20),
        (0, 1 << 31),
        (u32::MAX, 1 << 31),
        (1 << 31, 1 << 31),
    ] {
        ports(&[down(port(77)), port(given)]);
        let (_, pd, cq) = ladder();
        let prepared = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        assert_eq!(prepared.max_msg_sz(), max);
        let endpoint = prepared.endpoint();
        let qp = prepared.handshake(&endpoint).unwrap();
        let asked = with(|library| library.calls.len());
        assert_eq!(qp.max_msg_sz(), max);
        assert_eq!(with(|library| library.calls.len()), asked, "it is cached");
        // It is asked for anew when the queue pair is prepared anew.
        ports(&[down(port(77)), port(4096)]);
        assert_eq!(qp.reset().unwrap().max_msg_sz(), 4096);
    }
}

#[test]
fn a_device_without_a_gid_is_taken_only_if_there_is_no_other() {
    ports(&[Port::roce(&[]), Port::roce(&[])]);
    assert_eq!(Context::first_active().unwrap().device().name(), "fake0");
    // All devices of this library have the same ports, which get a GID when the second device is opened.
    let opened = AtomicUsize::new(0);
    let before = move |verb: &str, _| {
        if verb == "ibv_open_device" && opened.fetch_add(1, Ordering::Relaxed) == 1 {
            ports(&[Port::roce(&["fe80::1"])]);
        }
    };
    with(|library| library.before = Some(Arc::new(before)));
    assert_eq!(Context::first_active().unwrap().device().name(), "fake1");
}

#[test]
fn path_to_a_peer_starts_at_a_gid_of_the_same_kind() {
    let mut port = Port::roce(&["::ffff:10.0.0.1", "fe80::1", "2001:db8::1"]);
    // RoCE v1 has other packets.
    port.gids.push(entry("2001:db8::1", 3, 1));
    ports(&[port]);
    let psn = PacketSequenceNumber::MAX;
    for (peer, index) in [("::ffff:10.0.0.9", 0), ("2001:db8::9", 2), ("fe80::9", 2)] {
        let gid: Gid = peer.parse().unwrap();
        let remote = QueuePairEndpoint::builder(5, psn).gid(gid).build().unwrap();
        let (_, pd, cq) = ladder();
        let handshake = |config: QueuePairConfig| {
            with(|library| library.modified.clear());
            let qp = config.build().unwrap().handshake(&remote).unwrap();
            let av = with(|library| library.modified[2].0.ah_attr);
            assert_eq!(qp.endpoint().gid_index(), av.grh.sgid_index);
            av.grh.sgid_index
        };
        let builder = || QueuePair::builder(&pd, &cq, &cq);
        assert_eq!(handshake(builder().config()), index, "{peer}");
        assert_eq!(handshake(builder().gid_index(1).config()), 1, "it was set");

        let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let remote = DatagramEndpoint::builder(5, QKey::new(7).unwrap())
            .gid(gid)
            .build();
        let path = datagrams.path_to(&remote.unwrap()).unwrap();
        assert_eq!(path.as_raw().grh.sgid_index, index, "{peer}");
    }
}

#[test]
fn the_first_pkey_with_full_membership_is_taken() {
    let chosen = || {
        let (_, pd, cq) = ladder();
        with(|library| library.modified.clear());
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let inits = with(|library| [1, 3].map(|init| library.modified[init].0.pkey_index));
        drop((qp, datagrams));
        assert_eq!(inits[0], inits[1]);
        inits[0]
    };
    for (pkeys, index) in [
        (vec![0xffff, 0x8001], 0),
        // A limited member reaches full members only; 0 and 0x8000 are no partition.
        (vec![0x7fff, 0x8001], 1),
        (vec![0, 0x8000, 0x7fff, 0xffff], 3),
        (vec![0, 0x7fff, 0x0001], 1),
        (vec![0, 0], 0),
        (vec![], 0),
    ] {
        let mut port = Port::infiniband(17);
        port.attr.pkey_tbl_len = 4;
        port.pkeys = pkeys;
        ports(&[port]);
        assert_eq!(chosen(), index);
    }
}
