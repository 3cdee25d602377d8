//! Paths that are chosen without a hint, on InfiniBand and on RoCE.

use fake_libibverbs::{Port, entry, ladder, with};
use verbs_core::codes::Gid;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::ErrorKind;
use verbs_core::{Error, MaximumTransferUnit, QueuePair, QueuePairEndpoint};

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
