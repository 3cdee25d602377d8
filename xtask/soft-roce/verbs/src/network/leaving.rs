//! Answers that wait when the process ends: other cards would have sent them.
#![expect(unsafe_code, reason = "C calls a function at the end of a process")]

use std::sync::{Arc, OnceLock};
use std::thread;

use super::Network;

static NETWORK: OnceLock<Arc<Network>> = OnceLock::new();

/// Has what waits on the network sent when the process ends.
pub(super) fn at_exit(network: &Arc<Network>) {
    if NETWORK.set(Arc::clone(network)).is_ok() {
        // SAFETY: the function takes no lock for good, and needs nothing of the threads that have ended.
        let _is_full = unsafe { libc::atexit(send) };
    }
}

extern "C" fn send() {
    let Some(network) = NETWORK.get() else { return };
    // Another thread has the lock for a moment; this one for good, if a signal's handler ends the process.
    for _ in 0..1000 {
        if let Ok(mut state) = network.state.try_lock() {
            state.send_answers();
            return;
        }
        thread::yield_now();
    }
}
