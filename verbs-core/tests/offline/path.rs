//! Paths that are chosen without a hint, on InfiniBand and on RoCE.

use fake_libibverbs::{Port, entry, ladder, with};
use verbs_core::verbs_sys::{IBV_QP_PKEY_INDEX, IBV_QPS_ERR, IBV_QPS_RTS, IBV_QPS_SQE};
use verbs_core::{
    AhAttr, DatagramEndpoint, DatagramQueuePair, Error, ErrorKind, Gid, MaximumTransferUnit, QKey,
    QueuePair, QueuePairEndpoint,
};

pub(crate) fn chosen() -> Result<QueuePairEndpoint, Error> {
    let (_, pd, cq) = ladder();
    Ok(QueuePair::builder(&pd, &cq, &cq).build()?.endpoint())
}

pub(crate) fn ports(ports: &[Port]) {
    with(|library| library.ports = ports.to_vec());
}

pub(crate) fn down(mut port: Port) -> Port {
    port.attr.state.0 = 1;
    port
}

#[test]
fn the_first_active_port_is_taken() {
    let roce = || Port::roce(&["fe80::1", "", "::ffff:10.0.0.1"]);
    ports(&[down(roce()), roce(), roce()]);
    assert_eq!(chosen().unwrap().port_num(), 2);
    ports(&[down(roce()), down(roce())]);
    let error = chosen().unwrap_err();
    assert!(
        error.to_string().starts_with("no port of fake0 is ACTIVE"),
        "{error}"
    );
}

#[test]
fn on_ethernet_the_gid_with_the_largest_scope_is_taken() {
    ports(&[Port::roce(&[
        "fe80::1",
        "",
        "",
        "::ffff:10.0.0.1",
        "2001:db8::1",
    ])]);
    let endpoint = chosen().unwrap();
    assert_eq!(endpoint.gid_index(), 3);
    assert_eq!(endpoint.gid().unwrap().to_string(), "::ffff:10.0.0.1");
    assert_eq!(endpoint.path_mtu(), MaximumTransferUnit::Mtu1024);
    // RoCE v1 comes before v2 in the tables of most devices.
    let mut port = Port::roce(&[]);
    port.gids = vec![
        entry("::ffff:10.0.0.1", 0, 1),
        entry("fe80::1", 1, 2),
        entry("::ffff:10.0.0.1", 5, 2),
    ];
    ports(&[port]);
    assert_eq!(chosen().unwrap().gid_index(), 5);
}

#[test]
fn gids_that_no_queue_pair_can_use_are_left_out() {
    let mut port = Port::roce(&[]);
    port.attr.gid_tbl_len = 1024;
    port.gids = vec![entry("fe80::1", 255, 2), entry("::ffff:10.0.0.1", 256, 2)];
    ports(&[port]);
    assert_eq!(chosen().unwrap().gid_index(), 255);
    let (context, ..) = ladder();
    assert_eq!(context.gid_table(1).unwrap().len(), 1);
}

#[test]
fn on_ethernet_there_must_be_a_gid() {
    ports(&[Port::roce(&[])]);
    let error = chosen().unwrap_err();
    assert!(matches!(error, Error::NoGid { port: 1 }), "{error}");
    // All zeros is a hole, even if the driver lists it.
    ports(&[Port::roce(&["::"])]);
    assert!(matches!(chosen().unwrap_err(), Error::NoGid { port: 1 }));
}

#[test]
fn on_infiniband_the_lid_is_enough() {
    ports(&[Port::infiniband(17)]);
    let (_, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let endpoint = qp.endpoint();
    assert_eq!((endpoint.lid(), endpoint.gid()), (17, None));
    assert_eq!(endpoint.path_mtu(), MaximumTransferUnit::Mtu4096);
    drop(qp.handshake(&endpoint).unwrap());
    let av = with(|library| library.modified[2].0.ah_attr);
    assert_eq!((av.is_global, av.dlid), (0, 17));
}

#[test]
fn infiniband_port_that_requires_a_grh_gets_one() {
    let mut port = Port::infiniband(17);
    port.attr.flags = 1;
    ports(&[port]);
    let (_, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let endpoint = qp.endpoint();
    assert_eq!(
        (endpoint.lid(), endpoint.gid().unwrap().to_string()),
        (17, "fe80::2".into())
    );
    drop(qp.handshake(&endpoint).unwrap());
    let av = with(|library| library.modified[2].0.ah_attr);
    assert_eq!((av.is_global, av.dlid), (1, 17));
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
fn empty_gid_index_error_lists_the_filled_ones() {
    ports(&[Port::roce(&["fe80::1", "", "::ffff:10.0.0.1"])]);
    let (_, pd, cq) = ladder();
    let error = QueuePair::builder(&pd, &cq, &cq)
        .gid_index(1)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "GID index 1 of port 1 is empty; the filled ones are [0, 2]"
    );
    let qp = QueuePair::builder(&pd, &cq, &cq)
        .gid_index(0)
        .build()
        .unwrap();
    assert_eq!(qp.endpoint().gid_index(), 0);
}

#[test]
fn unknown_port_error_has_the_number_of_ports() {
    let (context, pd, cq) = ladder();
    let words = "port 2 does not exist: fake0 has ports 1 to 1";
    let error = QueuePair::builder(&pd, &cq, &cq)
        .port_num(2)
        .build()
        .unwrap_err();
    assert_eq!(error.to_string(), words);
    assert_eq!(context.query_port(2).unwrap_err().to_string(), words);
    assert_eq!(context.gid_table(2).unwrap_err().to_string(), words);
    assert!(context.query_port(0).is_err());
}

#[test]
fn path_mtu_above_the_ports_is_an_error_with_the_limit() {
    let (_, pd, cq) = ladder();
    let build = || QueuePair::builder(&pd, &cq, &cq);
    let error = build()
        .path_mtu(MaximumTransferUnit::Mtu4096)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "path_mtu 4096 is out of range: 256 to 1024 are possible"
    );
    assert!(
        build()
            .path_mtu(MaximumTransferUnit::Mtu1024)
            .build()
            .is_ok()
    );
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

/// The tables change after a queue pair was built; the address is removed and added again, for example.
fn gids(gids: &[&str]) {
    with(|library| library.ports[0].gids = Port::roce(gids).gids);
}

/// The index of this side's GID in the path to a peer.
fn sgid_index_of_a_connection() -> u8 {
    let av = with(|library| library.modified.iter().rev().nth(1).unwrap().0.ah_attr);
    av.grh.sgid_index
}

fn peer() -> DatagramEndpoint {
    let peer = DatagramEndpoint::builder(9, QKey::MAX).gid(Gid::new([1; 16]));
    peer.build().unwrap()
}

#[test]
fn gid_that_moved_is_used_at_the_index_where_it_is_now() {
    ports(&[Port::roce(&["fe80::1", "::ffff:10.0.0.1"])]);
    let (_, pd, cq) = ladder();
    let prepared = || QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let [first, second, third] = [(); 3].map(|()| prepared());
    assert_eq!(datagrams.gid_index().unwrap(), Some(1));
    // Its own index again; another one; another one, and its own has another GID.
    for (qp, table, index) in [
        (first, &["fe80::1", "::ffff:10.0.0.1"][..], 1),
        (second, &["fe80::1", "", "::ffff:10.0.0.1"], 2),
        (third, &["::ffff:10.0.0.1", "::ffff:10.0.0.2"], 0),
    ] {
        gids(table);
        let endpoint = qp.endpoint();
        drop(qp.handshake(&endpoint).unwrap());
        assert_eq!(sgid_index_of_a_connection(), index);
        drop(datagrams.address_handle(&peer()).unwrap());
        let path = with(|library| library.paths.pop()).unwrap();
        assert_eq!(path.grh.sgid_index, index);
        assert_eq!(datagrams.gid_index().unwrap(), Some(index));
    }
}

#[test]
fn gid_that_is_removed_is_named_and_no_other_is_used_in_its_place() {
    ports(&[Port::roce(&["fe80::1", "::ffff:10.0.0.1"])]);
    let (_, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
    // RoCE v1 has other packets.
    let v1 = entry("::ffff:10.0.0.1", 1, 1);
    with(|library| library.ports[0].gids = vec![entry("fe80::1", 0, 2), v1]);
    let words = "GID ::ffff:10.0.0.1 is no longer in the table of port 1: the address was removed \
                 from its network interface; add it again, or build anew to choose another";
    let endpoint = qp.endpoint();
    let refused = qp.handshake(&endpoint).unwrap_err();
    assert_eq!(refused.error().to_string(), words);
    assert_eq!(refused.error().kind(), ErrorKind::NotFound);
    let error = datagrams.address_handle(&peer()).unwrap_err();
    assert_eq!(error.to_string(), words);
    // The address comes back, at another index.
    gids(&["fe80::1", "", "", "::ffff:10.0.0.1"]);
    drop(refused.into_given().handshake(&endpoint).unwrap());
    assert_eq!(sgid_index_of_a_connection(), 3);
    drop(datagrams.address_handle(&peer()).unwrap());
}

#[test]
fn link_local_gid_of_another_interface_is_another_gid() {
    let of = |gid: &str, index, ndev_ifindex| {
        let mut entry = entry(gid, index, 2);
        entry.ndev_ifindex = ndev_ifindex;
        entry
    };
    let table = |entries: &[_]| with(|library| library.ports[0].gids = entries.to_vec());
    for (address, is_other) in [("fe80::1", true), ("2001:db8::1", false)] {
        table(&[of(address, 0, 5)]);
        let (_, pd, cq) = ladder();
        let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
        table(&[of(address, 1, 6), of(address, 2, 5)]);
        assert_eq!(datagrams.gid_index().unwrap(), Some(2));
        // The interface was made again.
        table(&[of(address, 1, 6)]);
        match datagrams.gid_index() {
            Ok(index) => assert!(!is_other && index == Some(1)),
            Err(error) => assert!(is_other && matches!(error, Error::GidRemoved { .. })),
        }
    }
}

#[test]
fn pkey_that_moved_is_used_at_the_index_where_it_is_now() {
    ports(&[Port::infiniband(17)]);
    let (_, pd, cq) = ladder();
    let pkeys = |pkeys: &[u16]| with(|library| library.ports[0].pkeys = pkeys.to_vec());
    let build = || QueuePair::builder(&pd, &cq, &cq).pkey_index(1).build();
    let [stays, moves, goes] = [(); 3].map(|()| build().unwrap());
    let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).pkey_index(1);
    let datagrams = datagrams.build().unwrap();
    let connect = |qp: verbs_core::PreparedQueuePair| {
        let endpoint = qp.endpoint();
        let refused = qp.handshake(&endpoint).map(drop);
        refused.map_err(|refused| refused.into_parts().0)
    };
    let index_at_rtr = || {
        let (attr, mask) = with(|library| *library.modified.iter().rev().nth(1).unwrap());
        (mask & IBV_QP_PKEY_INDEX.0 != 0).then_some(attr.pkey_index)
    };
    connect(stays).unwrap();
    assert_eq!(index_at_rtr(), None);
    pkeys(&[0x8001, 0xffff]);
    connect(moves).unwrap();
    assert_eq!(index_at_rtr(), Some(0));
    assert!(!datagrams.restart().unwrap());
    let init = with(|library| library.modified.iter().rev().nth(2).unwrap().0);
    assert_eq!(init.pkey_index, 0);
    // The index has another P_Key: its packets would go to another partition.
    pkeys(&[0xffff, 0x8002]);
    let words = "P_Key 0x8001 is no longer in the table of port 1: the subnet manager removed the \
                 port from its partition";
    assert_eq!(connect(goes).unwrap_err().to_string(), words);
    assert_eq!(datagrams.restart().unwrap_err().to_string(), words);
}

#[test]
fn restart_keeps_the_receives_where_only_the_send_queue_was_in_error() {
    let (_, pd, cq) = ladder();
    let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let restart = |state| {
        with(|library| {
            library.qp_state = Some(state);
            library.modified.clear();
        });
        let keeps = datagrams.restart().unwrap();
        with(|library| library.qp_state = None);
        let to: Vec<_> = with(|library| {
            let states = library.modified.iter().map(|(attr, _)| attr.qp_state.0);
            states.collect()
        });
        assert_eq!(to.last(), Some(&IBV_QPS_RTS.0));
        (keeps, to.len())
    };
    assert_eq!(restart(IBV_QPS_SQE), (true, 1));
    assert_eq!(restart(IBV_QPS_ERR), (false, 4));
}

#[test]
fn handle_at_an_empty_index_is_an_error_with_the_filled_ones() {
    let (_, pd, _) = ladder();
    let attr = AhAttr::new(1).grh(Gid::new([1; 16]), 7, 64);
    assert_eq!(
        pd.create_ah(&attr).unwrap_err().to_string(),
        "GID index 7 of port 1 is empty; the filled ones are [0, 1]"
    );
}
