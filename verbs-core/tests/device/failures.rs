//! Operations that fail, each with its status; the queue pairs are in ERROR after that.
//!
//! Where soft-RoCE differs from the specification, both statuses are listed, that of the
//! specification first.

use std::time::Instant;

use verbs_core::codes::{QpState, WcStatus};
use verbs_core::work_request::WorkRequest;
use verbs_core::{
    AccessFlags, MaxRnrRetries, MinRnrTimer, QueuePairEndpoint, ReceiveWorkRequest,
    RemoteMemoryRegion, SendWorkRequest, WorkError, WriteWorkRequest,
};
use verbs_harness::pair::{End, Pair, Side};
use verbs_harness::{begin, faults, wait_for};

const ACK_TIMEOUT: u8 = 12;
const RETRY_CNT: u8 = 2;

/// A connection whose retries end soon.
fn impatient() -> Pair {
    Pair::of(|side| side.impatient(ACK_TIMEOUT, RETRY_CNT))
}

/// Posts one request, which must fail like this, and be followed by a flush.
fn fails<'l>(end: &End, request: impl Into<WorkRequest<'l>>, statuses: &[WcStatus]) -> WorkError {
    let mut chain = [request.into(), SendWorkRequest::empty().wr_id(99).into()];
    chain[0].set_wr_id(11);
    end.post(&mut chain).unwrap();
    let done = end.sends(2);
    assert!(statuses.contains(&done[0].status()), "{:?}", done[0]);
    let error = done[0].result().unwrap_err();
    assert_eq!((error.wr_id, error.qp_num), (11, end.qp.qp_num()));
    assert_eq!(
        (done[1].status(), done[1].wr_id()),
        (WcStatus::WR_FLUSH_ERR, 99)
    );
    assert_eq!(end.qp.query().unwrap().qp_state(), QpState::ERR);
    error
}

#[test]
#[ignore = "needs an RDMA device"]
fn without_a_receive_retries_end_with_rnr() {
    let _test = begin!(iwarp lacks "retries");
    let min_rnr_timer = MinRnrTimer::new(1).unwrap();
    for rnr_retry in [0, 1, 6] {
        let pair = Pair::of(|side| {
            side.builder()
                .rnr_retry(MaxRnrRetries::new(rnr_retry).unwrap())
                .min_rnr_timer(min_rnr_timer)
                .build()
                .unwrap()
        });
        let (start, request) = (Instant::now(), SendWorkRequest::empty());
        let error = fails(&pair.a, request, &[WcStatus::RNR_RETRY_EXC_ERR]);
        let within = faults::rnr_retries(start, min_rnr_timer, rnr_retry);
        faults::error(faults::NO_RECEIVE, "core", &error, within);
        assert_eq!(
            pair.b.qp.query().unwrap().qp_state(),
            QpState::RTS,
            "the peer is well"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_without_remote_access_is_not_accessed() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    // No right to write, a key of no region, past the end, and before the beginning.
    for (access, key, offset) in [
        (AccessFlags::REMOTE_READ, 0, 0),
        (AccessFlags::REMOTE, 0x5a, 0),
        (AccessFlags::REMOTE, 0, 16),
        (AccessFlags::REMOTE, 0, -8),
    ] {
        let pair = impatient();
        let target = pair.b.given(vec![7_u64; 8], access);
        let from = pair.a.pd().reg_mr(vec![0_u8; 64]).unwrap();
        let mut list = [from.gather_element(..).unwrap()];
        let own = target.remote();
        let addr = own.addr().wrapping_add_signed(offset);
        let wrong = RemoteMemoryRegion::new(addr, 64, own.rkey() ^ key).unwrap();
        let request = WriteWorkRequest::new(&mut list, &wrong).unwrap();
        fails(&pair.a, request, &[WcStatus::REM_ACCESS_ERR]);
        let mut bytes = [0; 64];
        target.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, *[7_u64; 8].map(u64::to_ne_bytes).as_flattened());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejected_write_moves_the_peer_to_err_and_flushes_its_receives() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let pair = impatient();
    pair.b.receive(ReceiveWorkRequest::empty());
    let target = pair.b.given(vec![7_u8; 8], AccessFlags::REMOTE_READ);
    let from = pair.a.pd().reg_mr(vec![0_u8; 8]).unwrap();
    let mut list = [from.gather_element(..).unwrap()];
    let remote = target.remote();
    let (start, request) = (Instant::now(), WriteWorkRequest::new(&mut list, &remote));
    fails(&pair.a, request.unwrap(), &[WcStatus::REM_ACCESS_ERR]);
    let error = wait_for(&pair.b.side.recv_cq, 1)[0].result().unwrap_err();
    faults::error(faults::QP_ERROR, "core", &error, faults::at_once(start));
    assert_eq!(error.status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(pair.b.qp.query().unwrap().qp_state(), QpState::ERR);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_message_longer_than_its_receive_fails_at_both_ends() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let pair = impatient();
    let from = pair.a.pd().reg_mr(vec![1_u8; 100]).unwrap();
    let mut into = pair.b.pd().reg_mr(vec![0_u8; 100]).unwrap();
    let mut list = [into.scatter_element(..99).unwrap()];
    pair.b.receive(ReceiveWorkRequest::new(&mut list).wr_id(3));
    let mut list = [from.gather_element(..).unwrap()];
    let statuses = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
    fails(&pair.a, SendWorkRequest::new(&mut list), &statuses);
    let received = wait_for(&pair.b.side.recv_cq, 1)[0];
    let statuses = [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR];
    assert!(statuses.contains(&received.status()), "{received:?}");
    assert_eq!((received.wr_id(), into[99]), (3, 0));
}

#[test]
#[ignore = "needs an RDMA device"]
fn sends_to_a_destroyed_queue_pair_fail() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let Pair { a, b } = impatient();
    b.qp.close().unwrap();
    let start = Instant::now();
    let error = fails(&a, SendWorkRequest::empty(), &[WcStatus::RETRY_EXC_ERR]);
    let within = faults::retries(start, ACK_TIMEOUT, RETRY_CNT);
    faults::error(faults::CLOSED, "core", &error, within);
}

/// RC has no handshake of its own: only the first request detects it.
#[test]
#[ignore = "needs an RDMA device"]
fn unassigned_endpoint_connects_and_its_sends_fail() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let side = Side::here();
    let prepared = side.impatient(ACK_TIMEOUT, RETRY_CNT);
    let mine = prepared.endpoint();
    let unassigned = QueuePairEndpoint::builder(0xff_fff0, mine.psn());
    let unassigned = unassigned.lid(mine.lid()).gid(mine.gid()).build().unwrap();
    let qp = prepared.handshake(&unassigned).unwrap();
    let end = End { qp, side };
    fails(&end, SendWorkRequest::empty(), &[WcStatus::RETRY_EXC_ERR]);
}
