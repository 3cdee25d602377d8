//! A peer whose process is killed in the middle of its work.

use std::time::{Duration, Instant};

use verbs_core::codes::{QpState, WcStatus};
use verbs_core::{
    AccessFlags, AckTimeout, MaxAckRetries, PreparedQueuePair, QueuePair, ReadWorkRequest,
    ReceiveWorkRequest, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest,
};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::pair::{End, Side};
use verbs_harness::{assert_silent, begin, faults, peer_name, wait_for};

const ACK_TIMEOUT: u8 = 12;
const RETRY_CNT: u8 = 3;

fn prepared(side: &Side) -> PreparedQueuePair {
    QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
        .max_send_wr(64)
        .max_recv_wr(64)
        .timeout(AckTimeout::new(ACK_TIMEOUT).unwrap())
        .retry_cnt(MaxAckRetries::new(RETRY_CNT).unwrap())
        .build()
        .unwrap()
}

fn connect(side: Side, line: &mut Line) -> End {
    let prepared = prepared(&side);
    End::connect(side, prepared, line)
}

/// The peer: sends its region's address and key, posts receives, and does nothing more.
fn be_the_peer(mut line: Line) {
    let end = connect(Side::new(&peer_name()), &mut line);
    let region = end.given(vec![5_u8; 1 << 16], AccessFlags::REMOTE);
    let remote = region.remote();
    for _ in 0..16 {
        end.receive(ReceiveWorkRequest::empty());
    }
    line.write(&format!(
        "{} {} {}",
        remote.addr(),
        remote.len(),
        remote.rkey()
    ));
    // Until it is killed, or its starter is.
    line.read();
}

fn meet(child: &mut Child) -> (End, RemoteMemoryRegion) {
    let end = connect(Side::here(), &mut child.line);
    let numbers = child.line.read();
    let numbers: Vec<u64> = numbers
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let rkey = u32::try_from(numbers[2]).unwrap();
    (
        end,
        RemoteMemoryRegion::new(numbers[0], numbers[1], rkey).unwrap(),
    )
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

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_killed_under_a_stream_of_writes_ends_the_stream() {
    if let Some((_, line)) = role() {
        return be_the_peer(line);
    }
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut child = Child::start(&test, "peer");
    let (end, remote) = meet(&mut child);
    let region = end.pd().reg_mr(vec![1_u8; 1 << 16]).unwrap();
    let write = |wr_id| {
        let mut list = [region.gather_element(..).unwrap()];
        end.post_one(
            WriteWorkRequest::new(&mut list, &remote)
                .unwrap()
                .wr_id(wr_id),
        );
    };
    let mut posted = 0;
    let mut killed = false;
    let mut statuses = Vec::new();
    while posted < 8 {
        write(posted);
        posted += 1;
    }
    while statuses.len() < usize::try_from(posted).unwrap() {
        let status = end.send_status();
        statuses.push(status);
        if statuses.len() == 20 {
            child.kill();
            killed = true;
        }
        if status == WcStatus::SUCCESS && posted < 2000 {
            write(posted);
            posted += 1;
        }
    }
    assert!(killed, "{} writes", statuses.len());
    let first = statuses
        .iter()
        .position(|status| *status != WcStatus::SUCCESS);
    let (_, failed) = statuses.split_at(first.expect("writes to a dead peer do not succeed"));
    // The peer's region is closed before its queue pair is.
    let reasons = [
        WcStatus::RETRY_EXC_ERR,
        WcStatus::REM_ACCESS_ERR,
        WcStatus::REM_OP_ERR,
    ];
    assert!(reasons.contains(&failed[0]), "{:?}", failed[0]);
    assert!(
        failed[1..]
            .iter()
            .all(|status| *status == WcStatus::WR_FLUSH_ERR),
        "{failed:?}"
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn receives_from_a_dead_peer_do_not_complete_and_can_be_ended() {
    if let Some((_, line)) = role() {
        return be_the_peer(line);
    }
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut child = Child::start(&test, "peer");
    let (end, _) = meet(&mut child);
    end.receive(ReceiveWorkRequest::empty());
    child.kill();
    // RC has no keepalive: the caller needs a timeout.
    std::thread::sleep(Duration::from_millis(300));
    assert_silent(&end.side.recv_cq);
    end.qp.to_error().unwrap();
    assert_eq!(end.receive_status(), WcStatus::WR_FLUSH_ERR);
}
