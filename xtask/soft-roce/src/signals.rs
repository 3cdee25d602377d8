//! Signals while a job runs: passed on to it. At all other times they do what they always do.

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use crate::error::{Context as _, Error};

/// Signals that are caught for as long as this lives.
#[derive(Debug)]
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

/// Whether no job runs, so that a signal does what it does by default.
static IDLE: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Keeps what a signal does by default while none is caught. To be called once, by a program that
/// does not catch any otherwise: a handler, once installed, stays, and would swallow them.
pub(crate) fn stay_default() -> Result<(), Error> {
    let idle = Arc::new(AtomicBool::new(true));
    for signal in caught(&[SIGINT, SIGTERM, SIGHUP]) {
        let registered = register_conditional_default(signal, Arc::clone(&idle));
        let _stays: SigId = registered.context(|| "cannot prepare for signals")?;
    }
    drop(IDLE.set(idle));
    Ok(())
}

/// Those of `signals` to catch: all, but SIGHUP stays ignored for a program that `nohup` has started.
pub(crate) fn caught(signals: &[i32]) -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = mask.unwrap_or_default();
    let stays = |signal: i32| signal == SIGHUP && ignored & (1 << (SIGHUP - 1)) != 0;
    let caught = signals.iter().copied();
    caught.filter(|signal| !stays(*signal)).collect()
}

impl Signals {
    pub(crate) fn catch(signals: &[i32]) -> Result<Self, Error> {
        let what = || "cannot catch signals";
        let (read, write) = UnixStream::pair().context(what)?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, caught(signals));
        let delivery = delivery.context(what)?;
        set_idle(false);
        Ok(Self { delivery })
    }

    /// Readable when a signal has come.
    pub(crate) fn pipe(&self) -> &UnixStream {
        self.delivery.get_read()
    }

    /// The signals that have come.
    pub(crate) fn pending(&mut self) -> Vec<i32> {
        self.delivery.pending().collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        set_idle(true);
    }
}

fn set_idle(idle: bool) {
    if let Some(flag) = IDLE.get() {
        flag.store(idle, Ordering::SeqCst);
    }
}
