//! Prints the libraries' log to standard error: above all, the objects they had to leak.

use std::io::{self, Write as _};

use log::{LevelFilter, Log, Metadata, Record};

struct ToStderr;

impl Log for ToStderr {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // If it is closed, there is no other place for it.
        drop(writeln!(
            io::stderr(),
            "{}: {}",
            record.target(),
            record.args()
        ));
    }

    fn flush(&self) {}
}

/// Prints errors and warnings that are logged from now on.
pub(crate) fn log_to_stderr() {
    // It fails in a program that has a logger of its own, which gets them.
    drop(log::set_logger(&ToStderr).map(|()| log::set_max_level(LevelFilter::Warn)));
}
