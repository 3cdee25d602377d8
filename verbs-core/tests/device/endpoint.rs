//! Endpoints that travel between two processes, as bytes and as JSON.

use verbs_core::codes::WcStatus;
use verbs_core::{QueuePairEndpoint, SendWorkRequest};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::pair::{End, Side};
use verbs_harness::{begin, peer_name};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Connects over a line; with `json` the endpoint is written as JSON.
fn connect(side: Side, line: &mut Line, json: bool) -> End {
    let prepared = side.prepared();
    let mine = prepared.endpoint();
    line.write(&write(&mine, json));
    let theirs = read(&line.read(), json);
    let qp = prepared.handshake(&theirs).unwrap();
    line.write("connected");
    assert_eq!(line.read(), "connected");
    End { qp, side }
}

/// Connects, and exchanges messages.
fn exchange(side: Side, line: &mut Line, json: bool, first: bool) {
    connect(side, line, json).exchange(line, first, 5000);
}

#[cfg(feature = "serde")]
fn write(endpoint: &QueuePairEndpoint, json: bool) -> String {
    match json {
        true => serde_json::to_string(endpoint).unwrap(),
        false => hex(&endpoint.to_bytes()),
    }
}

#[cfg(feature = "serde")]
fn read(text: &str, json: bool) -> QueuePairEndpoint {
    match json {
        true => serde_json::from_str(text).unwrap(),
        false => QueuePairEndpoint::from_bytes(&unhex(text)).unwrap(),
    }
}

#[cfg(not(feature = "serde"))]
fn write(endpoint: &QueuePairEndpoint, _json: bool) -> String {
    hex(&endpoint.to_bytes())
}

#[cfg(not(feature = "serde"))]
fn read(text: &str, _json: bool) -> QueuePairEndpoint {
    QueuePairEndpoint::from_bytes(&unhex(text)).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_processes_connect_by_bytes() {
    if let Some((_, mut line)) = role() {
        return exchange(Side::new(&peer_name()), &mut line, false, false);
    }
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut child = Child::start(&test, "peer");
    exchange(Side::here(), &mut child.line, false, true);
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_processes_connect_by_json() {
    if let Some((_, mut line)) = role() {
        return exchange(Side::new(&peer_name()), &mut line, true, false);
    }
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    if !cfg!(feature = "serde") {
        return test.skip("built without the feature `serde`");
    }
    let mut child = Child::start(&test, "peer");
    exchange(Side::here(), &mut child.line, true, true);
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn unassigned_endpoint_connects_and_its_sends_fail() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    // RC has no handshake of its own: only the first request detects it.
    let side = Side::here();
    let prepared = verbs_core::QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
        .retry_cnt(verbs_core::MaxAckRetries::new(1).unwrap())
        .timeout(verbs_core::AckTimeout::new(12).unwrap())
        .build()
        .unwrap();
    let mine = prepared.endpoint();
    let unassigned = QueuePairEndpoint::builder(0xff_fff0, mine.psn());
    let unassigned = unassigned.lid(mine.lid()).gid(mine.gid()).build().unwrap();
    let end = End {
        qp: prepared.handshake(&unassigned).unwrap(),
        side,
    };
    end.post_one(SendWorkRequest::empty());
    assert_eq!(end.send_status(), WcStatus::RETRY_EXC_ERR);
}
