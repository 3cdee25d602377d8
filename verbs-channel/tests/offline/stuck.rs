//! The last step: a driver that refuses to destroy a queue pair.

use std::cell::Cell;
use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fake_libibverbs::{forget_requests, with};
use verbs_channel::error::Rejected;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_REM_ACCESS_ERR;
use verbs_channel::verbs_core::work_request::RequestChain;
use verbs_channel::{
    BufferPool, Channel, DownReason, Error, Incoming, Outgoing, OwnedRequest, RejectReason, Ticket,
    TransportError,
};
use verbs_harness::logged::{does, lines, listen, panics};

use crate::fake_device::{
    called, channel, ends, forget_the_past, member, pd, posted, refuse, region, remote, sends,
    succeeds,
};
use crate::reentered::{reach, reached};

const ROLE: &str = "VERBS_TEST_ROLE";

/// A way to start an operation on blocks of a pool. Blocks that are handed back are dropped.
type Start = fn(&mut Channel, &BufferPool) -> Result<Ticket, RejectReason>;

/// With the number of blocks.
const STARTS: [(&str, usize, Start); 4] = [
    ("send", 1, |channel, pool| {
        let started = channel.start_send(pool.take().unwrap());
        started.map_err(Rejected::into_error)
    }),
    ("receive", 1, |channel, pool| {
        let started = channel.start_receive(pool.take().unwrap());
        started.map_err(Rejected::into_error)
    }),
    ("batch", 3, |channel, pool| {
        let started = channel.start_batch(sends(pool, 3));
        started.map_err(Rejected::into_error)
    }),
    ("chain", 3, |channel, pool| {
        let started = channel.start_chain(OwnedChain::new(sends(pool, 3)).unwrap());
        started.map_err(Rejected::into_error)
    }),
];

/// A way for a channel to end with its queue pair. Returns what is left of it.
type End = fn(Channel) -> Option<Channel>;

const ENDS: [(&str, End); 4] = [
    ("destroyed", |mut channel| {
        channel.engine_mut().destroy_all(DownReason::Closed);
        Some(channel)
    }),
    ("aborted", |mut channel| {
        refuse("ibv_modify_qp", 1);
        channel.abort();
        Some(channel)
    }),
    ("closed", |channel| {
        let _stuck = channel.close();
        None
    }),
    ("dropped", |channel| {
        drop(channel);
        None
    }),
];

#[test]
fn memory_in_flight_comes_back_or_is_leaked_with_its_queue_pair() {
    listen();
    for (name, count, start) in STARTS {
        for (end_name, end) in ENDS {
            for is_stuck in [false, true] {
                let case = format!("{name}, {end_name}, stuck: {is_stuck}");
                let mut channel = channel();
                // Nothing is flushed while it is closed.
                channel.set_timeout(Duration::ZERO);
                let pool = BufferPool::new(channel.pd(), 64, 4).unwrap();
                let ticket = start(&mut channel, &pool).unwrap();
                forget_the_past();
                refuse("ibv_destroy_qp", usize::from(is_stuck));
                let before = lines().len();
                if let Some(mut channel) = end(channel) {
                    let ended = channel.poll(ticket).unwrap().unwrap();
                    let expected = match is_stuck {
                        true => TransportError::Stuck,
                        false => TransportError::Aborted(DownReason::Closed),
                    };
                    assert_eq!(ended.result.unwrap_err(), expected, "{case}");
                }
                assert!(called("ibv_destroy_qp"), "{case}");
                let leaked = if is_stuck { count } else { 0 };
                assert_eq!(pool.available(), 4 - leaked, "{case}");
                let line = format!("ERROR: leaked {count} buffers");
                let is_logged = lines()[before..].iter().any(|it| it.starts_with(&line));
                assert_eq!(is_logged, is_stuck, "{case}");
                drop(pool);
                assert_eq!(
                    called("ibv_dereg_mr"),
                    !is_stuck,
                    "{case}: the device has a block"
                );
                forget_requests();
            }
        }
    }
}

#[test]
fn post_that_fails_half_way_hands_everything_back_or_leaks_it() {
    listen();
    for (name, count, start) in STARTS {
        for (is_named, is_stuck) in [(true, false), (true, true), (false, false), (false, true)] {
            let at = if is_named { count - 1 } else { 0 };
            // The device may have requests if some were posted, or the driver names none.
            let may_have = !is_named || at > 0;
            let is_stuck = is_stuck && may_have;
            let case = format!("{name}, named: {is_named}, stuck: {is_stuck}");
            let mut channel = channel();
            let pool = BufferPool::new(channel.pd(), 64, 4).unwrap();
            refuse("ibv_destroy_qp", usize::from(is_stuck));
            with(|library| library.refuse_post = Some((at, libc::EIO, is_named)));
            let reason = start(&mut channel, &pool).unwrap_err();
            let RejectReason::Post(error) = reason else {
                panic!("{case}: {reason}");
            };
            assert_eq!(called("ibv_destroy_qp"), may_have, "{case}");
            let down = may_have.then_some(DownReason::Post(error));
            assert_eq!(channel.down_reason(), down, "{case}");
            assert!(channel.is_idle(), "{case}");
            let leaked = if is_stuck { count } else { 0 };
            assert_eq!(pool.available(), 4 - leaked, "{case}");
            forget_requests();
        }
    }
}

#[test]
fn stuck_buffers_are_leaked_although_the_logger_panics() {
    listen();
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    refuse("ibv_modify_qp", 1);
    refuse("ibv_destroy_qp", 1);
    panics(true);
    channel.abort();
    panics(false);
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert!(ended.result.is_err() && ended.buffer.is_none());
    assert_eq!(lines().len(), 1);
}

#[test]
fn stuck_channel_keeps_its_place_in_its_group() {
    listen();
    let pd = pd();
    let mut group = Channel::builder(&pd).group(2).unwrap();
    let [first, second, third, fourth] = [(); 4].map(|()| member(&group));
    let first = group.join(first).unwrap();
    let second = group.join(second).unwrap();
    group.remove(second).unwrap();
    let third = group.join(third).unwrap();
    refuse("ibv_destroy_qp", 1);
    group.remove(third).unwrap();
    // Its requests may still complete on the queue, which has room for two.
    assert_eq!(group.len(), 1);
    let full = group.join(fourth).unwrap_err();
    assert!(matches!(full.error(), Error::GroupFull(_)));
    assert!(!group.channel(first).unwrap().is_down());
}

#[test]
fn chain_or_batch_that_failed_before_it_got_stuck_is_stuck() {
    listen();
    let remote = remote();
    for is_batch in [false, true] {
        let mut channel = channel();
        let pool = BufferPool::new(channel.pd(), 64, 2).unwrap();
        let mut into = region(&channel);
        let ticket = if is_batch {
            let read = || OwnedRequest::from(Incoming::read(pool.take().unwrap(), remote));
            channel.start_batch(vec![read(), read()]).unwrap()
        } else {
            let (one, two) = into.scatter_element(..).unwrap().split_at_mut(32).unwrap();
            let mut chain = RequestChain::reads(2, 1).unwrap();
            chain.set(0, one, &remote).unwrap();
            chain.set(1, two, &remote).unwrap();
            // SAFETY: `into` is leaked below, as the outcome requires.
            unsafe { channel.post_chain_unpolled(&mut chain, ..) }.unwrap()
        };
        // The first request fails, and the device still has the second.
        ends(posted()[0], IBV_WC_REM_ACCESS_ERR);
        refuse("ibv_destroy_qp", 1);
        channel.engine_mut().destroy_all(DownReason::Closed);
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert_eq!(ended.result.unwrap_err(), TransportError::Stuck);
        drop((ended.buffer, ended.batch, channel));
        assert_eq!(pool.available(), if is_batch { 0 } else { 2 });
        let _the_device_s = std::mem::ManuallyDrop::new(into);
        forget_requests();
        forget_the_past();
    }
}

#[test]
fn operation_that_completed_before_its_queue_pair_got_stuck_is_a_success() {
    listen();
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let ticket = channel.start_send(pool.take().unwrap()).unwrap();
    succeeds(posted()[0]);
    refuse("ibv_destroy_qp", 1);
    channel.engine_mut().destroy_all(DownReason::Closed);
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert!(ended.result.is_ok() && ended.buffer.is_some());
    drop(ended.buffer);
    assert_eq!(pool.available(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no other process")]
fn without_a_logger_the_abort_is_explained_on_stderr() {
    let what = "a call";
    if env::var(ROLE).is_ok() {
        let (_, borrow) = BORROWS.iter().find(|(name, _)| *name == what).unwrap();
        borrow();
        std::process::exit(3);
    }
    let name = "stuck::without_a_logger_the_abort_is_explained_on_stderr";
    let output = again(name, what);
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{words}");
    assert!(!words.contains("ERROR: "), "there is a logger: {words}");
    let line = "verbs-channel: cannot take borrowed buffers back";
    assert!(words.contains(line), "{words}");
}

/// Ways to have borrowed buffers in flight when the queue pair cannot be destroyed.
const BORROWS: [(&str, fn()); 7] = [
    ("work that was left to its scope", || {
        let mut channel = channel();
        let from = region(&channel);
        refuse("ibv_destroy_qp", 1);
        let _result = channel.scope(|scope| {
            let element = from.gather_element(..).unwrap();
            drop(scope.post_send(element).unwrap());
            Err::<(), _>(())
        });
    }),
    ("a logger that takes the outcome", || {
        let mut channel = channel();
        let mut into = region(&channel);
        refuse("ibv_destroy_qp", 1);
        let _result = channel.scope(|scope| {
            let (one, two) = into.scatter_element(..).unwrap().split_at_mut(32).unwrap();
            let first = scope.lend(Incoming::receive(one)).unwrap();
            let second = Cell::new(Some(scope.lend(Incoming::receive(two)).unwrap()));
            let takes = || {
                if let Some(second) = second.take() {
                    let _ended = second.spin_poll();
                }
            };
            reached(&takes, || {
                does(reach);
                with(|library| library.poll_answer = Some(-2));
                let _ended = first.spin_poll();
            });
            Ok::<_, ()>(())
        });
    }),
    ("a call", || {
        let mut channel = channel();
        let mut into = region(&channel);
        refuse("ibv_destroy_qp", 1);
        let _result = channel
            .run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(Duration::ZERO));
    }),
    ("a scope", || {
        let mut channel = channel();
        let mut into = region(&channel);
        refuse("ibv_destroy_qp", 1);
        let _result = channel.scope(|scope| {
            drop(
                scope
                    .post_receive(into.scatter_element(..).unwrap())
                    .unwrap(),
            );
            Err::<(), _>(())
        });
    }),
    ("a scope that panics", || {
        let mut channel = channel();
        let from = region(&channel);
        refuse("ibv_destroy_qp", 1);
        let _result = channel.scope(|scope| {
            drop(
                scope
                    .lend(Outgoing::send(from.gather_element(..).unwrap()))
                    .unwrap(),
            );
            if scope.poll() == 0 {
                panic!("on purpose");
            }
            Ok::<_, ()>(())
        });
    }),
    ("a queue that cannot be polled", || {
        let mut channel = channel();
        let from = region(&channel);
        refuse("ibv_destroy_qp", 1);
        with(|library| library.poll_answer = Some(-2));
        let _result = channel.send(from.gather_element(..).unwrap());
    }),
    ("a batch refused half-way", || {
        let mut channel = channel();
        let from = region(&channel);
        refuse("ibv_destroy_qp", 1);
        with(|library| library.refuse_post = Some((1, libc::ENOMEM, true)));
        let _result = channel.run_batch([Outgoing::send(from.gather_element(..).unwrap()); 2]);
    }),
];

#[test]
#[cfg_attr(miri, ignore = "Miri starts no other process")]
fn with_borrowed_buffers_the_process_aborts() {
    if let Ok(role) = env::var(ROLE) {
        listen();
        let (_, borrow) = BORROWS.iter().find(|(name, _)| *name == role).unwrap();
        borrow();
        // Not reached: the borrow would have ended while the device may still write.
        std::process::exit(3);
    }
    for (name, _) in BORROWS {
        let output = again("stuck::with_borrowed_buffers_the_process_aborts", name);
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGABRT),
            "{name}: {words}"
        );
        let message = "verbs-channel: cannot take borrowed buffers back from the device";
        assert!(words.contains(message), "{name}: {words}");
        assert!(
            !words.contains("ERROR: "),
            "{name}: the program's own code runs while the device has the buffers: {words}"
        );
    }
}

/// Runs a test in a process of its own.
fn again(test: &str, role: &str) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env("RUST_BACKTRACE", "0");
    let (done, waits) = mpsc::channel();
    thread::spawn(move || done.send(command.output().unwrap()));
    waits
        .recv_timeout(Duration::from_secs(20))
        .expect("it ends by itself")
}
