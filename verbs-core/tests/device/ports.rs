//! Ports: attributes, GID table and P_Keys, against sysfs.

use std::fs;

use verbs_core::codes::{Gid, GidType, LinkLayer, PortState};
use verbs_core::error::ErrorKind;
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{assert_says, begin, context, device_name, sysfs};

#[test]
#[ignore = "needs an RDMA device"]
fn port_attributes_match_sysfs() {
    let _test = begin!();
    let context = context();
    for port in context.ports().unwrap() {
        let attr = context.query_port(port).unwrap();
        let file = |name: &str| sysfs(&format!("ports/{port}/{name}"));
        let state = u32::from(
            file("state")
                .split(':')
                .next()
                .unwrap()
                .parse::<u16>()
                .unwrap(),
        );
        assert_eq!(attr.state().as_raw(), state);
        assert_eq!(attr.link_layer().to_string(), file("link_layer"));
        assert_eq!(format!("{:#x}", attr.lid()), file("lid"));
        let physical = file("phys_state");
        assert_eq!(
            attr.phys_state().as_raw().to_string(),
            physical.split(':').next().unwrap()
        );
        if attr.link_layer() == LinkLayer::ETHERNET {
            assert!(attr.needs_grh());
        }
        if attr.state() == PortState::ACTIVE {
            assert!(attr.active_mtu().unwrap() <= attr.max_mtu().unwrap());
        }
        assert!(attr.max_msg_sz() >= 1 << 20 && attr.gid_tbl_len() > 0);
        assert!(attr.pkey_tbl_len() > 0 || is_iwarp());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn gid_table_matches_sysfs_without_empty_entries() {
    let _test = begin!();
    let context = context();
    for port in context.ports().unwrap() {
        let table = context.gid_table(port).unwrap();
        let room = context.query_port(port).unwrap().gid_tbl_len();
        let mut filled = 0;
        for index in (0..room).map_while(|index| u8::try_from(index).ok()) {
            let gid = sysfs(&format!("ports/{port}/gids/{index}"));
            let gid = Gid::from(gid.parse::<std::net::Ipv6Addr>().unwrap());
            let entry = table.iter().find(|entry| entry.gid_index() == index);
            assert_eq!(
                entry.map(verbs_core::device::GidEntry::gid),
                (!gid.is_zero()).then_some(gid)
            );
            let Some(entry) = entry else { continue };
            filled += 1;
            assert_eq!(
                (entry.port_num(), context.query_gid(port, index).unwrap()),
                (port, *entry)
            );
            let attrs = format!(
                "/sys/class/infiniband/{}/ports/{port}/gid_attrs",
                device_name()
            );
            if let Ok(netdev) = fs::read_to_string(format!("{attrs}/ndevs/{index}")) {
                assert_eq!(entry.netdev().as_deref(), Some(netdev.trim()));
            }
            let kind = fs::read_to_string(format!("{attrs}/types/{index}")).unwrap_or_default();
            if kind.trim() == "RoCE v2" {
                assert_eq!(entry.gid_type(), GidType::ROCE_V2);
            }
        }
        assert_eq!(table.len(), filled);
        assert!(filled > 0, "a port that has no GID cannot be reached");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_empty_gid_index_names_the_filled_ones() {
    let _test = begin!();
    let context = context();
    let port = context.active_port().unwrap().unwrap();
    let filled = context.gid_table(port).unwrap();
    let hole = (0..=u8::MAX).find(|index| filled.iter().all(|entry| entry.gid_index() != *index));
    let error = context.query_gid(port, hole.unwrap()).unwrap_err();
    let words = error.to_string();
    let first = filled[0].gid_index();
    assert!(
        words.contains("is empty") && words.contains(&format!("[{first}")),
        "{words}"
    );
    assert!(context.query_gid(port, u8::MAX).is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn pkeys_match_sysfs() {
    let _test = begin!(iwarp lacks "pkeys");
    let context = context();
    let port = context.active_port().unwrap().unwrap();
    let pkey = context.query_pkey(port, 0).unwrap();
    assert_eq!(
        format!("{pkey:#06x}"),
        sysfs(&format!("ports/{port}/pkeys/0"))
    );
    assert_eq!(context.pkey_index(port, pkey), Some(0));
    assert!(context.query_pkey(port, u16::MAX).is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn unknown_port_error_has_the_number_of_ports() {
    let _test = begin!();
    let context = context();
    let ports = *context.ports().unwrap().end();
    for port in [0, ports + 1, 255] {
        let error = context.query_port(port).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_says(&error, &format!("has ports 1 to {ports}"));
        assert_eq!(
            context.gid_table(port).unwrap_err().to_string(),
            error.to_string()
        );
    }
}
