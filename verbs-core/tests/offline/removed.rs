//! A device that is removed: memory is freed if sysfs shows that the kernel has destroyed all objects.

use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, process};

use fake_libibverbs::{ladder, with};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{AccessFlags, CompletionQueue, QueuePair};

const NO_TIME: Duration = Duration::ZERO;

/// A sysfs for this thread's library, with one device.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(test: &str) -> Self {
        let root = env::temp_dir().join(format!("verbs-core-{test}-{}", process::id()));
        fs::create_dir_all(device(&root)).unwrap();
        with(|library| library.sysfs.clone_from(&root));
        Self(root)
    }

    fn remove(&self) {
        fs::remove_dir(device(&self.0)).unwrap();
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn device(root: &Path) -> PathBuf {
    root.join("class/infiniband/fake0")
}

fn fails(verb: &'static str, errno: i32) {
    with(|library| library.refuse.push((verb, errno)));
}

#[test]
#[cfg_attr(miri, ignore = "it reads directories")]
fn memory_that_cannot_be_deregistered_is_freed_if_the_device_is_removed() {
    for (errno, is_removed) in [(libc::EIO, true), (libc::EIO, false), (libc::EBUSY, true)] {
        let sysfs = Sysfs::new("memory");
        let (_context, pd, _cq) = ladder();
        let owners = [Arc::new([0_u8; 64]), Arc::new([0_u8; 64])];
        let [one, two] = owners.each_ref().map(|owner| {
            let start = NonNull::new(owner.as_ptr().cast_mut()).unwrap();
            // SAFETY: the owner keeps the bytes, and nothing writes to them.
            unsafe { pd.register_raw(start, 64, AccessFlags::empty(), Arc::clone(owner)) }.unwrap()
        });
        if is_removed {
            sysfs.remove();
        }
        let is_freed = is_removed && errno == libc::EIO;
        fails("ibv_dereg_mr", errno);
        drop(one);
        fails("ibv_dereg_mr", errno);
        assert_eq!(two.dereg().is_ok(), is_freed);
        let counts = owners.each_ref().map(Arc::strong_count);
        assert_eq!(counts, if is_freed { [1; 2] } else { [2; 2] });
    }
}

#[test]
#[cfg_attr(miri, ignore = "it reads directories")]
fn objects_of_a_removed_device_have_been_destroyed() {
    let sysfs = Sysfs::new("objects");
    let (context, pd, cq) = ladder();
    let queue_pair = || QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let shared = || SharedReceiveQueue::create(&pd, 4).unwrap();
    let (before, after, srq) = (queue_pair(), queue_pair(), shared());
    fails("ibv_destroy_qp", libc::EIO);
    assert_eq!(before.close().unwrap_err().errno(), Some(libc::EIO));
    assert!(!context.is_removed() && !context.wait_removed(NO_TIME));
    sysfs.remove();
    assert!(context.is_removed() && context.wait_removed(NO_TIME));
    fails("ibv_destroy_qp", libc::EIO);
    after.close().unwrap();
    fails("ibv_destroy_srq", libc::EIO);
    srq.close().unwrap();
    // One that was opened where there is no sysfs.
    let (context, pd, _cq) = ladder();
    let cq = CompletionQueue::create(&context, 4).unwrap();
    let unknown = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    fails("ibv_destroy_qp", libc::EIO);
    assert!(unknown.close().is_err() && !context.is_removed());
}
