//! Lifetimes: drops in every order, forks, and no leaks.

use std::fs;

use verbs_core::completion::CompletionChannel;
use verbs_core::device::fork_init;
use verbs_core::{
    AccessFlags, CompletionQueue, QueuePair, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};
use verbs_harness::child::{Child, role};
use verbs_harness::drops::{drop_in, orders};
use verbs_harness::pair::{Pair, Side, pattern};
use verbs_harness::{begin, context, wait_for};

#[test]
#[ignore = "needs an RDMA device"]
fn drops_in_every_order_release_everything() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    for order in orders(6) {
        let context = context();
        let pd = context.alloc_pd().unwrap();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = CompletionQueue::builder(&context, 16)
            .channel(&channel)
            .build()
            .unwrap();
        let mr = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let endpoint = qp.endpoint();
        let qp = qp.handshake(&endpoint).unwrap();
        drop_in(
            order,
            [
                Box::new(context),
                Box::new(pd),
                Box::new(channel),
                Box::new(cq),
                Box::new(mr),
                Box::new(qp),
            ],
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_pair_can_be_dropped_with_full_queues() {
    let _test = begin!();
    for _ in 0..20 {
        let Pair { a, b } = Pair::new();
        let mut into = b.pd().reg_mr(vec![0_u8; 1 << 16]).unwrap();
        let from = a.pd().reg_mr(vec![7_u8; 1 << 16]).unwrap();
        for chunk in into
            .scatter_element(..)
            .unwrap()
            .chunks_mut(1 << 12)
            .unwrap()
        {
            b.receive(ReceiveWorkRequest::new(&mut [chunk]));
        }
        for chunk in from.gather_element(..).unwrap().chunks(1 << 12).unwrap() {
            a.post_one(SendWorkRequest::new(&mut [chunk]));
        }
        // In the middle of it: when this has returned, nothing writes here any more.
        b.qp.close().unwrap();
        let mut mine = into.dereg().unwrap();
        mine.fill(9);
        std::thread::yield_now();
        assert!(mine.iter().all(|byte| *byte == 9));
        a.qp.close().unwrap();
        from.dereg().unwrap();
    }
}

/// Open descriptors, resident pages, and locked memory in KiB.
fn footprint() -> (usize, u64, String) {
    let fds = fs::read_dir("/proc/self/fd").unwrap().count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| {
        let found = status.lines().find(|line| line.starts_with(name));
        found.unwrap_or_default().to_owned()
    };
    let rss = line("VmRSS:");
    let rss = rss.split_whitespace().nth(1).unwrap().parse().unwrap();
    (fds, rss, line("VmPin:"))
}

fn round(side: &Side) {
    let channel = CompletionChannel::create(&side.context).unwrap();
    let cq = CompletionQueue::builder(&side.context, 64)
        .channel(&channel)
        .build()
        .unwrap();
    let region = side
        .pd
        .reg_shared(vec![0_u8; 1 << 16], AccessFlags::REMOTE)
        .unwrap();
    let from = side.pd.reg_mr(vec![1_u8; 64]).unwrap();
    let prepared = QueuePair::builder(&side.pd, &cq, &cq).build().unwrap();
    let endpoint = prepared.endpoint();
    let qp = prepared.handshake(&endpoint).unwrap();
    cq.req_notify(false).unwrap();
    let mut list = [from.gather_element(..).unwrap()];
    let request = WriteWorkRequest::new(&mut list, &region.remote()).unwrap();
    // SAFETY: the request completes below, before its region goes.
    unsafe { qp.post_write(&mut [request]) }.unwrap();
    assert!(wait_for(&cq, 1)[0].result().is_ok());
    let timeout = Some(verbs_harness::PATIENCE);
    assert!(channel.get_cq_event(timeout).unwrap().is_some());
}

#[test]
#[ignore = "needs an RDMA device"]
fn thousand_rounds_leak_nothing() {
    if let Some((_, mut line)) = role() {
        let rounds = |contexts| {
            for _ in 0..contexts {
                let side = Side::here();
                (0..10).for_each(|_| round(&side));
            }
        };
        // After some rounds, the libraries have all memory that they keep for good.
        rounds(10);
        let before = footprint();
        rounds(100);
        let after = footprint();
        line.write(&format!("{} {}", before.0, after.0));
        line.write(&format!("{} {}", before.1, after.1));
        line.write(&before.2);
        return line.write(&after.2);
    }
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    // In a process of its own, where nothing else opens and closes.
    let mut child = Child::start(&test, "rounds");
    child.line.is_slow();
    let mut read = || child.line.read();
    let (fds, rss, pinned) = (read(), read(), [read(), read()]);
    let pair = |text: &str| {
        let (before, after) = text.split_once(' ').unwrap();
        (
            before.parse::<u64>().unwrap(),
            after.parse::<u64>().unwrap(),
        )
    };
    let (before, after) = pair(&fds);
    assert_eq!(before, after, "descriptors");
    let (before, after) = pair(&rss);
    // One lost round is 64 KiB.
    assert!(after < before + 4096, "{before} KiB, then {after} KiB");
    assert_eq!(pinned[0], pinned[1]);
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn after_fork_init_a_fork_does_not_affect_registered_memory() {
    if let Some((_, mut line)) = role() {
        // First of all verbs.
        let supported = fork_init();
        let pair = Pair::new();
        let Pair { a, b } = &pair;
        let from = a.pd().reg_mr(pattern(1, 10_000)).unwrap();
        let mut into = b.pd().reg_mr(vec![0_u8; 10_000]).unwrap();
        let mut list = [into.scatter_element(..).unwrap()];
        b.receive(ReceiveWorkRequest::new(&mut list));
        // SAFETY: the child calls nothing but `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child ends here, without running anything of its parent's.
            unsafe { libc::_exit(0) };
        }
        // Written after the fork: the device has to send these.
        let mut region = from;
        region.copy_from_slice(&pattern(2, 10_000));
        a.post_one(SendWorkRequest::new(&mut [region
            .gather_element(..)
            .unwrap()]));
        a.sent();
        b.received();
        let same = into[..] == pattern(2, 10_000)[..];
        let mut status = 0;
        // SAFETY: `status` is a local.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        return line.write(&format!("{} {same}", supported.is_ok()));
    }
    let test = begin!();
    let mut child = Child::start(&test, "fork");
    let answer = child.line.read();
    assert!(child.ended().success());
    if answer == "false true" {
        return test.skip("this kernel or library cannot make registered memory safe");
    }
    assert_eq!(answer, "true true");
}
