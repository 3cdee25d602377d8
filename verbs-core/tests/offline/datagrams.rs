//! Datagrams (UD): what C gets, and what is made of its answers.

use fake_libibverbs::{Port, Posted, assert_all_is_well, ladder, with};
use verbs_core::codes::{Gid, QpState};
use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::{EndpointError, ErrorKind};
use verbs_core::memory::Sge;
use verbs_core::path::{AhAttr, DatagramEndpoint, QKey};
use verbs_core::queue_pair::QpAttr;
use verbs_core::verbs_sys::{IBV_WC_GRH, IBV_WC_RECV, IBV_WC_SEND, ibv_wc};
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{Error, MaximumTransferUnit, PollSlot, ReceiveWorkRequest, WorkSuccess};
use verbs_harness::assert_says;

fn built() -> DatagramQueuePair {
    let (_, pd, cq) = ladder();
    let builder = DatagramQueuePair::builder(&pd, &cq, &cq);
    builder.max_inline_data(64).max_send_sge(2).build().unwrap()
}

fn posted() -> Vec<Vec<Posted>> {
    with(|library| std::mem::take(&mut library.posted))
}

fn key(qkey: u32) -> QKey {
    QKey::new(qkey).unwrap()
}

/// A completion that a poll returns.
fn polled(qp: &DatagramQueuePair, wc: ibv_wc) -> WorkSuccess {
    with(|library| library.done.push_back(wc));
    let mut slots = [const { PollSlot::new() }; 1];
    let completions = qp.recv_cq().poll(&mut slots).unwrap();
    completions[0].result().unwrap()
}

#[test]
fn keys_are_random_and_never_have_the_top_bit() {
    let keys: Vec<_> = (0..40).map(|_| built().qkey().get()).collect();
    assert!(keys.iter().all(|qkey| *qkey <= 0x7fff_ffff), "{keys:?}");
    assert!(keys.iter().any(|qkey| *qkey != keys[0]), "{keys:?}");
    let error = QKey::new(0x8000_0001).unwrap_err();
    assert_eq!(
        error.to_string(),
        "qkey 2147483649 is out of range: 0 to 2147483647 are possible"
    );
}

#[test]
fn endpoint_has_what_a_sender_needs() {
    let qp = built();
    let endpoint = qp.endpoint();
    assert_eq!(endpoint.qp_num(), qp.qp_num());
    assert_eq!(endpoint.qkey(), qp.qkey());
    assert_eq!(endpoint.gid().unwrap().to_string(), "::ffff:10.0.0.1");
    assert_eq!(endpoint.mtu(), MaximumTransferUnit::Mtu1024);
    assert_eq!(qp.max_payload(), 1024);
    let bytes = endpoint.to_bytes();
    assert_eq!(DatagramEndpoint::from_bytes(&bytes), Ok(endpoint));
}

#[test]
fn path_has_each_setting() {
    let (_, pd, cq) = ladder();
    let qp = DatagramQueuePair::builder(&pd, &cq, &cq)
        .gid_index(0)
        .sl(7)
        .src_path_bits(8)
        .static_rate(9)
        .traffic_class(10)
        .flow_label(11)
        .hop_limit(12)
        .build()
        .unwrap();
    let ah = qp.address_handle(&qp.endpoint()).unwrap();
    let path = with(|library| library.paths.pop()).unwrap();
    assert_eq!(
        (path.is_global, path.port_num, path.sl, path.src_path_bits),
        (1, 1, 7, 8)
    );
    let grh = path.grh;
    assert_eq!((path.static_rate, grh.sgid_index), (9, 0));
    assert_eq!(
        (grh.traffic_class, grh.flow_label, grh.hop_limit),
        (10, 11, 12)
    );
    assert_eq!(ah.attr().as_raw().port_num, 1);
    drop((qp, pd, cq));
    assert!(ah.close().is_ok());
    assert_all_is_well();
}

#[test]
fn address_must_be_of_the_ports_kind() {
    let qp = built();
    let lid = DatagramEndpoint::builder(9, key(1)).lid(3).build().unwrap();
    let error = qp.address_handle(&lid).unwrap_err();
    assert!(matches!(error, Error::Endpoint(EndpointError::NoGid)));
    with(|library| library.ports = vec![Port::infiniband(5)]);
    let qp = built();
    assert_eq!((qp.endpoint().lid(), qp.endpoint().gid()), (5, None));
    qp.address_handle(&lid).unwrap();
    let path = with(|library| library.paths.pop()).unwrap();
    assert_eq!((path.is_global, path.dlid), (0, 3));
    let gid = DatagramEndpoint::builder(9, key(1)).gid(Gid::new([1; 16]));
    let error = qp.address_handle(&gid.build().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Endpoint(EndpointError::NoLid)));
}

#[test]
fn unreachable_peer_is_named() {
    let qp = built();
    let peer = DatagramEndpoint::builder(9, key(1))
        .gid("::ffff:10.0.0.9".parse::<Gid>().unwrap())
        .build()
        .unwrap();
    for errno in [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH] {
        with(|library| library.refuse.push(("ibv_create_ah", errno)));
        let error = qp.address_handle(&peer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no path from this side's GID ::ffff:10.0.0.1 (index 1) to the peer's GID \
             ::ffff:10.0.0.9"
        );
        assert_eq!(error.errno(), Some(errno));
    }
    with(|library| library.refuse.push(("ibv_create_ah", libc::ENOMEM)));
    let error = qp.address_handle(&peer).unwrap_err();
    assert_eq!(error.to_string(), "ibv_create_ah failed");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
}

#[test]
fn address_handle_of_a_port_that_does_not_exist_has_that_error() {
    let qp = built();
    // Some providers give no reason.
    with(|library| library.refuse.push(("ibv_create_ah", 0)));
    let error = qp.pd().create_ah(&AhAttr::new(9)).unwrap_err();
    assert!(
        matches!(error, Error::UnknownPort { port: 9, .. }),
        "{error}"
    );
}

#[test]
fn datagram_beyond_the_mtu_is_rejected_before_the_driver_sees_it() {
    let qp = built();
    let ah = qp.address_handle(&qp.endpoint()).unwrap();
    let peer = qp.endpoint();
    let (mut fits, mut two) = (
        [Sge::new(0x1000, 1024, 1)],
        [Sge::new(0x1000, 1024, 1), Sge::new(0x3000, 1, 1)],
    );
    let mut never = [Sge::new(0x1000, 1, 1)];
    let mut chain = [
        DatagramWorkRequest::to(&mut fits, &ah, &peer).wr_id(1),
        DatagramWorkRequest::to(&mut two, &ah, &peer).wr_id(2),
        DatagramWorkRequest::to(&mut never, &ah, &peer).wr_id(3),
    ];
    // SAFETY: the library touches no buffer of another's key.
    let error = unsafe { qp.post_send(&mut chain) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "ibv_post_send rejected request 2 of the chain: 1025 bytes exceed the 1024 bytes of one \
         packet, which is all that a datagram has"
    );
    assert_eq!((error.posted(), error.is_full()), (1, false));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let posted = posted();
    assert_eq!(posted.len(), 1);
    assert_eq!(posted[0].len(), 1);
    assert_eq!(posted[0][0].wr_id, 1);
    // Elements of 2 GiB wrap a driver's 32 bits: the sum is taken in 64.
    let mut huge = [Sge::new(0, 1 << 31, 1), Sge::new(0, 1 << 31, 1)];
    let mut request = DatagramWorkRequest::to(&mut huge, &ah, &peer);
    // SAFETY: the library touches no buffer of another's key.
    assert!(unsafe { qp.post_send(&mut request) }.is_err());
    // A driver that refuses one before is reported instead.
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    // SAFETY: the library touches no buffer of another's key.
    let error = unsafe { qp.post_send(&mut chain) }.unwrap_err();
    assert!(error.is_full());
    assert_eq!(error.posted(), 0);
}

#[test]
fn received_datagram_is_behind_its_header() {
    let qp = built();
    let mut bytes = vec![0; Grh::LEN + 10];
    bytes[Grh::LEN..].copy_from_slice(b"hello.....");
    // An IPv4 header without its checksum, as soft-RoCE makes it.
    bytes[20] = 0x45;
    bytes[32..36].copy_from_slice(&[10, 0, 0, 9]);
    bytes[36..40].copy_from_slice(&[10, 0, 0, 1]);
    let wc = ibv_wc {
        opcode: IBV_WC_RECV,
        byte_len: 45,
        src_qp: 0x77,
        wc_flags: IBV_WC_GRH.0,
        slid: 3,
        ..Default::default()
    };
    let received = polled(&qp, wc);
    assert_eq!(received.datagram_in(&bytes), Some(&b"hello"[..]));
    assert_eq!(received.datagram_in(&bytes[..44]), None, "not its bytes");
    assert_eq!((received.src_qp(), received.slid()), (0x77, 3));
    let grh = received.grh_in(&bytes).unwrap();
    assert_eq!(grh.sgid().to_string(), "::ffff:10.0.0.9");
    // A header that is shorter than its 40 bytes, and none at all.
    let odd = polled(&qp, ibv_wc { byte_len: 39, ..wc });
    assert_eq!(odd.datagram_in(&bytes), None);
    let none = polled(&qp, ibv_wc { wc_flags: 0, ..wc });
    assert_eq!(none.grh_in(&bytes), None);
    // A send's own completion has neither.
    let sent = ibv_wc {
        opcode: IBV_WC_SEND,
        ..wc
    };
    let sent = polled(&qp, sent);
    assert_eq!(
        (sent.datagram_in(&bytes), sent.grh_in(&bytes)),
        (None, None)
    );
}

#[test]
fn attachment_ends_before_its_queue_pair() {
    let group: Gid = "ff0e::ffff:e001:203".parse().unwrap();
    let qp = built();
    let attachment = qp.attach_mcast(group, 0).unwrap();
    assert_eq!(attachment.gid(), group);
    assert_eq!(with(|library| library.attached.len()), 1);
    attachment.detach().unwrap();
    assert_eq!(with(|library| library.attached.len()), 0);
    drop(qp.attach_mcast(group, 0).unwrap());
    assert_eq!(with(|library| library.attached.len()), 0);
    with(|library| library.refuse.push(("ibv_attach_mcast", libc::EINVAL)));
    assert!(qp.attach_mcast(group, 0).is_err());
    // One that is kept ends with the queue pair, or by its name.
    let kept = || {
        let qp = built();
        qp.attach_mcast(group, 0).unwrap().keep();
        qp.attach_mcast(group, 7).unwrap().keep();
        qp
    };
    kept().close().unwrap();
    drop(kept());
    assert_eq!(with(|library| library.attached.len()), 0);
    let two = kept();
    two.detach_mcast(group, 7).unwrap();
    assert_eq!(with(|library| library.attached.len()), 1);
    let error = two.detach_mcast(group, 7).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
    // It is attached after the driver has refused, too, and detached when the queue pair ends.
    with(|library| library.refuse.push(("ibv_detach_mcast", libc::EIO)));
    let error = two.detach_mcast(group, 0).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO));
    two.close().unwrap();
    // Several to one group are one to the device, until the last of them has ended.
    let (first, second) = (
        qp.attach_mcast(group, 0).unwrap(),
        qp.attach_mcast(group, 0).unwrap(),
    );
    first.keep();
    assert_eq!(with(|library| library.attached.len()), 1);
    drop(second);
    assert_eq!(with(|library| library.attached.len()), 1);
    let third = qp.attach_mcast(group, 0).unwrap();
    qp.detach_mcast(group, 0).unwrap();
    assert_eq!(with(|library| library.attached.len()), 1);
    third.detach().unwrap();
    assert_eq!(with(|library| library.attached.len()), 0);
    // One that was leaked ends with the queue pair.
    #[expect(clippy::mem_forget, reason = "what is under test")]
    std::mem::forget(qp.attach_mcast(group, 0).unwrap());
    qp.close().unwrap();
    // A driver that refuses to detach it refuses to destroy the queue pair.
    let qp = built();
    qp.attach_mcast(group, 0).unwrap().keep();
    with(|library| library.refuse.push(("ibv_detach_mcast", libc::EIO)));
    assert_eq!(qp.close().unwrap_err().kind(), ErrorKind::InUse);
}

#[test]
fn queue_pair_that_has_failed_starts_again() {
    let qp = built();
    let number = qp.qp_num();
    let mut list = [Sge::new(0x1000, 8, 1)];
    // SAFETY: the library touches no buffer of another's key.
    unsafe { qp.post_receive(&mut ReceiveWorkRequest::new(&mut list).wr_id(9)) }.unwrap();
    qp.to_error().unwrap();
    assert_eq!(qp.query().unwrap().qp_state(), QpState::ERR);
    let (qkey, endpoint) = (qp.qkey(), qp.endpoint());
    let qp = qp.reset().unwrap();
    assert!(!fake_libibverbs::is_in_flight(9));
    assert_eq!(qp.query().unwrap().qp_state(), QpState::RTS);
    assert_eq!((qp.qp_num(), qp.qkey()), (number, qkey));
    assert_eq!(qp.endpoint(), endpoint);
    with(|library| library.refuse.push(("ibv_modify_qp", libc::EIO)));
    let qp = qp.reset().unwrap_err().into_given();
    drop(qp);
    assert_all_is_well();
}

#[test]
fn rejected_change_of_state_names_the_attributes_of_datagrams() {
    let qp = built();
    with(|library| library.refuse.push(("ibv_modify_qp", libc::EINVAL)));
    let attr = QpAttr::new()
        .with_qp_state(QpState::RTS)
        .with_dest_qp_num(4);
    let error = qp.modify(&attr).unwrap_err();
    assert_says(&error, "not allowed IBV_QP_DEST_QPN");
}

#[test]
fn impossible_settings_are_rejected_before_c_is_called() {
    let (_, pd, cq) = ladder();
    let (_, _, foreign) = ladder();
    let builder = DatagramQueuePair::builder(&pd, &cq, &cq);
    let error = |config: verbs_core::datagram::DatagramQueuePairConfig| config.build().unwrap_err();
    assert_eq!(
        error(builder.clone().sl(16).config()).kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        error(builder.clone().max_send_wr(5000).config()).kind(),
        ErrorKind::Limit
    );
    for (send_cq, recv_cq) in [(&cq, &foreign), (&foreign, &cq)] {
        let error = error(DatagramQueuePair::builder(&pd, send_cq, recv_cq).config());
        assert!(matches!(error, Error::ForeignContext { .. }), "{error}");
    }
    assert!(matches!(
        error(builder.clone().max_inline_data(513).config()),
        Error::Limit {
            what: "max_inline_data",
            ..
        }
    ));
    assert!(with(|library| library.modified.is_empty()));
    with(|library| library.refuse.push(("ibv_modify_qp", libc::EIO)));
    assert_eq!(error(builder.config()).to_string(), "ibv_modify_qp failed");
    drop((pd, cq, foreign));
    assert_all_is_well();
}
