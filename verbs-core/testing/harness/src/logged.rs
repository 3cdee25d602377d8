//! What is said to the log, by thread.

use std::cell::{Cell, RefCell};
use std::sync::Once;
use std::thread;

use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static PANICS: Cell<bool> = const { Cell::new(false) };
    static BOMBS: Cell<bool> = const { Cell::new(false) };
    static DOES: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
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
        if let Some(does) = DOES.take() {
            does();
        }
        if BOMBS.replace(false) {
            std::panic::panic_any(Bomb);
        }
        assert!(!PANICS.get(), "a logger that panics");
    }

    fn flush(&self) {}
}

/// What a panic can leave behind.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(thread::panicking(), "what the panic left panics too");
    }
}

/// Begins to listen.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Lines).unwrap();
        log::set_max_level(LevelFilter::Trace);
    });
}

/// Whether this thread's logger panics from now on, once it has said its line.
pub fn panics(whether: bool) {
    PANICS.set(whether);
}

/// This thread's logger panics once, and what it panics with does so again when it is dropped.
pub fn bombs() {
    BOMBS.set(true);
}

/// This thread's logger does this with its next line.
pub fn does(what: impl FnOnce() + 'static) {
    DOES.set(Some(Box::new(what)));
}

/// What this thread has said so far.
pub fn lines() -> Vec<String> {
    LINES.with_borrow(Clone::clone)
}
