//! Unreliable connections (UC): sends and writes arrive, and nothing is acknowledged.

use verbs_core::codes::{QpType, WcOpcode};
use verbs_core::{AccessFlags, PreparedQueuePair, QueuePair, ReceiveWorkRequest, WriteWorkRequest};
use verbs_harness::begin;
use verbs_harness::pair::{Pair, Side, pattern, works};

fn prepared(side: &Side) -> PreparedQueuePair {
    QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
        .qp_type(QpType::Uc)
        .build()
        .unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_of_many_packets_arrive_both_ways() {
    let _test = begin!(iwarp lacks "unreliable connections");
    for pair in [
        Pair::of(prepared),
        Pair::between(Side::here(), Side::here(), prepared),
    ] {
        assert_eq!(pair.a.qp.qp_type(), QpType::Uc);
        assert_eq!(pair.a.qp.max_rd_atomic(), 0);
        works(&pair.a, &pair.b);
        works(&pair.b, &pair.a);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn write_with_immediate_arrives() {
    let _test = begin!(iwarp lacks "unreliable connections");
    let pair = Pair::of(prepared);
    let from = pair.a.pd().reg_mr(pattern(3, 10_000)).unwrap();
    let target = pair.b.given(vec![0; 10_000], AccessFlags::REMOTE_WRITE);
    pair.b.receive(ReceiveWorkRequest::empty());
    let mut list = [from.gather_element(..).unwrap()];
    let request = WriteWorkRequest::new(&mut list, &target.remote()).unwrap();
    pair.a.post_one(request.immediate(7));
    pair.a.sent();
    let received = pair.b.received();
    assert_eq!(received.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!(received.imm_data(), Some(7));
    let mut bytes = vec![0; 10_000];
    target.read(0, &mut bytes).unwrap();
    assert!(bytes == from[..]);
}
