//! A peer whose process is killed in the middle of its work.

use std::time::Instant;

use verbs_core::codes::{QpState, WcStatus};
use verbs_core::{
    AccessFlags, ReadWorkRequest, ReceiveWorkRequest, RemoteMemoryRegion, SendWorkRequest,
    WriteWorkRequest,
};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::pair::{End, Side};
use verbs_harness::{begin, faults, peer_name, wait_for};

const ACK_TIMEOUT: u8 = 12;
const RETRY_CNT: u8 = 3;

fn connect(side: Side, line: &mut Line) -> End {
    let prepared = side.impatient(ACK_TIMEOUT, RETRY_CNT);
    End::connect(side, prepared, line)
}

/// The peer: sends its region's address and key, posts receives, and does nothing more.
fn be_the_peer(mut line: Line) {
    let end = connect(Side::new(&peer_name()), &mut line);
    let region = end.given(vec![5_u8; 1 << 16], AccessFlags::REMOTE);
    for _ in 0..16 {
        end.receive(ReceiveWorkRequest::empty());
    }
    line.write_bytes(&region.remote().to_bytes());
    // Until it is killed, or its starter is.
    line.read();
}

fn meet(child: &mut Child) -> (End, RemoteMemoryRegion) {
    let end = connect(Side::here(), &mut child.line);
    let remote = RemoteMemoryRegion::from_bytes(&child.line.read_bytes());
    (end, remote.unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn each_kind_of_request_to_a_dead_peer_ends() {
    if let Some((_, line)) = role() {
        return be_the_peer(line);
    }
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    for kind in ["send", "write", "read"] {
        let mut child = Child::start(&test, "peer");
        let (end, remote) = meet(&mut child);
        let mut region = end.pd().reg_mr(vec![0_u8; 64]).unwrap();
        // It works while the peer lives.
        let mut list = [region.scatter_element(..).unwrap()];
        end.post_one(ReadWorkRequest::new(&mut list, &remote).unwrap());
        end.sent();
        assert_eq!(region[..], [5; 64]);
        let start = Instant::now();
        child.kill();
        let mut list = [region.scatter_element(..).unwrap()];
        match kind {
            "send" => end.post_one(SendWorkRequest::empty()),
            "read" => end.post_one(ReadWorkRequest::new(&mut list, &remote).unwrap()),
            _ => {
                let mut from = [list[0].as_gather()];
                end.post_one(WriteWorkRequest::new(&mut from, &remote).unwrap());
            }
        }
        let error = wait_for(&end.side.send_cq, 1)[0].result().unwrap_err();
        let within = faults::retries(start, ACK_TIMEOUT, RETRY_CNT);
        faults::error(faults::KILLED, "core", &error, within);
        assert_eq!(error.status, WcStatus::RETRY_EXC_ERR, "{kind}");
        assert_eq!(end.qp.query().unwrap().qp_state(), QpState::ERR);
    }
}
