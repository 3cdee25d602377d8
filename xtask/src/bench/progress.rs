//! How far a part is: one line on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often there is a new line where there is no terminal.
const PAUSE: Duration = Duration::from_secs(15);

/// The steps of one part.
#[derive(Debug)]
pub(super) struct Progress {
    part: &'static str,
    steps: usize,
    done: usize,
    start: Instant,
    printed: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(part: &'static str, steps: usize) -> Self {
        Self {
            part,
            steps,
            done: 0,
            start: Instant::now(),
            printed: None,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// The next step begins.
    pub(super) fn next(&mut self, step: &str) {
        self.done += 1;
        let is_due = self.printed.is_none_or(|last| last.elapsed() >= PAUSE);
        if self.is_terminal {
            self.show(&format!("\r\x1b[K{}", self.line(step)));
        } else if is_due {
            self.show(&format!("{}\n", self.line(step)));
        }
    }

    fn line(&self, step: &str) -> String {
        let Self {
            part, steps, done, ..
        } = self;
        let seconds = self.start.elapsed().as_secs();
        format!("{part}: {done} of {steps}, {step} ({seconds} s)")
    }

    fn show(&mut self, text: &str) {
        self.printed = Some(Instant::now());
        let mut stderr = io::stderr().lock();
        // It is only for people who wait.
        drop(
            stderr
                .write_all(text.as_bytes())
                .and_then(|()| stderr.flush()),
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && self.printed.is_some() {
            self.show("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn the_line_says_how_far_it_is() {
        let mut progress = Progress::new("pairs", 9);
        progress.next("first");
        assert_eq!(progress.line("x y"), "pairs: 1 of 9, x y (0 s)");
    }
}
