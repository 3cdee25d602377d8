//! Transitions of a queue pair: the attributes that C gets, and the errors.

use fake_libibverbs::{Port, connected, ladder, prepared, with};
use verbs_core::{
    AckTimeout, Error, ErrorKind, Gid, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit,
    MinRnrTimer, PacketSequenceNumber, QpAttr, QpAttrMask, QpState, QueuePair, QueuePairEndpoint,
};

#[test]
fn rejected_transition_names_missing_and_extra_attributes() {
    let qp = prepared();
    with(|library| library.closed_state = Some((2, libc::EINVAL)));
    let attr = QpAttr::new()
        .with_qp_state(QpState::RTR)
        .with_dest_qp_num(5)
        .with_timeout(AckTimeout::default());
    let error = qp.modify(&attr).unwrap_err();
    let Error::Transition {
        from,
        to,
        missing,
        extra,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*from, *to), (QpState::INIT, QpState::RTR));
    assert_eq!(*extra, QpAttrMask::TIMEOUT);
    let needs = QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    assert_eq!(*missing, needs);
    let words = error.to_string();
    assert!(
        words.starts_with("IBV_QPS_INIT to IBV_QPS_RTR was refused: missing IBV_QP_AV"),
        "{words}"
    );
    assert!(words.ends_with("not allowed IBV_QP_TIMEOUT"), "{words}");
}

#[test]
fn transition_that_does_not_exist_is_reported_as_such() {
    let qp = connected();
    with(|library| library.closed_state = Some((1, libc::EINVAL)));
    let error = qp
        .modify(&QpAttr::new().with_qp_state(QpState::INIT))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("there is no such change of state"),
        "{error}"
    );
}

#[test]
fn wrong_value_is_not_reported_as_a_wrong_attribute_set() {
    let qp = connected();
    with(|library| library.refuse.push(("ibv_modify_qp", libc::EINVAL)));
    let error = qp
        .modify(&QpAttr::new().with_min_rnr_timer(MinRnrTimer::MAX))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the attribute set is valid, so one of the values was rejected"),
        "{error}"
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
        assert!(
            error
                .to_string()
                .starts_with("GID ::ffff:10.0.0.1 is no longer in the table of port 1"),
            "{error}"
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
fn defaults_are_as_documented() {
    let (_, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let endpoint = qp.endpoint();
    drop(qp.handshake(&endpoint).unwrap());
    let modified = with(|library| std::mem::take(&mut library.modified));
    let (init, rtr, rts) = (modified[1].0, modified[2].0, modified[3].0);
    // Everything the device can do: local write, remote write, read and atomics.
    assert_eq!(init.qp_access_flags, 0b1111);
    assert_eq!(
        (rtr.min_rnr_timer, rtr.max_dest_rd_atomic, rtr.path_mtu.0),
        (12, 16, 3)
    );
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (14, 6, 7));
    assert_eq!((rts.max_rd_atomic, rtr.ah_attr.grh.hop_limit), (8, 64));
}

#[test]
fn endpoints_agree_on_the_smaller_limits() {
    let mine = prepared();
    let psn = PacketSequenceNumber::new(9).unwrap();
    let theirs = QueuePairEndpoint::builder(0x77, psn)
        .gid(Gid::new([3; 16]))
        .path_mtu(MaximumTransferUnit::Mtu256)
        .max_rd_atomic(1)
        .max_dest_rd_atomic(2)
        .build()
        .unwrap();
    with(|library| library.modified.clear());
    let qp = mine.handshake(&theirs).unwrap();
    let modified = with(|library| std::mem::take(&mut library.modified));
    let (rtr, rts) = (modified[0].0, modified[1].0);
    assert_eq!((rtr.path_mtu.0, rtr.dest_qp_num, rtr.rq_psn), (1, 0x77, 9));
    assert_eq!(rts.max_rd_atomic, 2, "no more than the peer serves");
    assert_eq!(qp.remote_endpoint(), &theirs);
}

#[test]
fn reset_prepares_again_with_another_packet_number() {
    let qp = connected();
    let (number, before) = (qp.qp_num(), *qp.endpoint());
    let mut numbers = vec![before.psn()];
    let mut qp = qp;
    for _ in 0..4 {
        with(|library| library.modified.clear());
        let prepared = qp.reset().unwrap();
        let states: Vec<_> = with(|library| {
            library
                .modified
                .iter()
                .map(|(attr, _)| attr.qp_state.0)
                .collect()
        });
        assert_eq!(states, [0, 1]);
        assert_eq!(prepared.qp_num(), number);
        let endpoint = prepared.endpoint();
        numbers.push(endpoint.psn());
        qp = prepared.handshake(&endpoint).unwrap();
    }
    assert!(numbers.iter().any(|psn| *psn != numbers[0]), "{numbers:?}");
    qp.to_error().unwrap();
    assert_eq!(qp.query().unwrap().qp_state(), QpState::ERR);
}

#[test]
fn query_reports_whether_the_send_queue_drains() {
    let qp = connected();
    for is_draining in [true, false] {
        with(|library| library.sq_draining = is_draining);
        assert_eq!(qp.query().unwrap().sq_draining(), is_draining);
    }
}
