//! Log lines; a panic of the logger must go no further.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use log::Level;

/// Logs an error.
pub(crate) fn error(line: fmt::Arguments<'_>) {
    log(Level::Error, line);
}

/// Logs a line.
///
/// A logger is the program's own code, and it may panic. That panic ends here: one that escapes from
/// a `Drop` while another panic unwinds aborts the process, and one that escapes at any other time
/// leaves the caller in the middle of what it ends. The panic hook has reported it by then.
pub(crate) fn log(level: Level, line: fmt::Arguments<'_>) {
    let log = catch_unwind(AssertUnwindSafe(|| log::log!(level, "{line}")));
    if let Err(panic) = log {
        #[expect(clippy::mem_forget, reason = "dropping it may panic once more")]
        std::mem::forget(panic);
    }
}
