//! Calls that block until they are released, and a watchdog over the tests that release them.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fake_libibverbs::{is_alive, ladder, with};
use verbs_async::verbs_channel::Channel;
use verbs_async::{AsyncGroup, CqEvents};
use verbs_core::verbs_sys::{IBV_QPS_INIT, IBV_QPS_RTR, ibv_qp_state};

/// Far longer than any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

/// Holds up calls of one kind.
#[derive(Clone)]
pub(crate) struct Gate {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    // How many more calls are held up.
    holds: usize,
    // How many calls are held up, and how many of them are released.
    held: usize,
    released: usize,
}

impl Gate {
    /// The next `holds` handshakes block in their change to RTR.
    pub(crate) fn handshakes(holds: usize) -> Self {
        Self::new(holds, IBV_QPS_RTR)
    }

    /// The next `holds` queue pairs that are prepared block in their change to INIT.
    pub(crate) fn preparations(holds: usize) -> Self {
        Self::new(holds, IBV_QPS_INIT)
    }

    fn new(holds: usize, asked_for: ibv_qp_state) -> Self {
        let state = State {
            holds,
            ..State::default()
        };
        let gate = Self {
            shared: Arc::new((Mutex::new(state), Condvar::new())),
        };
        let own = gate.clone();
        let before = move |verb: &str, state| {
            if verb == "ibv_modify_qp" && state == Some(asked_for) {
                own.pass();
            }
        };
        with(|library| library.before = Some(Arc::new(before)));
        gate
    }

    fn pass(&self) {
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap();
        if state.holds == 0 {
            return;
        }
        state.holds -= 1;
        state.held += 1;
        let number = state.held;
        while state.released < number {
            state = changed.wait(state).unwrap();
        }
    }

    /// The number of calls that were held up so far.
    pub(crate) fn held(&self) -> usize {
        self.shared.0.lock().unwrap().held
    }

    /// Releases all calls that are held up, and later ones.
    pub(crate) fn release(&self) {
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap();
        state.released = usize::MAX;
        changed.notify_all();
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

/// Runs a future on a tokio runtime of this thread alone; the process is aborted if it hangs.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    verbs_harness::bounded(LONG, || runtime.block_on(future))
}

/// Waits until everything was ended, on other threads too.
pub(crate) fn wait_for_the_end() {
    let is_over = || {
        let is_closed = with(|library| {
            let calls = |verb| library.calls.iter().filter(|call| **call == verb).count();
            calls("ibv_open_device") == calls("ibv_close_device")
        });
        // A context frees its list of devices after it was closed.
        is_closed && !is_alive("ibv_get_device_list")
    };
    block_on(async {
        while !is_over() {
            tokio::task::yield_now().await;
        }
    });
}
