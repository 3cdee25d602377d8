//! Posts and polls that fail in the driver, in each way that drivers have.

use std::time::Instant;

use verbs_core::error::{ErrorKind, PostError};
use verbs_core::memory::Sge;
use verbs_core::{
    Error, PollSlot, QueuePair, QueuePairEndpoint, ReceiveWorkRequest, SendWorkRequest,
};
use verbs_harness::{assert_says, faults};

use super::{connected, ladder, on_host, prepared};

type Post = fn(&QueuePair, usize, Vec<Sge>) -> Result<(), PostError>;

/// Posts this number of requests, each with these elements.
const POSTS: [(&str, Post); 2] = [("ibv_post_send", send), ("ibv_post_recv", receive)];

fn send(qp: &QueuePair, count: usize, elements: Vec<Sge>) -> Result<(), PostError> {
    let mut lists = vec![elements; count];
    let mut chain: Vec<_> = lists.iter_mut().map(SendWorkRequest::new).collect();
    // SAFETY: there is no element, or nothing is posted.
    unsafe { qp.post_send(&mut chain) }
}

fn receive(qp: &QueuePair, count: usize, elements: Vec<Sge>) -> Result<(), PostError> {
    let mut lists = vec![elements; count];
    let mut chain: Vec<_> = lists.iter_mut().map(ReceiveWorkRequest::new).collect();
    // SAFETY: there is no element, or nothing is posted.
    unsafe { qp.post_receive(&mut chain) }
}

#[test]
fn requests_before_the_bad_one_are_in_flight() {
    on_host(0, |host| {
        let qp = connected();
        let mut slots = [const { PollSlot::new() }; 16];
        for at in 0..5_usize {
            for (verb, post) in POSTS.iter().rev() {
                host.refuse_after(at as u64, verb, libc::EINVAL);
                let error = post(&qp, 5, vec![]).unwrap_err();
                assert_eq!(error.posted(), at);
                assert_eq!(error.errno(), Some(libc::EINVAL));
                let words = format!("rejected request {} of", at + 1);
                assert_says(&error, &words);
            }
            assert_eq!(qp.send_cq().poll(&mut slots).unwrap().len(), 2 * at);
        }
    });
}

#[test]
fn sign_of_the_errno_is_ignored() {
    on_host(0, |host| {
        let qp = connected();
        for (verb, post) in POSTS {
            for ret in [libc::ENOMEM, -libc::ENOMEM] {
                host.refuse_after(1, verb, ret);
                let error = post(&qp, 2, vec![]).unwrap_err();
                assert_eq!((error.errno(), error.is_full()), (Some(libc::ENOMEM), true));
                assert_eq!((error.posted(), error.kind()), (1, ErrorKind::OutOfMemory));
            }
        }
        host.refuse("ibv_req_notify_cq", -libc::EBUSY);
        let error = qp.send_cq().req_notify(false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
    });
}

#[test]
fn bad_wr_with_return_value_0_is_an_error() {
    on_host(0, |host| {
        let qp = connected();
        for (verb, post) in POSTS {
            host.refuse_after(2, verb, 0);
            let error = post(&qp, 3, vec![]).unwrap_err();
            assert_eq!((error.posted(), error.errno()), (2, None));
            assert_says(&error, "no reason");
        }
    });
}

#[test]
fn too_many_elements_have_their_own_error() {
    on_host(0, |host| {
        let qp = connected();
        let count = qp.cap().max_send_sge + 1;
        let elements = vec![Sge::new(0, 1, 0); usize::try_from(count).unwrap()];
        // Some drivers call this ENOMEM: the queue is not full for that.
        for ret in [libc::EINVAL, libc::ENOMEM] {
            for (verb, post) in POSTS {
                host.refuse(verb, ret);
                let error = post(&qp, 1, elements.clone()).unwrap_err();
                let words = format!("{count} elements exceed");
                assert_says(&error, &words);
                assert!(!error.is_full());
            }
        }
    });
}

#[test]
fn queue_pair_that_the_device_has_no_room_for_is_an_error() {
    on_host(0, |host| {
        let (_context, pd, cq) = ladder();
        host.refuse("ibv_create_qp", libc::ENOMEM);
        let start = Instant::now();
        let error = QueuePair::builder(&pd, &cq, &cq).build().unwrap_err();
        faults::error(faults::QUEUE_PAIRS, "core", &error, faults::at_once(start));
    });
}

/// The bytes of an endpoint come from the peer: each may have any value. Those that no endpoint has are rejected,
/// and the device is given the others as they are.
#[test]
#[cfg_attr(miri, ignore = "it takes minutes")]
fn each_byte_of_an_endpoint_may_have_any_value() {
    on_host(0, |_host| {
        let truth = prepared().endpoint().to_bytes();
        let number = |bytes: &[u8]| {
            let shifted = |number, byte: &u8| number << 8 | u32::from(*byte);
            bytes.iter().fold(0, shifted)
        };
        let cases = (0..truth.len()).flat_map(|at| (0..=255).map(move |value| (at, value)));
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
            let endpoint = QueuePairEndpoint::from_bytes(&bytes);
            let handshake = |endpoint| prepared().handshake(&endpoint).ok();
            let Some(qp) = endpoint.ok().and_then(handshake) else {
                assert!(!may, "{value} at {at}");
                continue;
            };
            assert!(may, "{value} at {at}");
            let attr = qp.query().unwrap();
            assert_eq!((attr.dest_qp_num(), attr.rq_psn()), (qp_num, psn));
            let path = *attr.ah_attr().as_raw();
            // SAFETY: every bit pattern of a GID is one.
            assert_eq!(unsafe { path.grh.dgid.raw }, *gid, "{value} at {at}");
            // The smaller ones of both sides, which begin as equals.
            let mtu = attr.path_mtu().unwrap();
            assert_eq!(mtu as u8, path_mtu.min(truth[33]), "{value} at {at}");
            assert_eq!(attr.max_dest_rd_atomic(), truth[35]);
            assert_eq!(attr.max_rd_atomic(), bytes[35].min(truth[34]));
        }
        let mut bytes = truth;
        // The last byte of the version.
        bytes[3] ^= 1;
        let start = Instant::now();
        let error = QueuePairEndpoint::from_bytes(&bytes).unwrap_err();
        faults::error(faults::INVALID, "core", &error, faults::at_once(start));
    });
}

#[test]
fn a_poll_that_fails_is_an_error_with_the_driver_s_code() {
    on_host(0, |host| {
        let (_, _, cq) = ladder();
        let mut slots = [const { PollSlot::new() }; 2];
        for code in [-1, -2, -i32::MAX] {
            host.refuse("ibv_poll_cq", -code);
            let start = Instant::now();
            let error = cq.poll(&mut slots).unwrap_err();
            if code == -2 {
                faults::error(faults::UNPOLLED, "core", &error, faults::at_once(start));
            }
            assert_eq!(error.code(), code);
            assert_says(&error, &code.to_string());
            // -2 is the driver's own number, not ENOENT.
            let error = Error::from(error);
            assert_eq!((error.errno(), error.kind()), (None, ErrorKind::Other));
        }
        assert!(cq.poll(&mut slots).unwrap().is_empty());
    });
}
