//! Which of several devices, ports, GIDs and P_Keys is chosen without a hint: one that can be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_libibverbs::{Port, entry, ladder, with};
use verbs_core::codes::Gid;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::path::{DatagramEndpoint, QKey};
use verbs_core::queue_pair::QueuePairConfig;
use verbs_core::{Context, Error, PacketSequenceNumber, QueuePair, QueuePairEndpoint};

use crate::path::{chosen, down, ports};

#[test]
fn an_active_port_without_a_gid_is_not_taken_if_another_has_one() {
    let roce = || Port::roce(&["fe80::1", "", "::ffff:10.0.0.1"]);
    ports(&[Port::roce(&[]), down(roce()), roce()]);
    assert_eq!(chosen().unwrap().port_num(), 3);
    // The one with the GID that was asked for.
    ports(&[Port::roce(&["fe80::1"]), roce()]);
    let (_, pd, cq) = ladder();
    let builder = QueuePair::builder(&pd, &cq, &cq).gid_index(2);
    assert_eq!(builder.build().unwrap().endpoint().port_num(), 2);
    // None has one: that is what to mend.
    ports(&[down(roce()), Port::roce(&[])]);
    assert!(matches!(chosen().unwrap_err(), Error::NoGid { port: 2 }));
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
fn hosts_with_gids_of_both_kinds_choose_the_same_whatever_their_order() {
    let (ipv4, ipv6) = ("::ffff:10.0.0.1", "2001:db8::1");
    for table in [["fe80::1", ipv4, ipv6], [ipv6, "fe80::1", ipv4]] {
        ports(&[Port::roce(&table)]);
        assert_eq!(chosen().unwrap().gid().unwrap().to_string(), ipv4);
    }
    // An address that leads nowhere else is the last choice, also if it is of IPv4.
    for confined in ["::ffff:169.254.3.4", "::ffff:127.0.0.1", "::1", "fe80::1"] {
        ports(&[Port::roce(&[confined, ipv6])]);
        assert_eq!(chosen().unwrap().gid().unwrap().to_string(), ipv6);
    }
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
