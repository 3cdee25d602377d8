//! The notifiers' thread begins with the first notifier and ends with the last. This is a program of
//! its own because other tests would keep the thread.
#![cfg(test)]
#![expect(unsafe_code, reason = "forks")]

use std::fs;
use std::io::{self, Write as _};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use verbs_async::CqNotifier as _;
use verbs_async::notifier::ThreadNotifier;

/// The `stat` file of each such thread: see `proc_pid_stat(5)`.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // One may end meanwhile.
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains("(verbs-notifier)"))
        .collect()
}

/// How long the only one has run, in clock ticks.
fn ticks() -> u64 {
    let [stat] = &threads()[..] else {
        panic!("there is not one thread");
    };
    // utime and stime.
    let times = stat.split(' ').skip(13).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

fn become_threads(wanted: usize) {
    let limit = Instant::now() + Duration::from_secs(30);
    while threads().len() != wanted {
        assert!(Instant::now() < limit, "not {wanted}: {:?}", threads());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn thread_starts_with_the_first_notifier_and_ends_with_the_last() {
    assert!(threads().is_empty());
    for _ in 0..3 {
        let (reader, mut writer) = io::pipe().unwrap();
        let first = ThreadNotifier::new(&reader).unwrap();
        become_threads(1);
        let second = ThreadNotifier::new(&reader).unwrap();
        thread::sleep(Duration::from_millis(20));
        assert_eq!(threads().len(), 1);
        drop(first);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(threads().len(), 1);

        let mut cx = Context::from_waker(Waker::noop());
        assert!(second.poll_readable(&mut cx).is_pending());
        writer.write_all(&[7]).unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        while second.poll_readable(&mut cx).is_pending() {
            assert!(Instant::now() < limit, "it is not reported");
        }
        // It is still readable. After it was reported, it costs nothing until it is polled again.
        assert!(second.poll_readable(&mut cx).is_pending());
        let before = ticks();
        thread::sleep(Duration::from_millis(200));
        assert!(ticks() - before < 10, "it spins");
        // A child process has it, too: when the child drops it, it is still watched here.
        let second = dropped_by_a_child(second);
        let limit = Instant::now() + Duration::from_secs(30);
        let mut reported = 0;
        while reported < 2 {
            assert!(Instant::now() < limit, "it is not reported any more");
            if let Poll::Ready(readable) = second.poll_readable(&mut cx) {
                readable.unwrap();
                reported += 1;
            }
        }
        drop(second);
        become_threads(0);
    }
}

/// A child of a fork drops it, and ends.
fn dropped_by_a_child(notifier: ThreadNotifier) -> ThreadNotifier {
    // SAFETY: the child drops what it has, and ends without going on in the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(notifier);
        // SAFETY: `_exit` ends the process at once.
        unsafe { libc::_exit(0) }
    }
    let mut status = -1;
    // SAFETY: `status` is room for it.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0));
    notifier
}
