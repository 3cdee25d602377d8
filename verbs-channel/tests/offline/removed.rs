//! A device that is removed: every call fails with `EIO`, and some time after that its directory is gone from sysfs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use fake_libibverbs::with;
use verbs_channel::error::CloseError;
use verbs_channel::{
    Channel, DownReason, Error, Incoming, Outgoing, OwnedRequest, Rails, Transfer, TransportError,
};
use verbs_harness::logged::{lines, listen};

use crate::fake_device::{
    DRAIN, LONG, bounded, called, channel_with, group_of, pd, refuse, region,
};
use crate::shared_receives::{Shared, connected};

/// The directory of the devices, in one that is removed with it.
struct Sysfs(PathBuf);

impl Sysfs {
    /// The sysfs of this thread's library, with its device.
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = env::temp_dir().join(format!("verbs-removed-{}-{number}", process::id()));
        let class = root.join("class/infiniband");
        fs::create_dir_all(class.join("fake0")).unwrap();
        with(|library| library.sysfs = root);
        Self(class)
    }

    fn remove(&self) {
        fs::remove_dir(self.0.join("fake0")).unwrap();
    }

    /// The directory of the class is elsewhere from now on.
    fn unmount(&self) {
        fs::rename(&self.0, self.0.with_file_name("before")).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.0.join(from), self.0.join(to)).unwrap();
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let root = self.0.ancestors().nth(2).unwrap();
        fs::remove_dir_all(root).unwrap();
    }
}

/// From now on every call of the device fails.
fn fails() {
    for verb in [
        "ibv_modify_qp",
        "ibv_query_qp",
        "ibv_destroy_qp",
        "ibv_dereg_mr",
    ] {
        refuse(verb, 20);
    }
}

/// Ways to have a borrowed buffer in flight as the device is removed.
const BORROWS: [fn(&mut Channel) -> Option<TransportError>; 5] = [
    |channel| {
        let mut into = region(channel);
        let ended = channel
            .run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(Duration::ZERO));
        ended.err()
    },
    |channel| {
        // Until a query finds that the device does not answer.
        let mut into = region(channel);
        let ended = channel.receive(into.scatter_element(..).unwrap());
        ended.err()
    },
    |channel| {
        let mut into = region(channel);
        let ended = channel.scope(|scope| {
            let (ended, _element) = scope
                .lend(Incoming::receive(into.scatter_element(..).unwrap()))?
                .spin_poll();
            Ok::<_, Error>(ended.unwrap_err())
        });
        ended.ok()
    },
    |channel| {
        let from = region(channel);
        with(|library| library.poll_answer = Some(-libc::EIO));
        channel.send(from.gather_element(..).unwrap()).err()
    },
    |channel| {
        // The device may have got a part of it.
        let from = region(channel);
        with(|library| library.refuse_post = Some((0, libc::EIO, false)));
        let ended = channel.run(Outgoing::send(from.gather_element(..).unwrap()));
        assert!(
            matches!(ended, Err(TransportError::Rejected(_))),
            "{ended:?}"
        );
        channel.down_reason().map(TransportError::Aborted)
    },
];

fn assert_nothing_is_leaked() {
    let lines = lines();
    let leaked = lines
        .iter()
        .find(|line| line.contains("leaked 1 buffers") || line.contains("bytes"));
    assert_eq!(leaked, None, "{lines:?}");
}

#[test]
fn borrowed_buffer_of_a_device_that_is_or_will_be_removed_comes_back_as_aborted() {
    listen();
    for (way, late) in (0..BORROWS.len()).flat_map(|way| [(way, 0), (way, 100)]) {
        let late = Duration::from_millis(late);
        let sysfs = Sysfs::new();
        let mut channel = channel_with(LONG);
        fails();
        let start = Instant::now();
        let ended = thread::scope(|scope| {
            let removes = || {
                thread::sleep(late);
                sysfs.remove();
            };
            match late.is_zero() {
                true => removes(),
                false => drop(scope.spawn(removes)),
            }
            bounded(|| BORROWS[way](&mut channel))
        });
        assert!(
            matches!(ended, Some(TransportError::Aborted(_))),
            "{way}: {ended:?}"
        );
        assert!(start.elapsed() >= late, "the kernel had not destroyed it");
        assert!(called("ibv_destroy_qp"));
        drop(channel);
        with(|library| library.refuse.clear());
    }
    assert_nothing_is_leaked();
}

#[test]
fn device_that_is_back_under_its_name_was_removed() {
    let sysfs = Sysfs::new();
    let mut channel = channel_with(LONG);
    let ticket = channel.start_receive(region(&channel)).unwrap();
    fails();
    // Made before the other is gone, so that it has an inode of its own.
    fs::create_dir(sysfs.0.join("new")).unwrap();
    sysfs.remove();
    sysfs.rename("new", "fake0");
    bounded(|| channel.abort());
    let ended = channel.poll(ticket).unwrap().unwrap();
    let aborted = TransportError::Aborted(DownReason::Closed);
    assert_eq!(ended.result.unwrap_err(), aborted);
    assert!(ended.buffer.is_some());
    assert!(matches!(channel.close(), Ok(()) | Err(CloseError::Down(_))));
}

#[test]
fn device_that_is_renamed_or_unknown_was_not_removed() {
    listen();
    for way in 0..4 {
        let sysfs = Sysfs::new();
        let mut channel = channel_with(DRAIN);
        let ticket = channel.start_receive(region(&channel)).unwrap();
        fails();
        match way {
            // The driver's own errors.
            0 => {}
            1 => sysfs.rename("fake0", "fake7"),
            // The directory of another namespace.
            2 => {
                sysfs.unmount();
                fs::create_dir(&sysfs.0).unwrap();
            }
            _ => sysfs.unmount(),
        }
        bounded(|| channel.abort());
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert_eq!(ended.result.unwrap_err(), TransportError::Stuck, "{way}");
        assert!(ended.buffer.is_none());
        assert_eq!(channel.close(), Err(CloseError::Stuck));
        with(|library| library.refuse.clear());
    }
}

/// Their devices are removed when the last of them has been asked.
#[test]
fn rails_whose_devices_are_removed_are_all_ended_before_one_is_waited_for() {
    let sysfs = Sysfs::new();
    let mut rails = Rails::new([(); 3].map(|()| channel_with(DRAIN)));
    let mut transfer = Transfer::default();
    for channel in rails.channels() {
        let into = OwnedRequest::receive(region(channel));
        transfer.add(channel.id(), into);
    }
    refuse("ibv_destroy_qp", 3);
    let (directory, asked) = (sysfs.0.join("fake0"), AtomicUsize::new(0));
    with(|library| {
        library.before = Some(Arc::new(move |verb, _| {
            if verb == "ibv_destroy_qp" && asked.fetch_add(1, Ordering::Relaxed) == 2 {
                fs::remove_dir(&directory).unwrap();
            }
        }));
    });
    let ended = bounded(|| rails.transfer(&mut transfer, Some(Instant::now() + DRAIN)));
    with(|library| library.before = None);
    assert!(!ended.unwrap_err().is_stuck());
    assert!(transfer.drain().all(|outcome| outcome.buffer.is_some()));
}

#[test]
fn dropped_channel_of_a_removed_device_frees_its_buffers_without_a_wait() {
    listen();
    for is_removed in [true, false] {
        let sysfs = Sysfs::new();
        let mut channel = channel_with(LONG);
        let _ticket = channel.start_receive(region(&channel)).unwrap();
        fails();
        if is_removed {
            sysfs.remove();
        }
        bounded(|| drop(channel));
        let is_leaked = lines().iter().any(|line| line.contains("leaked 1 buffers"));
        assert_eq!(is_leaked, !is_removed);
        with(|library| library.refuse.clear());
    }
}

#[test]
fn queue_pair_that_is_destroyed_without_its_engine_waits_for_the_removal() {
    for is_removed in [true, false] {
        let sysfs = Sysfs::new();
        let mut channel = channel_with(DRAIN);
        let ticket = channel.start_receive(region(&channel)).unwrap();
        let id = channel.id();
        let engine = channel.engine_mut();
        engine.defer_closing();
        engine.destroy(id, DownReason::Closed).unwrap();
        let closing = engine.next_closing().unwrap();
        fails();
        let closed = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(DRAIN / 10);
                if is_removed {
                    sysfs.remove();
                }
            });
            bounded(|| closing.destroy())
        });
        engine.finish_close(closed).unwrap();
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert_eq!(ended.buffer.is_some(), is_removed);
        with(|library| library.refuse.clear());
    }
}

#[test]
fn layer_that_checks_its_peers_finds_the_removal() {
    for is_removed in [true, false] {
        let sysfs = Sysfs::new();
        let mut channel = channel_with(DRAIN);
        let ticket = channel.start_receive(region(&channel)).unwrap();
        let (id, now) = (channel.id(), Instant::now());
        fails();
        let engine = channel.engine_mut();
        engine.destroy(id, DownReason::Closed).unwrap();
        engine.check_peers(now);
        assert!(
            engine.take(ticket).unwrap().is_none(),
            "the device may have it"
        );
        assert!(engine.destroyed(id).is_none());
        if is_removed {
            sysfs.remove();
        } else {
            engine.check_peers(now + DRAIN - Duration::from_millis(1));
            assert!(engine.destroyed(id).is_none());
        }
        engine.check_peers(now + DRAIN);
        let ended = engine.take(ticket).unwrap().unwrap();
        assert_eq!(ended.buffer.is_some(), is_removed);
        assert_eq!(engine.destroyed(id).unwrap().is_ok(), is_removed);
        with(|library| library.refuse.clear());
    }
}

#[test]
fn queue_pairs_that_end_together_wait_for_a_removal_once() {
    let _sysfs = Sysfs::new();
    let pd = pd();
    let (mut group, ids) = group_of(Channel::builder(&pd).drain_timeout(DRAIN), 8);
    fails();
    let engine = group.engine_mut();
    engine.defer_closing();
    let mut end = |at: usize| {
        engine.destroy(ids[at], DownReason::Closed).unwrap();
        engine.next_closing().unwrap()
    };
    let start = Instant::now();
    let first = end(0);
    let rest = [1, 2, 3, 4, 5].map(&mut end);
    drop(first.destroy());
    for closing in rest {
        drop(closing.destroy());
    }
    let waited = start.elapsed();
    assert!(waited >= DRAIN && waited < 3 * DRAIN, "{waited:?}");
    // None is left that it could end with.
    let start = Instant::now();
    drop(end(6).destroy());
    assert!(start.elapsed() >= DRAIN);
    with(|library| library.refuse.clear());
}

#[test]
fn channel_without_buffers_is_not_reported_as_leaked_buffers() {
    listen();
    for is_removed in [true, false] {
        let sysfs = Sysfs::new();
        let mut shared = Shared::new(4, 4, 1);
        let (member, _) = connected(&shared.group);
        fails();
        if is_removed {
            sysfs.remove();
        }
        let before = lines().len();
        drop(member);
        assert!(shared.group.next_message().is_none());
        let leaked: Vec<_> = lines().split_off(before);
        let lines = format!("{leaked:?}");
        assert_eq!(leaked.is_empty(), is_removed, "{lines}");
        assert!(!lines.contains("leaked 0 buffers"), "{lines}");
        with(|library| library.refuse.clear());
        drop(shared);
    }
}

#[test]
fn receives_without_memory_are_not_reported_as_leaked_buffers() {
    listen();
    let group = Channel::builder(&pd()).shared_immediates(4).group(1);
    refuse("ibv_destroy_srq", 1);
    drop(group.unwrap());
    let leaked = lines()
        .into_iter()
        .find(|line| line.contains("ibv_destroy_srq"));
    assert!(leaked.unwrap().contains("leaked an object without buffers"));
}
