//! Messages, one-sided operations, and peers that end.

use std::fs;
use std::process::{self, Command};
use std::time::{Duration, Instant};

use verbs_core::codes::WcStatus;
use verbs_core::memory::Sge;
use verbs_core::{
    AccessFlags, PollSlot, QueuePair, ReadWorkRequest, ReceiveWorkRequest, RemoteMemoryRegion,
    SendWorkRequest, WriteWorkRequest,
};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::pair::{End, Side, pattern};
use verbs_harness::{begin, bounded};

use crate::{memory, over_udp};

/// Larger than what may be unacknowledged, and than one batch.
const LARGE: usize = 1 << 20;

#[test]
fn a_peer_that_is_stopped_or_killed_is_an_error_after_the_retries_and_others_are_served() {
    over_udp("processes::ends");
}

#[test]
fn a_send_to_a_process_that_ends_as_soon_as_it_has_received_it_succeeds() {
    over_udp("processes::leaves");
}

/// Connects to the process at the other end of the line, with few retries.
fn connect(line: &mut Line) -> End {
    let side = Side::here();
    let prepared = QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq);
    End::connect(side, prepared.build().unwrap(), line)
}

/// The part of the other processes: they give memory, and sleep until the first one has done with it.
fn serve(line: &mut Line) {
    let end = connect(line);
    end.exchange(line, false, LARGE);
    let memory = end.given(
        vec![0_u8; LARGE],
        AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
    );
    let remote = memory.remote().to_bytes().map(|byte| byte.to_string());
    line.write(&format!("{} {}", process::id(), remote.join(" ")));
    line.is_slow();
    assert_eq!(line.read(), "done");
}

/// A process that [serves](serve), as the first one has it.
struct Peer {
    child: Child,
    end: End,
    remote: RemoteMemoryRegion,
    process: String,
}

impl Peer {
    fn start(test: &verbs_harness::Test) -> Self {
        let mut child = Child::start(test, "peer");
        let end = connect(&mut child.line);
        end.exchange(&mut child.line, true, LARGE);
        let text = child.line.read();
        let (process, remote) = text.split_once(' ').unwrap();
        let remote: Vec<u8> = remote
            .split(' ')
            .map(|byte| byte.parse().unwrap())
            .collect();
        Self {
            remote: RemoteMemoryRegion::from_bytes(&remote).unwrap(),
            process: process.to_owned(),
            child,
            end,
        }
    }

    fn write(&self, bytes: &[u8]) -> WcStatus {
        self.write_meanwhile(bytes, || ())
    }

    /// Does something between the post of a write and its completion.
    fn write_meanwhile(&self, bytes: &[u8], meanwhile: impl FnOnce()) -> WcStatus {
        let from = self.end.pd().reg_mr(bytes.to_vec()).unwrap();
        let mut list = [from.gather_element(..).unwrap()];
        let place = self.remote.slice(..bytes.len() as u64).unwrap();
        self.end
            .post_one(WriteWorkRequest::new(&mut list, &place).unwrap());
        meanwhile();
        self.end.send_status()
    }

    fn read(&self, length: usize) -> Vec<u8> {
        let mut into = self.end.pd().reg_mr(vec![0_u8; length]).unwrap();
        let mut list = [into.scatter_element(..).unwrap()];
        let place = self.remote.slice(..length as u64).unwrap();
        self.end
            .post_one(ReadWorkRequest::new(&mut list, &place).unwrap());
        self.end.sent();
        into.to_vec()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process]).status();
        assert!(sent.unwrap().success());
    }
}

/// SIGALRM and SIGTERM, as bits.
const SIGNALS: u64 = 1 << 13 | 1 << 14;

/// Whether the library's thread has signals blocked.
fn blocks(signals: u64) -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut texts =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let own = texts
        .find(|text| text.starts_with("Name:\tsoft-verbs\n"))
        .unwrap();
    let mask = own
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & signals == signals
}

#[test]
#[ignore = "a part of a_peer_that_is_stopped_or_killed_is_an_error_after_the_retries_and_others_are_served"]
fn ends() {
    let test = begin!();
    if let Some((_, mut line)) = role() {
        return serve(&mut line);
    }
    let [mut stopped, mut killed, other] = [(); 3].map(|()| Peer::start(&test));
    assert!(blocks(SIGNALS), "a signal is for the program's threads");
    for length in [1, 4096, 4097, LARGE] {
        let bytes = pattern(length, length);
        assert_eq!(other.write(&bytes), WcStatus::SUCCESS);
        assert!(other.read(length) == bytes);
    }
    stopped.signal("-STOP");
    killed.child.kill();
    let bytes = pattern(7, 10_000);
    bounded(Duration::from_secs(30), || {
        let start = Instant::now();
        assert_eq!(killed.write(&bytes), WcStatus::RETRY_EXC_ERR);
        let (large, before) = (pattern(9, LARGE), memory());
        let meanwhile = || {
            assert_eq!(other.write(&bytes), WcStatus::SUCCESS);
            assert!(other.read(bytes.len()) == bytes);
        };
        let status = stopped.write_meanwhile(&large, meanwhile);
        assert_eq!(status, WcStatus::RETRY_EXC_ERR);
        let grown = memory().saturating_sub(before);
        assert!(grown < 16 << 10, "{grown} KiB");
        println!("after {:?}", start.elapsed());
    });
    stopped.signal("-CONT");
    stopped.child.kill();
}

#[test]
#[ignore = "a part of a_send_to_a_process_that_ends_as_soon_as_it_has_received_it_succeeds"]
fn leaves() {
    let test = begin!();
    // The process is busy with them, so that its answers wait for packets of its own.
    const MESSAGES: usize = 16;
    if let Some((_, mut line)) = role() {
        let end = connect(&mut line);
        for _ in 0..MESSAGES {
            end.receive(ReceiveWorkRequest::new::<Sge>(&mut []));
        }
        line.write("ready");
        let mut slots = [const { PollSlot::new() }; 1];
        let mut received = 0;
        while received < MESSAGES {
            received += end.side.recv_cq.poll(&mut slots).unwrap().len();
        }
        // As a return from `main`.
        process::exit(0);
    }
    // Each time its last answer may happen to be on the way already.
    for _ in 0..40 {
        let mut child = Child::start(&test, "peer");
        let end = connect(&mut child.line);
        assert_eq!(child.line.read(), "ready");
        for _ in 0..MESSAGES {
            end.post_one(SendWorkRequest::empty());
            assert_eq!(end.send_status(), WcStatus::SUCCESS);
        }
        assert!(child.ended().success());
    }
}
