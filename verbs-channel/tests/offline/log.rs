//! What is said to the log, by thread.

use std::cell::RefCell;
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("{}: {}", record.level(), record.args());
        // For whoever looks at this process from outside.
        eprintln!("{line}");
        LINES.with_borrow_mut(|lines| lines.push(line));
    }

    fn flush(&self) {}
}

/// Begins to listen.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Lines).unwrap();
        log::set_max_level(LevelFilter::Trace);
    });
}

/// What this thread has said so far.
pub(crate) fn lines() -> Vec<String> {
    LINES.with_borrow(Clone::clone)
}
