//! Streams in a process that cannot start threads, and in the child of a fork, which has none of its parent's.

use std::process::Command;
use std::time::Duration;
use std::{env, thread};

use fake_libibverbs::{share, with};
use verbs_harness::child::{fork, in_the_child};
use verbs_harness::until;

use crate::bench::{Bench, WakeCounter, announce};
use crate::streams::{CREDIT, LONG, arrive, destroyed, made, met, sends, write};

const IS_CHILD: &str = "VERBS_TEST_WITHOUT_THREADS";

/// Runs the test of this name in a process where the stack of a thread does not fit into the address space.
fn without_threads(name: &str, test: impl FnOnce()) {
    if env::var_os(IS_CHILD).is_some() {
        let thread = thread::Builder::new().spawn(|| ());
        assert!(thread.is_err(), "there can be threads");
        return test();
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", name, "--test-threads=1", "--nocapture"]);
    child.envs([("RUST_MIN_STACK", "140737488355328"), (IS_CHILD, "1")]);
    let ended = child.output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(printed.contains("1 passed"), "{printed}{ended:?}");
}

/// A stream that has accepted a second message, for which it has no credit yet.
fn waits_for_credit(bench: &Bench) -> verbs_async::ByteStream {
    let mut stream = met(bench);
    let task = WakeCounter::new();
    for message in [1, 2] {
        assert!(write(&mut stream, &[message; 64], &task).is_ready());
    }
    assert_eq!(sends(), [1, 2]);
    stream
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn bytes_that_a_write_accepted_are_sent_though_no_thread_can_be_started() {
    let name = "no_threads::bytes_that_a_write_accepted_are_sent_though_no_thread_can_be_started";
    without_threads(name, || {
        let _sharing = share();
        let bench = Bench::new();
        let stream = waits_for_credit(&bench);
        // No task polls it.
        arrive(1, CREDIT, b"");
        announce(&bench);
        assert_eq!(sends(), [1, 2, 2], "the second is not sent");
        drop(stream);
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn peer_of_a_dropped_stream_gets_a_reset_if_no_thread_can_be_started() {
    let name = "no_threads::peer_of_a_dropped_stream_gets_a_reset_if_no_thread_can_be_started";
    without_threads(name, || {
        let _sharing = share();
        let bench = Bench::new();
        let stream = waits_for_credit(&bench);
        stream.set_linger(LONG);
        drop(stream);
        assert_eq!(sends(), [1, 2, 8]);
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no forks")]
fn child_of_a_fork_opens_a_device_and_a_stream_of_its_own() {
    let _sharing = share();
    let bench = Bench::new();
    let stream = made(&bench, 1);
    stream.set_linger(Duration::ZERO);
    // The thread that has done this waits for more while the child is made.
    destroyed(|| drop(stream));
    in_the_child(fork(), || {
        with(|library| (library.before, library.posted) = (None, Vec::new()));
        let bench = Bench::new();
        let stream = waits_for_credit(&bench);
        arrive(1, CREDIT, b"");
        announce(&bench);
        let is_sent = || sends() == [1, 2, 2];
        assert!(until(LONG, is_sent), "no helper thread drives it");
        destroyed(|| drop(stream));
    });
}
