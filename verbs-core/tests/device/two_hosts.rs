//! Tests that two machines on one wire run at the same time: `SOFT_ROCE_HOST` is the number of this
//! one, `SOFT_ROCE_PEER` is the address of the other.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use verbs_core::codes::{QpState, WcStatus};
use verbs_core::{AccessFlags, RemoteMemoryRegion, WriteWorkRequest};
use verbs_harness::child::Line;
use verbs_harness::pair::{End, Side};
use verbs_harness::{PATIENCE, Test, begin, faults, until, wait_for};

/// A port that is free on a machine that runs nothing else.
const PORT: u16 = 18600;

/// Whether this is the first of two machines, and a line to the other.
fn other(test: &Test) -> Option<(bool, Line)> {
    let (first, peer) = test.two_hosts()?;
    let mut stream = None;
    if first {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        listener.set_nonblocking(true).unwrap();
        until(2 * PATIENCE, || {
            stream = listener.accept().ok().map(|(stream, _)| stream);
            stream.is_some()
        });
    } else {
        let address = (peer, PORT).into();
        until(2 * PATIENCE, || {
            stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok();
            stream.is_some()
        });
    }
    let stream = stream.expect("the other machine");
    stream.set_nonblocking(false).unwrap();
    Some((first, Line::new(stream)))
}

const ACK_TIMEOUT: u8 = 14;
const RETRY_CNT: u8 = 4;

fn connect(line: &mut Line) -> End {
    let side = Side::here();
    let prepared = side.impatient(ACK_TIMEOUT, RETRY_CNT);
    End::connect(side, prepared, line)
}

#[test]
#[ignore = "needs an RDMA device"]
fn bytes_cross() {
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let Some((first, mut line)) = other(&test) else {
        return;
    };
    let end = connect(&mut line);
    end.exchange(&mut line, first, 100_000);
}

#[test]
#[ignore = "needs an RDMA device"]
fn sends_to_a_dead_host_fail() {
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let Some((first, mut line)) = other(&test) else {
        return;
    };
    let end = connect(&mut line);
    if !first {
        let region = end.given(vec![0_u8; 4096], AccessFlags::REMOTE);
        line.write_bytes(&region.remote().to_bytes());
        assert_eq!(line.read(), "die");
        // At once, without closing any connection.
        fs::write("/proc/sysrq-trigger", "o").unwrap();
        std::thread::sleep(PATIENCE);
        panic!("this machine does not die");
    }
    let remote = RemoteMemoryRegion::from_bytes(&line.read_bytes()).unwrap();
    let from = end.pd().reg_mr(vec![1_u8; 4096]).unwrap();
    let write = || {
        let mut list = [from.gather_element(..).unwrap()];
        end.post_one(WriteWorkRequest::new(&mut list, &remote).unwrap());
        wait_for(&end.side.send_cq, 1)[0].result()
    };
    write().unwrap();
    line.write("die");
    let (mut failed, mut start) = (None, Instant::now());
    let ended = until(PATIENCE, || {
        start = Instant::now();
        failed = write().err();
        failed.is_some()
    });
    assert!(ended, "writes to a dead machine succeed");
    let error = failed.unwrap();
    let within = faults::retries(start, ACK_TIMEOUT, RETRY_CNT);
    faults::error(faults::HOST, "core", &error, within);
    assert_eq!(error.status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(end.qp.query().unwrap().qp_state(), QpState::ERR);
}
