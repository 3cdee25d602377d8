//! Queue pairs: defaults, limits, and paths.

use verbs_core::codes::{LinkLayer, QpState};
use verbs_core::error::ErrorKind;
use verbs_core::{
    AccessFlags, CompletionQueue, Error, MaximumTransferUnit, ReceiveWorkRequest, SendWorkRequest,
};
use verbs_harness::pair::{Pair, Side, works};
use verbs_harness::{assert_says, begin};

#[test]
#[ignore = "needs an RDMA device"]
fn defaults_are_as_documented() {
    let _test = begin!(iwarp lacks "the states that this goes through");
    let side = Side::here();
    let device = side.context.query_device().unwrap();
    let prepared = side.builder().build().unwrap();
    assert_eq!(prepared.query().unwrap().qp_state(), QpState::INIT);
    let endpoint = prepared.endpoint();
    let port = side.context.query_port(endpoint.port_num()).unwrap();
    assert_eq!(
        Some(endpoint.port_num()),
        side.context.active_port().unwrap()
    );
    assert_eq!(Some(endpoint.path_mtu()), port.active_mtu());
    assert_eq!(endpoint.lid(), port.lid());
    if port.link_layer() == LinkLayer::ETHERNET {
        let gid = side
            .context
            .query_gid(endpoint.port_num(), endpoint.gid_index());
        assert_eq!(endpoint.gid(), Some(gid.unwrap().gid()));
        assert!(
            !endpoint.gid().unwrap().is_link_local(),
            "a routable one, if there is one"
        );
    }
    let qp = prepared.handshake(&endpoint).unwrap();
    let attr = qp.query().unwrap();
    assert_eq!(attr.qp_state(), QpState::RTS);
    assert_eq!(
        (attr.timeout(), attr.retry_cnt(), attr.rnr_retry()),
        (14, 6, 7)
    );
    assert_eq!(attr.min_rnr_timer(), 12);
    let depth = |max: u32| u8::try_from(max).unwrap_or(u8::MAX);
    let (ask, serve) = (
        depth(device.max_qp_init_rd_atom()),
        depth(device.max_qp_rd_atom()),
    );
    assert_eq!(
        (endpoint.max_rd_atomic(), endpoint.max_dest_rd_atomic()),
        (ask, serve)
    );
    assert!(
        attr.qp_access_flags()
            .contains(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE)
    );
    assert_eq!(
        (attr.dest_qp_num(), attr.port_num()),
        (qp.qp_num(), endpoint.port_num())
    );
    assert_eq!(
        (attr.sq_psn(), attr.rq_psn()),
        (endpoint.psn().get(), endpoint.psn().get())
    );
    assert_eq!(attr.path_mtu(), Some(endpoint.path_mtu()));
    assert_eq!(attr.pkey_index(), 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_gid_reaches_its_own_device() {
    let _test = begin!();
    let side = Side::here();
    let port_num = side.context.active_port().unwrap().unwrap();
    for gid in side.context.gid_table(port_num).unwrap() {
        let gid_index = gid.gid_index();
        let build = |side: &Side| side.builder().gid_index(gid_index).build().unwrap();
        let pair = Pair::between(Side::here(), Side::here(), build);
        works(&pair.a, &pair.b);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn capacity_above_the_limit_is_an_error_with_the_limit() {
    let _test = begin!();
    let side = Side::here();
    let device = side.context.query_device().unwrap();
    let build = || side.builder();
    let (wr, sge, cqe) = (device.max_qp_wr(), device.max_sge(), device.max_cqe());
    let depth = |max: u32| u8::try_from(max + 1).ok().map(|depth| (depth, max));
    let depths = [
        depth(device.max_qp_init_rd_atom())
            .map(|(depth, max)| (build().max_rd_atomic(depth).build(), "max_rd_atomic", max)),
        depth(device.max_qp_rd_atom()).map(|(depth, max)| {
            let built = build().max_dest_rd_atomic(depth).build();
            (built, "max_dest_rd_atomic", max)
        }),
    ];
    let refused = [
        (build().max_send_wr(wr + 1).build(), "max_send_wr", wr),
        (build().max_recv_wr(wr + 1).build(), "max_recv_wr", wr),
        (build().max_send_sge(sge + 1).build(), "max_send_sge", sge),
        (build().max_recv_sge(sge + 1).build(), "max_recv_sge", sge),
    ];
    let refused = refused.into_iter().chain(depths.into_iter().flatten());
    let refused = refused.map(|(built, what, max)| (built.map(drop), what, max));
    let cq = CompletionQueue::create(&side.context, cqe + 1).map(drop);
    let resized = side.recv_cq.resize(cqe + 1);
    for (refused, what, max) in refused.chain([(cq, "cqe", cqe), (resized, "cqe", cqe)]) {
        let error = refused.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{what} {} exceeds this device's {max}", max + 1)
        );
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
    let error = build().max_inline_data(1 << 30).build().unwrap_err();
    assert_says(&error, "max_inline_data 1073741824 exceeds");
    let mtu = build().path_mtu(MaximumTransferUnit::Mtu4096).build();
    let active = side
        .context
        .query_port(side.context.active_port().unwrap().unwrap());
    match (mtu, active.unwrap().active_mtu()) {
        (built, Some(MaximumTransferUnit::Mtu4096)) => drop(built.unwrap()),
        (built, _) => assert!(built.unwrap_err().to_string().starts_with("path_mtu 4096")),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn empty_gid_index_and_unknown_port_are_errors() {
    let _test = begin!();
    let side = Side::here();
    let build = || side.builder();
    let error = build().gid_index(255).build().unwrap_err();
    assert!(
        matches!(error, Error::EmptyGid { index: 255, .. }),
        "{error}"
    );
    let error = build().port_num(200).build().unwrap_err();
    assert!(
        matches!(error, Error::UnknownPort { port: 200, .. }),
        "{error}"
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_request_is_signalled_if_that_was_asked_for() {
    let _test = begin!(iwarp lacks "receives without an element");
    let pair = Pair::of(|side| side.builder().sq_sig_all(true).build().unwrap());
    pair.b.receive(ReceiveWorkRequest::empty());
    pair.a
        .post_one(SendWorkRequest::empty().unsignaled().wr_id(5));
    assert_eq!(pair.a.sent().wr_id(), 5);
}
