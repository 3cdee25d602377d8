//! A line on the terminal that shows how far a long run is.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often the line is drawn; short runs never draw it.
const REDRAW: Duration = Duration::from_millis(250);

/// The progress of a run, on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    total: u64,
    next: Option<Instant>,
    drawn: bool,
}

impl Progress {
    /// Starts at zero of `total`.
    #[must_use]
    pub fn new(what: &'static str, total: u64) -> Self {
        let shown = io::stderr().is_terminal();
        Self {
            what,
            total,
            next: shown.then(|| Instant::now() + REDRAW),
            drawn: false,
        }
    }

    /// Reports how much is done. It costs little, and nothing without a terminal.
    pub fn at(&mut self, done: u64) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        self.next = Some(now + REDRAW);
        self.drawn = true;
        let Self { what, total, .. } = self;
        let percent = 100 * done / (*total).max(1);
        // It is only for display: a failure is ignored.
        drop(write!(
            io::stderr(),
            "\r{what}: {done} of {total} ({percent} %) "
        ));
    }
}

impl Drop for Progress {
    /// Wipes the line.
    fn drop(&mut self) {
        if self.drawn {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}
