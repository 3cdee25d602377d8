//! The shared library, in the place of the system's.
#![expect(unsafe_code, reason = "the linker knows a function by its name")]

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{LevelFilter, Log, Metadata, Record};

static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// The initializer of the shared library, by an option of its linker.
#[unsafe(no_mangle)]
extern "C" fn soft_verbs_is_shared() {
    IS_SHARED.store(true, Ordering::Relaxed);
    // This library has a log of its own, which no program can set.
    if log::set_logger(&Stderr).is_ok() {
        let level = env::var("SOFT_VERBS_LOG").ok();
        let level = level.and_then(|level| level.parse().ok());
        log::set_max_level(level.unwrap_or(LevelFilter::Error));
    }
}

/// Whether programs that were built without this library are using it: each is alone on its network, unless that is UDP.
pub(crate) fn is_shared() -> bool {
    IS_SHARED.load(Ordering::Relaxed)
}

/// Writes what is logged to the standard error.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    #[expect(clippy::print_stderr, reason = "the log of a library of C's")]
    fn log(&self, record: &Record<'_>) {
        eprintln!("libibverbs (soft-verbs): {}", record.args());
    }

    fn flush(&self) {}
}
