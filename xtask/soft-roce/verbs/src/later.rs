//! Lines for the log of this thread, while it has a network locked. A logger is code of the program, and may call verbs.

use std::cell::RefCell;
use std::fmt::Display;
use std::mem;

use log::Level;

thread_local! {
    static LINES: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a line until [`log`].
pub(crate) fn line(level: Level, text: impl Display) {
    // Whether the logger wants it is asked later, too.
    if level <= log::max_level() {
        // A thread that ends has no lines any more.
        let _kept = LINES.try_with(|lines| lines.borrow_mut().push((level, text.to_string())));
    }
}

/// Logs the lines. The thread has no network locked.
pub(crate) fn log() {
    // One that the logger's own calls add is logged by these.
    let lines = LINES.try_with(|lines| mem::take(&mut *lines.borrow_mut()));
    for (level, text) in lines.unwrap_or_default() {
        log::log!(level, "{text}");
    }
}
