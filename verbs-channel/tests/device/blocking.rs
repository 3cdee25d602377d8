//! Blocking operations: one at a time, completed when the call returns.

use std::fs;
use std::time::{Duration, Instant};

use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::{Channel, Incoming, Outgoing, PollStrategy};
use verbs_harness::{PATIENCE, begin, faults, until};

use super::ends::{
    SOON, assert_timed_out, bounded, filled, inside, pair_of, stubborn, work_error, zeros,
};

#[test]
#[ignore = "needs an RDMA device"]
fn send_to_a_peer_without_receives_is_aborted_at_its_deadline() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for timeout in [Duration::ZERO, Duration::from_nanos(1), SOON] {
        let (mut a, b) = inside(stubborn);
        let (from, start) = (filled(&a, 1, 64), Instant::now());
        let result =
            bounded(|| a.run(Outgoing::send(from.gather_element(..).unwrap()).timeout(timeout)));
        if timeout == SOON {
            let error = result.as_ref().unwrap_err();
            let within = faults::setting(start, "the deadline", timeout);
            faults::error(faults::NO_RECEIVE, "channel", error, within);
        }
        assert_timed_out(result, &a);
        drop(b);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejected_write_flushes_the_peers_receives() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let (mut a, mut b) = pair_of(|pd| {
        let builder = Channel::builder(pd).drain_timeout(faults::NOT_AT_ONCE);
        builder.build().unwrap()
    });
    let target = b.pd().reg_shared(vec![0_u8; 64], AccessFlags::REMOTE_READ);
    let remote = target.as_ref().unwrap().remote();
    let receive = b.start_receive(zeros(&b, 8)).unwrap();
    let (from, start) = (filled(&a, 1, 64), Instant::now());
    let write = bounded(|| a.write(from.gather_element(..).unwrap(), remote));
    assert_eq!(
        work_error(&write.unwrap_err()).status,
        WcStatus::REM_ACCESS_ERR
    );
    let ended = bounded(|| b.wait(receive, None)).unwrap().unwrap();
    let error = ended.result.unwrap_err();
    faults::error(faults::QP_ERROR, "channel", &error, faults::at_once(start));
    assert!(b.is_down());
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = stat.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(nanos)
}

#[test]
#[ignore = "needs an RDMA device"]
fn notified_wait_sleeps() {
    let test = begin!();
    if cpu_time().is_zero() && !until(SOON, || !cpu_time().is_zero()) {
        return test.skip("this kernel does not count a thread's processor time");
    }
    let (mut a, _b) = inside(|pd| {
        let builder = Channel::builder(pd).strategy(PollStrategy::Notify { after: 10 });
        builder.timeout(PATIENCE).build().unwrap()
    });
    let mut into = zeros(&a, 8);
    let before = cpu_time();
    let wait = Duration::from_secs(1);
    let result = a.run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(wait));
    let busy = cpu_time() - before;
    assert_timed_out(result, &a);
    assert!(busy < wait / 4, "busy for {busy:?} of {wait:?}");
}
