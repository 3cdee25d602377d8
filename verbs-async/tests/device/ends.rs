//! Both ends of a connection in this process, on each notifier.

use std::future::Future;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use verbs_async::verbs_channel::verbs_core::{Context, MemoryRegion, ProtectionDomain};
use verbs_async::verbs_channel::{Channel, OwnedBuffer};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};

use crate::harness;

/// Who tells that completions are there, and what runs the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tokio,
    AsyncIo,
    Thread,
}

pub(crate) const WAYS: [Way; 3] = [Way::Tokio, Way::AsyncIo, Way::Thread];

/// Longer than anything takes that ends at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a future on the way's executor, with a watchdog: what hangs is a failure.
pub(crate) fn run<T: Send + 'static>(
    way: Way,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let (done, ended) = mpsc::channel();
    let runner = thread::spawn(move || {
        let value = match way {
            Way::Tokio => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap()
                .block_on(future),
            Way::AsyncIo => async_io::block_on(future),
            Way::Thread => pollster::block_on(future),
        };
        drop(done.send(value));
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{way:?}: it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(runner.join().unwrap_err())
        }
    }
}

/// A completion channel on the device under test, watched in this way.
pub(crate) fn events(way: Way, context: &Context) -> CqEvents {
    match way {
        Way::Tokio => CqEvents::create_tokio(context).unwrap(),
        Way::AsyncIo => CqEvents::create_async_io(context).unwrap(),
        Way::Thread => CqEvents::create_thread(context).unwrap(),
    }
}

/// A group of two channels, connected to each other.
pub(crate) fn pair(way: Way) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    let pd = harness::context().alloc_pd().unwrap();
    let events = events(way, pd.context());
    let group = AsyncGroup::new(Channel::builder(&pd), 16, &events).unwrap();
    let (left, right) = group.loopback().unwrap();
    (group, left, right)
}

/// A registered buffer with these bytes.
pub(crate) fn buffer(pd: &ProtectionDomain, bytes: &[u8]) -> OwnedBuffer {
    let region: MemoryRegion<Vec<u8>> = pd.reg_mr(bytes.to_vec()).unwrap();
    region.into()
}
