//! A logger that records the lines of each thread.

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
        // Tests that start this process read its stderr.
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

/// A panic payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(thread::panicking(), "the payload of the panic panics too");
    }
}

/// Installs the logger.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Lines).unwrap();
        log::set_max_level(LevelFilter::Trace);
    });
}

/// Sets whether this thread's logger panics from now on, after it has recorded the line.
pub fn panics(whether: bool) {
    PANICS.set(whether);
}

/// This thread's logger panics once, with a payload that panics again when it is dropped.
pub fn bombs() {
    BOMBS.set(true);
}

/// This thread's logger calls this function at its next line.
pub fn does(what: impl FnOnce() + 'static) {
    DOES.set(Some(Box::new(what)));
}

/// The lines of this thread so far.
pub fn lines() -> Vec<String> {
    LINES.with_borrow(Clone::clone)
}
