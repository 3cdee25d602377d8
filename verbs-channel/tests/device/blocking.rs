//! Blocking operations: one at a time, completed when the call returns.

use std::time::{Duration, Instant};

use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::{Channel, Outgoing};
use verbs_harness::{begin, faults};

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
