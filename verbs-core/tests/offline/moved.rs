//! Tables of GIDs and P_Keys that change after a queue pair was built.

use fake_libibverbs::{Port, entry, ladder, with};
use verbs_core::codes::Gid;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::ErrorKind;
use verbs_core::path::{AhAttr, DatagramEndpoint, QKey};
use verbs_core::verbs_sys::{IBV_QP_PKEY_INDEX, IBV_QPS_ERR, IBV_QPS_RTS, IBV_QPS_SQE};
use verbs_core::{Error, PreparedQueuePair, QueuePair};

use crate::path::ports;

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
    let connect = |qp: PreparedQueuePair| {
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
