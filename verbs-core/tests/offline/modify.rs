//! Transitions of a queue pair: the attributes that C gets, and the errors.

use fake_libibverbs::{Port, connected, ladder, prepared, with};
use verbs_core::codes::{Gid, QpAttrMask};
use verbs_core::error::ErrorKind;
use verbs_core::queue_pair::QpAttr;
use verbs_core::verbs_sys::IBV_TRANSPORT_IWARP;
use verbs_core::{
    AckTimeout, Error, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit, MinRnrTimer,
    PacketSequenceNumber, PreparedQueuePair, QueuePair, QueuePairEndpoint,
};
use verbs_harness::assert_says;

#[test]
fn wrong_value_is_not_reported_as_a_wrong_attribute_set() {
    let qp = connected();
    with(|library| library.refuse.push(("ibv_modify_qp", libc::EINVAL)));
    let error = qp
        .modify(&QpAttr::new().with_min_rnr_timer(MinRnrTimer::MAX))
        .unwrap_err();
    assert_says(
        &error,
        "the attribute set is valid, so one of the values was rejected",
    );
    with(|library| library.refuse.push(("ibv_modify_qp", libc::ENOMEM)));
    let error = qp
        .modify(&QpAttr::new().with_min_rnr_timer(MinRnrTimer::MAX))
        .unwrap_err();
    assert_eq!(error.to_string(), "ibv_modify_qp failed");
}

#[test]
fn a_handshake_without_a_path_names_both_gids() {
    let cases = [
        (
            libc::EINVAL,
            "the attribute set is valid, so one of the values was rejected: check that there is a path",
        ),
        (libc::ETIMEDOUT, "there is no path"),
        (libc::ENETUNREACH, "there is no path"),
        (libc::EHOSTUNREACH, "there is no path"),
    ];
    for (errno, why) in cases {
        let qp = prepared();
        let remote = QueuePairEndpoint::builder(5, PacketSequenceNumber::MAX)
            .gid("::ffff:10.0.0.9".parse::<Gid>().unwrap())
            .build()
            .unwrap();
        with(|library| library.closed_state = Some((2, errno)));
        let refused = qp.handshake(&remote).unwrap_err();
        let error = refused.error();
        assert_eq!(
            error.to_string(),
            format!(
                "IBV_QPS_INIT to IBV_QPS_RTR was refused: {why} from this side's GID \
                 ::ffff:10.0.0.1 (index 1) to the peer's GID ::ffff:10.0.0.9"
            )
        );
        assert_eq!(error.errno(), Some(errno));
        assert_eq!(
            error.kind() == ErrorKind::InvalidInput,
            errno == libc::EINVAL
        );
        // This side's address may be what went away.
        with(|library| library.ports[0].gids.clear());
        let error = refused.into_given().handshake(&remote).unwrap_err();
        assert_says(
            &error,
            "GID ::ffff:10.0.0.1 is no longer in the table of port 1",
        );
        with(|library| library.ports[0] = Port::roce(&["fe80::1", "::ffff:10.0.0.1"]));
    }
    // Trouble of another kind is not blamed on the path.
    let qp = prepared();
    let endpoint = qp.endpoint();
    with(|library| library.closed_state = Some((2, libc::ENOMEM)));
    let error = qp.handshake(&endpoint).unwrap_err();
    assert_eq!(error.to_string(), "ibv_modify_qp failed");
}

/// A device with this much for the reads and atomics that all of its queue pairs serve together.
fn shared_by_all(max_res_rd_atom: i32) {
    with(|library| {
        library.attr.max_qp = 1000;
        library.attr.max_res_rd_atom = max_res_rd_atom;
    });
}

/// Connects a queue pair to a peer with this `max_rd_atomic`; returns how many it serves.
fn served(qp: PreparedQueuePair, max_rd_atomic: u8) -> Result<(u8, QueuePair), Error> {
    let remote = QueuePairEndpoint::builder(5, PacketSequenceNumber::MAX)
        .gid("::ffff:10.0.0.9".parse::<Gid>().unwrap())
        .max_rd_atomic(max_rd_atomic)
        .build()
        .unwrap();
    let qp = qp.handshake(&remote).map_err(Error::from)?;
    Ok((qp.endpoint().max_dest_rd_atomic(), qp))
}

#[test]
fn a_queue_pair_takes_what_is_left_of_what_all_share_for_reads() {
    shared_by_all(16 + 8 + 5);
    let (first, _first) = served(prepared(), 8).unwrap();
    // No less than its peer uses, and no more.
    let (second, _second) = served(prepared(), 8).unwrap();
    let (third, _third) = served(prepared(), 8).unwrap();
    let (fourth, fourth_qp) = served(prepared(), 8).unwrap();
    assert_eq!([first, second, third, fourth], [16, 8, 4, 1]);
    // A peer without reads needs none.
    assert_eq!(served(prepared(), 0).unwrap().0, 0);
    let error = served(prepared(), 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "IBV_QPS_INIT to IBV_QPS_RTR was refused: max_dest_rd_atomic 16 exceeds what is left of this device's \
         max_res_rd_atom 29, which all its queue pairs share: build this one and others with a smaller \
         max_dest_rd_atomic"
    );
    assert_eq!(error.errno(), Some(libc::EINVAL));
    drop(fourth_qp);
    assert_eq!(served(prepared(), 8).unwrap().0, 1);
}

#[test]
fn a_depth_that_was_set_is_used_or_named() {
    shared_by_all(20);
    let (_, pd, cq) = ladder();
    let build = |depth| {
        let builder = QueuePair::builder(&pd, &cq, &cq).max_dest_rd_atomic(depth);
        builder.build().unwrap()
    };
    let (set, _first) = served(build(15), 1).unwrap();
    assert_eq!(set, 15);
    let error = served(build(6), 1).unwrap_err();
    let words = "max_dest_rd_atomic 6 exceeds what is left of this device's max_res_rd_atom 20";
    assert_says(&error, words);
    assert_eq!(served(build(5), 8).unwrap().0, 5);
}

#[test]
fn a_rejection_for_another_reason_is_not_blamed_on_the_depth() {
    shared_by_all(1000);
    with(|library| library.closed_state = Some((2, libc::EINVAL)));
    let refused = prepared();
    let error = served(refused, 8).unwrap_err();
    assert_says(&error, "check that there is a path");
    assert!(!error.to_string().contains("max_res_rd_atom"), "{error}");
}

#[test]
fn a_rejected_value_is_named_if_it_can_be_found() {
    let rejected = |remote: &str, settings: fn(&mut Port)| {
        with(|library| library.ports = vec![Port::roce(&["fe80::1", "::ffff:10.0.0.1"])]);
        let qp = prepared();
        with(|library| {
            library.closed_state = Some((2, libc::EINVAL));
            settings(&mut library.ports[0]);
        });
        let remote = QueuePairEndpoint::builder(5, PacketSequenceNumber::MAX)
            .gid(remote.parse::<Gid>().unwrap())
            .build()
            .unwrap();
        let error = qp.handshake(&remote).unwrap_err();
        with(|library| library.closed_state = None);
        error.to_string()
    };
    type Case = (&'static str, &'static str, fn(&mut Port));
    let cases: [Case; 3] = [
        (
            "this side's GID ::ffff:10.0.0.1 is of IPv4, and the peer's GID 2001:db8::9 of IPv6: give this side an \
             address of IPv6, or the peer one of IPv4",
            "2001:db8::9",
            |port| port.gids.truncate(2),
        ),
        (
            "port 1 is in IBV_PORT_DOWN, not in IBV_PORT_ACTIVE",
            "::ffff:10.0.0.9",
            |port| port.attr.state.0 = 1,
        ),
        (
            "path_mtu 1024 exceeds this device's active MTU 512",
            "::ffff:10.0.0.9",
            |port| port.attr.active_mtu.0 = 2,
        ),
    ];
    for (words, remote, settings) in cases {
        let text = rejected(remote, settings);
        let head = "IBV_QPS_INIT to IBV_QPS_RTR was refused: ";
        assert_eq!(text, format!("{head}{words}"));
    }
}

#[test]
fn every_setting_reaches_c() {
    let (_, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq)
        .port_num(1)
        .gid_index(0)
        .pkey_index(1)
        .qp_access_flags(verbs_core::AccessFlags::REMOTE_READ)
        .path_mtu(MaximumTransferUnit::Mtu512)
        .sq_psn(PacketSequenceNumber::new(77).unwrap())
        .max_rd_atomic(3)
        .max_dest_rd_atomic(4)
        .min_rnr_timer(MinRnrTimer::new(5).unwrap())
        .timeout(AckTimeout::new(6).unwrap())
        .retry_cnt(MaxAckRetries::new(2).unwrap())
        .rnr_retry(MaxRnrRetries::new(1).unwrap())
        .sl(7)
        .src_path_bits(8)
        .static_rate(9)
        .traffic_class(10)
        .flow_label(11)
        .hop_limit(12)
        .build()
        .unwrap();
    let endpoint = qp.endpoint();
    let (psn, mtu) = (endpoint.psn().get(), endpoint.path_mtu());
    assert_eq!(
        (psn, mtu, endpoint.gid_index()),
        (77, MaximumTransferUnit::Mtu512, 0)
    );
    let qp = qp.handshake(&endpoint).unwrap();
    let modified = with(|library| std::mem::take(&mut library.modified));
    let [(reset, _), (init, _), (rtr, rtr_mask), (rts, _)] = modified[..] else {
        panic!("{} changes", modified.len());
    };
    assert_eq!((reset.qp_state.0, init.qp_state.0), (0, 1));
    assert_eq!(
        (init.port_num, init.pkey_index, init.qp_access_flags),
        (1, 1, 4)
    );
    assert_eq!(
        (rtr.path_mtu.0, rtr.dest_qp_num, rtr.rq_psn),
        (2, qp.qp_num(), 77)
    );
    assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer), (4, 5));
    assert_eq!(rtr_mask & QpAttrMask::TIMEOUT.bits(), 0);
    let av = rtr.ah_attr;
    assert_eq!(
        (
            av.is_global,
            av.port_num,
            av.sl,
            av.src_path_bits,
            av.static_rate
        ),
        (1, 1, 7, 8, 9)
    );
    assert_eq!((av.grh.sgid_index, av.grh.traffic_class), (0, 10));
    assert_eq!((av.grh.flow_label, av.grh.hop_limit), (11, 12));
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (6, 2, 1));
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (77, 3));
}

#[test]
fn queue_pair_of_iwarp_is_handed_back_by_a_handshake() {
    with(|library| library.transport = Some(IBV_TRANSPORT_IWARP));
    let prepared = prepared();
    let endpoint = prepared.endpoint();
    let before = with(|library| library.modified.len());
    let rejected = prepared.handshake(&endpoint).unwrap_err();
    let text = "fake0 is an iWARP device, which connects by rdma_cm only: switch on the feature `rdmacm`, \
                and connect over TCP or by rdma_cm in place of a handshake";
    assert_eq!(rejected.error().to_string(), text);
    assert_eq!(rejected.error().kind(), ErrorKind::Unsupported);
    assert_eq!(with(|library| library.modified.len()), before);
    assert_eq!(rejected.into_given().endpoint(), endpoint);
}
