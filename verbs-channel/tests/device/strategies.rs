//! The strategies of waiting for a completion.

use std::fs;
use std::time::{Duration, Instant};

use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{Channel, Incoming, PollStrategy, PreparedChannel};
use verbs_harness::{PATIENCE, begin, until};

use super::ends::{SOON, assert_timed_out, bounded, inside, pair_of, works, zeros};

const ALL: [fn(&ProtectionDomain) -> PreparedChannel; 4] = [
    |pd| with(pd, PollStrategy::Spin),
    |pd| with(pd, PollStrategy::SpinThenYield),
    |pd| with(pd, PollStrategy::Notify { after: 0 }),
    |pd| with(pd, PollStrategy::Notify { after: 100 }),
];

fn with(pd: &ProtectionDomain, strategy: PollStrategy) -> PreparedChannel {
    let builder = Channel::builder(pd).strategy(strategy);
    builder.timeout(PATIENCE).build().unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn each_strategy_moves_bytes() {
    let _test = begin!();
    for build in ALL {
        let (mut a, mut b) = pair_of(build);
        for len in [1, 100, 20_000] {
            works(&mut a, &mut b, len);
            works(&mut b, &mut a, len);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn each_strategy_keeps_its_deadline() {
    let _test = begin!();
    for build in ALL {
        for timeout in [Duration::ZERO, SOON, 3 * SOON] {
            let (mut a, _b) = inside(build);
            let mut into = zeros(&a, 8);
            let start = Instant::now();
            let result = bounded(|| {
                a.run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(timeout))
            });
            assert!(start.elapsed() >= timeout);
            assert_timed_out(result, &a);
        }
    }
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
    let (mut a, _b) = inside(|pd| with(pd, PollStrategy::Notify { after: 10 }));
    let mut into = zeros(&a, 8);
    let before = cpu_time();
    let wait = Duration::from_secs(1);
    let result = a.run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(wait));
    let busy = cpu_time() - before;
    assert_timed_out(result, &a);
    assert!(busy < wait / 4, "busy for {busy:?} of {wait:?}");
}
