//! Calls that block until they are released, and a watchdog over the tests that release them.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake_libibverbs::{assert_all_is_well, ladder, share};
use verbs_async::verbs_channel::Channel;
use verbs_async::{AsyncGroup, CqEvents};
use verbs_core::verbs_sys::{IBV_QPS_INIT, IBV_QPS_RTR, ibv_qp_state};

use crate::bench::Held;

/// Far longer than any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

/// The next handshakes block in their change to RTR.
pub(crate) fn held_handshakes(count: usize) -> Held {
    held(IBV_QPS_RTR, count)
}

/// The next queue pairs that are prepared block in their change to INIT.
pub(crate) fn held_preparations(count: usize) -> Held {
    held(IBV_QPS_INIT, count)
}

fn held(to: ibv_qp_state, count: usize) -> Held {
    let begun = AtomicUsize::new(0);
    Held::when(move |_verb, state| {
        state == Some(to) && begun.fetch_add(1, Ordering::Relaxed) < count
    })
}

/// Waits until this number of calls have begun, while other tasks run.
pub(crate) async fn have_begun(held: &Held, count: usize) {
    for _ in 0..count {
        while !held.has_begun() {
            tokio::task::yield_now().await;
        }
    }
}

/// A group of at most `max_channels` on the first device.
pub(crate) fn group(events: &CqEvents, max_channels: u32) -> AsyncGroup {
    let pd = events.channel().context().alloc_pd().unwrap();
    AsyncGroup::new(Channel::builder(&pd), max_channels, events).unwrap()
}

/// A completion channel of the first device, watched by the crate's thread.
pub(crate) fn events() -> CqEvents {
    let (context, ..) = ladder();
    CqEvents::create_thread(&context).unwrap()
}

/// Runs a test that shares its library, and checks that nothing is left: also on other threads.
pub(crate) fn alone(test: impl FnOnce()) {
    let _shared = share();
    test();
    assert_all_is_well();
}

/// The same on a tokio runtime of this thread alone; the process is aborted if it hangs.
pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    alone(|| verbs_harness::bounded(LONG, || runtime.block_on(test)));
}
