//! The functions that stand in for the C library's, on threads in virtual time and on others.
#![expect(unsafe_code, reason = "calls functions of the C library")]

use std::hash::{BuildHasher as _, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use super::pair;
use crate::network::Fabric;

#[test]
fn the_clock_of_a_thread_in_virtual_time_is_the_fabrics() {
    const LONG: Duration = Duration::from_secs(3600);
    let fabric = Fabric::seeded(1);
    let host = fabric.host("a");
    let start = Instant::now();
    host.enter(|| {
        let entered = Instant::now();
        thread::sleep(LONG);
        assert!((LONG..LONG + Duration::from_millis(1)).contains(&entered.elapsed()));
        fabric.run_for(LONG);
        assert!(entered.elapsed() >= 2 * LONG);
        let outside = thread::spawn(move || start.elapsed()).join().unwrap();
        assert!(outside < LONG, "other threads have the kernel's clock");
        let real = Fabric::real_time(1).host("b").enter(|| start.elapsed());
        assert!(real < LONG, "and so have those in real time");
        let inside = host.spawn(move || entered.elapsed()).join().unwrap();
        assert!(inside >= 2 * LONG);
        // Each reading moves it, so that this ends.
        let deadline = Instant::now() + Duration::from_millis(10);
        while Instant::now() < deadline {}
    });
    assert!(start.elapsed() < LONG);
}

#[test]
fn a_wait_for_a_descriptor_moves_virtual_time() {
    let fabric = Fabric::seeded(1);
    let (host, mut ends) = (fabric.host("a"), [0; 2]);
    let poll = |ours: bool, ends: &[i32; 2]| {
        let mut entry = libc::pollfd {
            fd: ends[0],
            events: libc::POLLIN,
            revents: 0,
        };
        if ours {
            crate::network::descriptors::opened(ends[0]);
        }
        // SAFETY: one local entry.
        let ready = unsafe { libc::poll(&raw mut entry, 1, 20) };
        crate::network::descriptors::closed(ends[0]);
        ready
    };
    // SAFETY: a local has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    host.enter(|| {
        assert_eq!(poll(true, &ends), 0);
        assert_eq!(fabric.now().as_millis(), 20);
        assert_eq!(poll(false, &ends), 0);
        assert_eq!(
            fabric.now().as_millis(),
            20,
            "descriptors of others are the kernel's"
        );
        // SAFETY: a byte of a constant.
        assert_eq!(unsafe { libc::write(ends[1], c"x".as_ptr().cast(), 1) }, 1);
        assert_eq!([true, false].map(|ours| poll(ours, &ends)), [1; 2]);
        assert_eq!(fabric.now().as_millis(), 20);
    });
}

#[test]
fn random_bytes_of_the_system_come_from_the_seed() {
    let numbers = |seed| {
        let host = Fabric::seeded(seed).host("a");
        let hashed = host.spawn(|| RandomState::new().hash_one(0)).join();
        let mut bytes = [0; 20];
        // SAFETY: a local has room for these bytes.
        let got = host.enter(|| unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 20, 0) });
        assert_eq!(got, 20);
        (hashed.unwrap(), bytes)
    };
    let [first, again, other] = [1, 1, 2].map(numbers);
    assert_eq!(first, again);
    assert!(first.0 != other.0 && first.1 != other.1);
}

/// Uses all that depends on time, and on chance.
fn use_all() {
    let start = Instant::now();
    thread::sleep(Duration::from_micros(200));
    assert!(start.elapsed() >= Duration::from_micros(200));
    let mut byte = 0_u8;
    // SAFETY: a local has room for it.
    assert_eq!(unsafe { libc::getrandom((&raw mut byte).cast(), 1, 0) }, 1);
    // SAFETY: no entries.
    assert_eq!(unsafe { libc::poll(std::ptr::null_mut(), 0, 1) }, 0);
}

#[test]
fn time_can_be_used_while_a_thread_ends_and_in_a_signal_that_meets_the_lock() {
    struct Last;

    impl Drop for Last {
        fn drop(&mut self) {
            use_all();
        }
    }

    thread_local! {
        static LAST: Last = const { Last };
    }

    extern "C" fn handler(_: libc::c_int) {
        use_all();
    }

    let fabric = Fabric::seeded(1);
    let [a, _] = pair(&fabric);
    let handler: extern "C" fn(libc::c_int) = handler;
    // SAFETY: the handler calls functions that are safe in one.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
    let host = a.clone();
    let thread = a.spawn(move || {
        LAST.with(|_| ());
        host.cards()[0].call(|_| {
            // SAFETY: the signal has a handler.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
        });
    });
    thread.join().unwrap();
    use_all();
}
