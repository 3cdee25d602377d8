//! Datagrams (UD): what arrives, what is dropped without a word, and what ends what.

use verbs_core::codes::{Gid, QpState, WcOpcode};
use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::ErrorKind;
use verbs_core::path::{AddressHandle, AhAttr, DatagramEndpoint, QKey};
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{ReceiveWorkRequest, WorkCompletion, WorkSuccess};
use verbs_harness::pair::{Side, pattern};
use verbs_harness::{PATIENCE, assert_says, assert_silent, begin, peer_name, until, wait_for};

/// A queue pair, and what it was made of.
struct End {
    qp: DatagramQueuePair,
    side: Side,
}

impl End {
    fn new(side: Side) -> Self {
        let qp = DatagramQueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
            .max_inline_data(64)
            .build()
            .unwrap();
        Self { qp, side }
    }

    /// One at each end of the wire, and two on one device.
    fn everywhere() -> [[Self; 2]; 2] {
        [
            [Self::new(Side::here()), Self::new(Side::new(&peer_name()))],
            [Self::new(Side::here()), Self::new(Side::here())],
        ]
    }

    fn pair() -> [Self; 2] {
        let [pair, _] = Self::everywhere();
        pair
    }

    fn to(&self, peer: &Self) -> AddressHandle {
        self.qp.address_handle(&peer.qp.endpoint()).unwrap()
    }

    /// Sends, and waits until that has succeeded: it does whatever becomes of the datagram.
    fn send(&self, bytes: &[u8], ah: &AddressHandle, to: (u32, QKey)) {
        let region = self.side.pd.reg_mr(bytes.to_vec()).unwrap();
        let mut list = [region.gather_element(..).unwrap()];
        let mut request = DatagramWorkRequest::new(&mut list, ah, to.0, to.1);
        // SAFETY: the request completes below, before the region and the handle go.
        unsafe { self.qp.post_send(&mut request) }.unwrap();
        let sent = wait_for(&self.side.send_cq, 1)[0].result().unwrap();
        assert_eq!(sent.opcode(), WcOpcode::SEND);
    }

    /// Posts a receive with `room` bytes, calls `send`, and returns what has come.
    fn received(&self, room: usize, send: impl FnOnce()) -> (WorkCompletion, Vec<u8>) {
        let mut region = self.side.pd.reg_mr(vec![0xee_u8; room]).unwrap();
        let mut list = [region.scatter_element(..).unwrap()];
        // SAFETY: the request completes below, before the region goes.
        unsafe {
            self.qp
                .post_receive(&mut ReceiveWorkRequest::new(&mut list))
        }
        .unwrap();
        send();
        let completion = wait_for(&self.side.recv_cq, 1)[0];
        (completion, region.to_vec())
    }

    /// A datagram that arrives.
    fn arrives(&self, from: &Self, bytes: &[u8]) -> (WorkSuccess, Vec<u8>) {
        let ah = from.to(self);
        let (completion, came) = self.received(Grh::LEN + bytes.len(), || {
            from.send(bytes, &ah, to(&self.qp.endpoint()));
        });
        let success = completion.result().unwrap();
        assert!(success.datagram_in(&came) == Some(bytes));
        (success, came)
    }
}

fn to(peer: &DatagramEndpoint) -> (u32, QKey) {
    (peer.qp_num(), peer.qkey())
}

#[test]
#[ignore = "needs an RDMA device"]
fn datagram_arrives_behind_forty_bytes_that_name_its_sender() {
    let _test = begin!(iwarp lacks "datagrams");
    for [a, b] in End::everywhere() {
        for len in [1, 7, 512] {
            let (received, came) = b.arrives(&a, &pattern(len, len));
            assert_eq!(received.src_qp(), a.qp.qp_num());
            assert_eq!(received.byte_len() as usize, Grh::LEN + len);
            if let Some(gid) = a.qp.endpoint().gid() {
                let grh = received.grh_in(&came).unwrap();
                assert_eq!(grh.sgid(), gid);
                assert_eq!(Some(grh.dgid()), b.qp.endpoint().gid());
                if grh.is_ipv4() {
                    assert_eq!(came[20] >> 4, 4, "the IPv4 header is at offset 20");
                    assert_ne!(came[..20], [0xee; 20], "what is before it is overwritten");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn longest_datagram_arrives_and_a_longer_one_is_rejected() {
    let _test = begin!(iwarp lacks "datagrams");
    for [a, b] in End::everywhere() {
        let max = a.qp.max_payload() as usize;
        b.arrives(&a, &pattern(3, max));
        let region = a.side.pd.reg_mr(vec![1_u8; max + 1]).unwrap();
        let ah = a.to(&b);
        let mut list = [region.gather_element(..).unwrap()];
        let mut request = DatagramWorkRequest::to(&mut list, &ah, &b.qp.endpoint());
        // SAFETY: nothing is posted.
        let error = unsafe { a.qp.post_send(&mut request) }.unwrap_err();
        assert_eq!((error.posted(), error.kind()), (0, ErrorKind::InvalidInput));
        assert_silent(&a.side.send_cq);
        b.arrives(&a, b"again");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn answer_reaches_the_sender_by_its_header_alone() {
    let _test = begin!(iwarp lacks "datagrams");
    for [a, b] in End::everywhere() {
        let (asked, came) = b.arrives(&a, b"ping");
        let header = came.first_chunk().unwrap();
        let context = &b.side.context;
        let path = AhAttr::from_completion(context, b.qp.port_num(), &asked, header).unwrap();
        let back = b.side.pd.create_ah(&path).unwrap();
        // The key is the one thing that both have to know.
        let (completion, came) = a.received(100, || {
            b.send(b"pong", &back, (asked.src_qp(), a.qp.qkey()));
        });
        let answer = completion.result().unwrap();
        assert_eq!(answer.datagram_in(&came), Some(&b"pong"[..]));
        assert_eq!(answer.src_qp(), b.qp.qp_num());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn unreachable_address_fails_when_the_handle_is_made() {
    let test = begin!(iwarp lacks "datagrams");
    let [a, _] = End::pair();
    let Some(gid) = a.qp.endpoint().gid() else {
        return test.skip("the port has no GID");
    };
    if std::net::Ipv6Addr::from(gid).to_ipv4_mapped().is_none() {
        return test.skip("the port's GID is no IPv4 address");
    }
    // TEST-NET-1: no host has it.
    let nowhere: Gid = "::ffff:192.0.2.77".parse().unwrap();
    let peer = DatagramEndpoint::builder(9, a.qp.qkey()).gid(nowhere);
    let error = a.qp.address_handle(&peer.build().unwrap()).unwrap_err();
    assert_says(&error, "no path from");
    assert!(until(PATIENCE, || a.qp.query().unwrap().qp_state()
        == QpState::RTS));
}
