//! Posts that fail in the driver, in each way that drivers have.

use std::mem;
use std::time::Instant;

use fake_libibverbs::{connected, ladder, prepared, with};
use verbs_core::verbs_sys::IBV_TRANSPORT_IWARP;
use verbs_core::{
    ErrorKind, PostError, QueuePair, QueuePairEndpoint, ReceiveWorkRequest, SendWorkRequest, Sge,
};
use verbs_harness::faults;

fn send(qp: &QueuePair, count: usize) -> Result<(), PostError> {
    let mut lists = vec![[Sge::new(0x1000, 8, 1)]; count];
    let mut chain: Vec<_> = lists.iter_mut().map(SendWorkRequest::new).collect();
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut chain) }
}

fn receive(qp: &QueuePair, count: usize) -> Result<(), PostError> {
    let mut lists = vec![[Sge::new(0x1000, 8, 1)]; count];
    let mut chain: Vec<_> = lists.iter_mut().map(ReceiveWorkRequest::new).collect();
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut chain) }
}

fn refuse(at: usize, ret: i32, named: bool) {
    with(|library| library.refuse_post = Some((at, ret, named)));
}

#[test]
fn requests_before_the_bad_one_are_in_flight() {
    let qp = connected();
    for post in [send, receive] {
        for at in 0..5 {
            refuse(at, libc::EINVAL, true);
            let error = post(&qp, 5).unwrap_err();
            assert_eq!(error.posted(), at);
            assert_eq!(error.errno(), Some(libc::EINVAL));
            let words = format!("rejected request {} of", at + 1);
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
}

#[test]
fn sign_of_the_errno_is_ignored() {
    let qp = connected();
    for post in [send, receive] {
        for ret in [libc::ENOMEM, -libc::ENOMEM] {
            refuse(1, ret, true);
            let error = post(&qp, 2).unwrap_err();
            assert_eq!((error.errno(), error.is_full()), (Some(libc::ENOMEM), true));
            assert_eq!((error.posted(), error.kind()), (1, ErrorKind::OutOfMemory));
        }
    }
}

#[test]
fn bad_wr_with_return_value_0_is_an_error() {
    let qp = connected();
    for post in [send, receive] {
        refuse(2, 0, true);
        let error = post(&qp, 3).unwrap_err();
        assert_eq!((error.posted(), error.errno()), (2, None));
        assert!(error.to_string().contains("no reason"), "{error}");
    }
}

#[test]
fn error_without_a_bad_wr_may_have_taken_all_requests() {
    let qp = connected();
    for post in [send, receive] {
        refuse(0, libc::EINVAL, false);
        let error = post(&qp, 3).unwrap_err();
        assert_eq!((error.posted(), error.kind()), (3, ErrorKind::InvalidInput));
        assert!(!error.is_full());
    }
}

#[test]
fn inline_data_that_is_too_long_has_its_own_error() {
    let qp = connected();
    let max = qp.cap().max_inline_data;
    let mut list = [Sge::new(0, max, 0), Sge::new(0, 1, 0)];
    refuse(0, libc::EINVAL, true);
    let mut request = [SendWorkRequest::new(&mut list).inline()];
    // SAFETY: the library touches no buffer.
    let error = unsafe { qp.post_send(&mut request) }.unwrap_err();
    let words = format!(
        "{} bytes inline exceed this queue pair's max_inline_data {max}",
        max + 1
    );
    assert!(error.to_string().ends_with(&words), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // The same bytes are no reason where they are not inline.
    let mut list = [Sge::new(0, max + 1, 0)];
    refuse(0, libc::EINVAL, true);
    let mut request = [SendWorkRequest::new(&mut list)];
    // SAFETY: the library touches no buffer.
    let error = unsafe { qp.post_send(&mut request) }.unwrap_err();
    assert!(!error.to_string().contains("inline"), "{error}");
}

#[test]
fn too_many_elements_have_their_own_error() {
    let qp = connected();
    let count = qp.cap().max_send_sge + 1;
    let mut list = vec![Sge::new(0, 1, 0); usize::try_from(count).unwrap()];
    // Some drivers call this ENOMEM: the queue is not full for that.
    for ret in [libc::EINVAL, libc::ENOMEM] {
        refuse(0, ret, true);
        let mut request = [SendWorkRequest::new(&mut list)];
        // SAFETY: the library touches no buffer.
        let error = unsafe { qp.post_send(&mut request) }.unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("{count} elements exceed")),
            "{error}"
        );
        assert!(!error.is_full());
        refuse(0, ret, true);
        let mut request = [ReceiveWorkRequest::new(&mut list)];
        // SAFETY: the library touches no buffer.
        let error = unsafe { qp.post_receive(&mut request) }.unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("{count} elements exceed")),
            "{error}"
        );
    }
}

#[test]
fn receives_of_an_unconnected_queue_pair_fail_in_the_same_way() {
    let qp = prepared();
    let mut list = [Sge::new(0, 1, 0)];
    refuse(0, libc::ENOMEM, true);
    // SAFETY: the library touches no buffer.
    let error = unsafe { qp.post_receive(&mut [ReceiveWorkRequest::new(&mut list)]) }.unwrap_err();
    assert!(error.is_full());
}

#[test]
fn queue_pair_that_the_device_has_no_room_for_is_an_error() {
    let (_context, pd, cq) = ladder();
    with(|library| library.refuse.push(("ibv_create_qp", libc::ENOMEM)));
    let start = Instant::now();
    let error = QueuePair::builder(&pd, &cq, &cq).build().unwrap_err();
    faults::error(faults::QUEUE_PAIRS, "core", &error, faults::at_once(start));
}

#[test]
fn queue_pair_of_iwarp_is_handed_back_by_a_handshake() {
    with(|library| library.transport = IBV_TRANSPORT_IWARP);
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

/// The bytes of an endpoint come from the peer: each may have any value. Those that no endpoint has are rejected,
/// and the device is given the others as they are.
#[test]
fn each_byte_of_an_endpoint_may_have_any_value() {
    let truth = prepared().endpoint().to_bytes();
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u32::from(*byte))
    };
    // Miri is slow.
    let values = (0..=255).step_by(if cfg!(miri) { 51 } else { 1 });
    let cases = (0..truth.len()).flat_map(|at| values.clone().map(move |value| (at, value)));
    for (at, value) in cases {
        let mut bytes = truth;
        bytes[at] = value;
        let (qp_num, psn, lid) = (
            number(&bytes[4..8]),
            number(&bytes[8..12]),
            number(&bytes[12..14]),
        );
        let (gid, path_mtu) = (&bytes[16..32], bytes[33]);
        let may = bytes[..4] == truth[..4]
            && (2..0xff_ffff).contains(&qp_num)
            && psn <= 0xff_ffff
            && lid < 0xc000
            && bytes[14] != 0
            && gid[0] != 0xff
            && bytes[32] != 0
            && (1..=5).contains(&path_mtu)
            && bytes[36] == truth[36];

        let (prepared, endpoint) = (prepared(), QueuePairEndpoint::from_bytes(&bytes));
        with(|library| library.modified.clear());
        let connected = endpoint.map(|endpoint| prepared.handshake(&endpoint).is_ok());
        assert_eq!(connected.unwrap_or(false), may, "{value} at {at}");
        let modified = with(|library| mem::take(&mut library.modified));
        let [(receive, _), (send, _)] = &modified[..] else {
            assert!(!may && modified.is_empty(), "{value} at {at}");
            continue;
        };
        let path = &receive.ah_attr;
        let given = (receive.dest_qp_num, receive.rq_psn, u32::from(path.dlid));
        assert_eq!(given, (qp_num, psn, lid), "{value} at {at}");
        // SAFETY: every bit pattern of a GID is one.
        assert_eq!(unsafe { path.grh.dgid.raw }, *gid, "{value} at {at}");
        // The smaller one of both sides, which begin as equals.
        assert_eq!(receive.path_mtu.0, u32::from(path_mtu.min(truth[33])));
        assert_eq!(receive.max_dest_rd_atomic, truth[35]);
        assert_eq!(send.max_rd_atomic, bytes[35].min(truth[34]));
    }
    let mut bytes = truth;
    // The last byte of the version.
    bytes[3] ^= 1;
    let start = Instant::now();
    let error = QueuePairEndpoint::from_bytes(&bytes).unwrap_err();
    faults::error(faults::INVALID, "core", &error, faults::at_once(start));
}
