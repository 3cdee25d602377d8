//! Datagram endpoints: what they post and keep, and how they end.

use std::time::Duration;

use fake_libibverbs::{Port, assert_all_is_well, deliver, is_posted, with};
use verbs_channel::__private::DatagramEngine;
use verbs_channel::datagrams::DatagramsConfig;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::codes::Gid;
use verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_channel::verbs_core::verbs_sys::{
    __be32, IBV_WC_GRH, IBV_WC_RECV, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, ibv_wc,
};
use verbs_channel::verbs_core::{MaximumTransferUnit, ProtectionDomain};
use verbs_channel::{
    BufferPool, Datagrams, DownReason, Error, OwnedBuffer, RejectReason, TransportError,
};

use crate::fake_device::{bounded, called, count, forget_the_past, pd, posted, refuse, succeeds};

const MTU: usize = 1024;
const HEADER: usize = 40;

pub(crate) fn builder(pd: &ProtectionDomain) -> DatagramsConfig {
    Datagrams::builder(pd)
        .max_send_wr(2)
        .max_recv_wr(3)
        .config()
}

pub(crate) fn endpoint() -> (ProtectionDomain, Datagrams) {
    let pd = pd();
    let datagrams = builder(&pd).build().unwrap();
    (pd, datagrams)
}

/// A peer with this address.
pub(crate) fn peer(last: u8) -> DatagramEndpoint {
    let gid = Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
    let qkey = QKey::new(0x70 + u32::from(last)).unwrap();
    DatagramEndpoint::builder(0x700 + u32::from(last), qkey)
        .gid(gid)
        .build()
        .unwrap()
}

pub(crate) fn buffer(pd: &ProtectionDomain, bytes: &[u8]) -> OwnedBuffer {
    pd.reg_mr(bytes.to_vec()).unwrap().into()
}

/// A datagram comes from the peer into this receive.
pub(crate) fn comes(wr_id: u64, from: &DatagramEndpoint, bytes: &[u8], immediate: Option<u32>) {
    // An IPv4 header, behind 20 bytes of anything.
    let mut message = vec![0x5a; HEADER];
    message[20] = 0x45;
    message[32..36].copy_from_slice(&from.gid().unwrap().raw()[12..]);
    message[36..40].copy_from_slice(&[10, 0, 0, 1]);
    message.extend_from_slice(bytes);
    assert!(deliver(wr_id, &message));
    let mut done = ibv_wc {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len: u32::try_from(message.len()).unwrap(),
        src_qp: from.qp_num(),
        wc_flags: IBV_WC_GRH.0,
        ..Default::default()
    };
    if let Some(immediate) = immediate {
        done.wc_flags |= IBV_WC_WITH_IMM.0;
        done.__bindgen_anon_1.imm_data = __be32(immediate.to_be());
    }
    with(|library| library.done.push_back(done));
}

pub(crate) fn refused(error: &Error) -> &RejectReason {
    match error {
        Error::Transport(TransportError::Rejected(reason)) => reason,
        error => panic!("{error}"),
    }
}

#[test]
fn sender_of_another_kind_is_taken_to_have_the_same_key() {
    let (_pd, mut datagrams) = endpoint();
    let receives = posted();
    // No immediate at all, and one that is no key.
    comes(receives[0], &peer(4), b"a", None);
    comes(receives[1], &peer(5), b"b", Some(0x8000_0000));
    for last in [4, 5] {
        let datagram = datagrams.receive_from(Duration::ZERO).unwrap().unwrap();
        assert_eq!(datagram.from().qkey(), datagrams.endpoint().qkey());
        assert_eq!(datagram.from().qp_num(), peer(last).qp_num());
    }
}

#[test]
fn datagram_that_lies_is_dropped_and_its_receive_posted_again() {
    let (_pd, mut datagrams) = endpoint();
    let receives = posted();
    forget_the_past();
    let of = |wr_id, byte_len, src_qp, wc_flags| ibv_wc {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len,
        src_qp,
        wc_flags,
        ..Default::default()
    };
    // Shorter than a header; longer than the buffer; from no address.
    let lies = [
        of(receives[0], 39, 7, 0),
        of(receives[1], 5000, 7, 0),
        of(receives[2], 60, 7, 0),
    ];
    with(|library| library.done.extend(lies));
    assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
    assert_eq!(posted().len(), 3, "all three are posted again");
    assert_eq!(datagrams.down_reason(), None);
}

#[test]
fn receives_follow_the_buffers_that_come_back() {
    let (_pd, mut datagrams) = endpoint();
    for wr_id in posted() {
        comes(wr_id, &peer(2), b"x", None);
    }
    forget_the_past();
    let taken: Vec<_> = (0..3)
        .map(|_| datagrams.receive_from(Duration::ZERO).unwrap().unwrap())
        .collect();
    assert!(posted().is_empty(), "all buffers are in use");
    for (count, datagram) in (1..).zip(taken) {
        drop(datagram);
        assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
        assert_eq!(posted().len(), count);
    }
    drop((datagrams, _pd));
    assert_all_is_well();
}

#[test]
fn longer_datagram_than_either_mtu_is_handed_back() {
    let (pd, mut datagrams) = endpoint();
    let long = buffer(&pd, &[1; MTU + 1]);
    let rejected = datagrams.send_to(&peer(1), long).unwrap_err();
    assert_eq!(
        rejected.error().to_string(),
        "a datagram of 1025 bytes exceeds the 1024 bytes of one packet: send it in parts"
    );
    let mut given = rejected.into_given();
    given.set_range(..300).unwrap();
    let small = DatagramEndpoint::builder(8, QKey::MAX)
        .gid(Gid::new([1; 16]))
        .mtu(MaximumTransferUnit::Mtu256)
        .build()
        .unwrap();
    let rejected = datagrams.send_to(&small, given).unwrap_err();
    let reason = RejectReason::DatagramTooLong { len: 300, max: 256 };
    assert_eq!(*refused(rejected.error()), reason);
    assert_eq!(datagrams.sends_in_flight(), 0);
    let mut given = rejected.into_given();
    given.set_range(..256).unwrap();
    datagrams.send_to(&small, given).unwrap();
}

#[test]
fn buffer_of_another_domain_is_handed_back() {
    let (_pd, mut datagrams) = endpoint();
    let foreign = buffer(&pd(), b"foreign");
    let rejected = datagrams.send_to(&peer(1), foreign).unwrap_err();
    assert_eq!(*refused(rejected.error()), RejectReason::OtherDomain);
    assert_eq!(&rejected.into_given()[..], b"foreign");
    assert!(!called("ibv_create_ah"));
}

#[test]
fn full_queue_is_backpressure_until_a_datagram_has_left() {
    let (pd, _) = endpoint();
    let mut config = builder(&pd);
    config.timeout = Some(Duration::from_millis(5));
    let mut datagrams = config.build().unwrap();
    forget_the_past();
    for _ in 0..2 {
        datagrams.send_to(&peer(1), buffer(&pd, b"full")).unwrap();
    }
    assert_eq!(datagrams.sends_in_flight(), 2);
    let rejected = datagrams
        .try_send_to(&peer(1), buffer(&pd, b"third"))
        .unwrap_err();
    assert!(rejected.error().is_backpressure());
    // It waits for its timeout, and returns the buffer.
    let rejected = bounded(|| datagrams.send_to(&peer(1), rejected.into_given())).unwrap_err();
    assert!(rejected.error().is_backpressure());
    assert!(!bounded(|| datagrams.flush(Some(Duration::from_millis(5)))));
    succeeds(posted()[0]);
    datagrams.send_to(&peer(1), rejected.into_given()).unwrap();
    assert_eq!(datagrams.sends_in_flight(), 2);
    for wr_id in &posted()[1..] {
        succeeds(*wr_id);
    }
    assert!(bounded(|| datagrams.flush(None)));
    assert_eq!(datagrams.sends_in_flight(), 0);
}

#[test]
fn endpoint_without_room_is_an_error_at_once_and_no_wait() {
    let pd = pd();
    let no_room = |error: Error, queue| {
        assert_eq!(*refused(&error), RejectReason::NoCapacity(queue));
        assert!(!error.is_backpressure());
    };
    let mut receiver = Datagrams::builder(&pd).max_send_wr(0).build().unwrap();
    let rejected = bounded(|| receiver.send_to(&peer(1), buffer(&pd, b"never"))).unwrap_err();
    assert_eq!(
        rejected.error().to_string(),
        "max_send_wr is 0, so the send queue never takes a request: build it with room"
    );
    let (error, buffer_back) = rejected.into_parts();
    assert_eq!(&buffer_back[..], b"never");
    no_room(error, Queue::Send);
    let rejected = receiver.try_send_to(&peer(1), buffer_back).unwrap_err();
    no_room(rejected.into_error(), Queue::Send);
    // It receives.
    comes(posted()[0], &peer(2), b"x", None);
    assert!(bounded(|| receiver.receive_from(None)).unwrap().is_some());
    let mut sender = Datagrams::builder(&pd).max_recv_wr(0).build().unwrap();
    for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(3600))] {
        let error = bounded(|| sender.receive_from(timeout)).unwrap_err();
        no_room(error, Queue::Receive);
    }
    // It sends.
    sender.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
    drop((receiver, sender, pd));
    assert_all_is_well();
}

#[test]
fn one_handle_is_made_for_each_port_and_the_oldest_goes() {
    let pd = pd();
    let mut datagrams = Datagrams::builder(&pd).max_handles(2).build().unwrap();
    let [made, ended] = ["ibv_create_ah", "ibv_destroy_ah"].map(|verb| move || count(verb));
    forget_the_past();
    let mut send = |last| {
        datagrams.send_to(&peer(last), buffer(&pd, b"x")).unwrap();
    };
    send(1);
    send(2);
    send(1);
    // Another queue pair of the same port.
    assert_eq!((made(), ended()), (2, 0));
    send(3);
    // A datagram in flight needs the handle that it evicts.
    assert_eq!((made(), ended()), (3, 0));
    send(1);
    assert_eq!(made(), 3, "it was the other that went");
    for wr_id in posted() {
        succeeds(wr_id);
    }
    assert!(datagrams.flush(None));
    assert_eq!(ended(), 1);
    datagrams.forget(&peer(1));
    assert_eq!(ended(), 2);
    datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
    assert_eq!(made(), 4);
    // No memory is taken for handles that are not made.
    let all = Datagrams::builder(&pd).max_handles(u32::MAX).build();
    drop((datagrams, all.unwrap(), pd));
    assert_all_is_well();
}

#[test]
fn post_that_was_refused_hands_the_buffer_back() {
    let (pd, mut datagrams) = endpoint();
    with(|library| library.refuse_post = Some((0, libc::EINVAL, true)));
    let rejected = datagrams.send_to(&peer(1), buffer(&pd, b"no")).unwrap_err();
    assert!(matches!(refused(rejected.error()), RejectReason::Post(_)));
    assert_eq!(datagrams.sends_in_flight(), 0);
    assert_eq!(datagrams.down_reason(), None);
    datagrams.send_to(&peer(1), rejected.into_given()).unwrap();
}

#[test]
fn received_datagram_outlives_its_endpoint() {
    let (pd, mut datagrams) = endpoint();
    comes(posted()[0], &peer(1), b"kept", None);
    let datagram = datagrams.receive_from(Duration::ZERO).unwrap().unwrap();
    drop((datagrams, pd));
    assert_eq!(&datagram[..], b"kept");
    assert!(!is_posted(&datagram));
    drop(datagram);
    assert_all_is_well();
}

#[test]
fn engine_needs_blocks_while_datagrams_have_them() {
    let mut engine = DatagramEngine::create(&builder(&pd()), None).unwrap();
    assert!(!engine.needs_blocks());
    comes(posted()[0], &peer(1), b"kept", None);
    engine.drive();
    let datagram = engine.received().unwrap();
    assert!(engine.needs_blocks());
    drop(datagram);
    engine.drive();
    assert!(!engine.needs_blocks());
    engine.fail(DownReason::Closed);
    assert!(!engine.needs_blocks(), "it posts no more");
}

#[test]
fn peers_are_addressed_by_lid_on_infiniband() {
    with(|library| library.ports = vec![Port::infiniband(5)]);
    let (pd, mut datagrams) = endpoint();
    let peer = DatagramEndpoint::builder(9, QKey::MAX)
        .lid(3)
        .build()
        .unwrap();
    datagrams.send_to(&peer, buffer(&pd, b"x")).unwrap();
    let path = with(|library| library.paths.pop()).unwrap();
    assert_eq!((path.is_global, path.dlid), (0, 3));
    assert_eq!(datagrams.max_payload(), 4096);
    // A datagram without a header has its sender's LID.
    let receive = posted()[0];
    assert!(deliver(receive, &[0; HEADER + 1]));
    let done = ibv_wc {
        wr_id: receive,
        opcode: IBV_WC_RECV,
        byte_len: 41,
        src_qp: 7,
        slid: 4,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
    let datagram = datagrams.receive_from(Duration::ZERO).unwrap().unwrap();
    assert_eq!((datagram.from().lid(), datagram.from().gid()), (4, None));
}

#[test]
fn sender_is_known_in_a_block_that_held_a_datagram_over_ipv6() {
    let (_pd, mut datagrams) = endpoint();
    let from = peer(9);
    // From 2001:db8::9, with the right length and protocol; then the IPv4 header, whose checksum the device left 0.
    let mut message = vec![0; HEADER + 5];
    message[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 44, 17, 64]);
    message[8..12].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
    message[20..32].copy_from_slice(&[0x45, 0, 0, 64, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message[32..36].copy_from_slice(&from.gid().unwrap().raw()[12..]);
    message[36..40].copy_from_slice(&[10, 0, 0, 1]);
    let receive = posted()[0];
    assert!(deliver(receive, &message));
    let done = ibv_wc {
        wr_id: receive,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len: u32::try_from(message.len()).unwrap(),
        src_qp: from.qp_num(),
        wc_flags: IBV_WC_GRH.0,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
    let datagram = datagrams.receive_from(Duration::ZERO).unwrap().unwrap();
    assert_eq!(datagram.from().gid(), from.gid());
}

#[test]
fn buffer_that_the_device_may_have_is_released_with_the_queue_pair_only() {
    for (is_stuck, is_failed) in [(false, true), (false, false), (true, true), (true, false)] {
        let (pd, mut datagrams) = endpoint();
        let pool = BufferPool::new(&pd, 64, 1).unwrap();
        refuse("ibv_destroy_qp", usize::from(is_stuck));
        let block = pool.take_with(b"maybe").unwrap().unwrap();
        if is_failed {
            // The driver fails and names no request: it may have it.
            with(|library| library.refuse_post = Some((1, libc::EIO, false)));
            let rejected = datagrams.send_to(&peer(1), block).unwrap_err();
            let reason = refused(rejected.error());
            assert!(matches!(reason, RejectReason::Down(DownReason::Post(_))));
            assert_eq!(rejected.into_given().is_empty(), is_stuck);
        } else {
            datagrams.send_to(&peer(1), block).unwrap();
        }
        let closed = datagrams.close();
        assert_eq!(
            matches!(closed, Err(Error::Core(_))),
            is_stuck,
            "{closed:?}"
        );
        assert!(called("ibv_destroy_qp"));
        assert_eq!(pool.available(), usize::from(!is_stuck));
        if is_stuck {
            fake_libibverbs::touch_posted();
            fake_libibverbs::forget_requests();
        } else {
            drop((pool, pd));
            assert_all_is_well();
        }
    }
}
