//! A line on the terminal that a silent step is at work, and for how long.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A step that ends sooner shows no time.
const LONG: Duration = Duration::from_secs(2);

/// How often the time is shown.
const TICK: Duration = Duration::from_millis(250);

/// What clears a line.
const CLEAR: &str = "\r\x1b[K";

/// Shows the time of a step until it is dropped, on stderr if that is a terminal.
#[derive(Debug)]
pub(crate) struct Clock {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    is_shown: bool,
}

impl Clock {
    /// Starts the clock of a step.
    pub(crate) fn start() -> Self {
        let stderr = io::stderr();
        if stderr.is_terminal() {
            Self::on(stderr, LONG)
        } else {
            Self {
                shared: Arc::default(),
                thread: None,
            }
        }
    }

    /// Shows the time on `output` once the step has lasted so long.
    fn on(mut output: impl Write + Send + 'static, long: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let (start, theirs) = (Instant::now(), Arc::clone(&shared));
        let thread = thread::spawn(move || {
            let mut state = theirs.lock();
            while !state.has_ended {
                let elapsed = start.elapsed();
                if elapsed >= long {
                    // A terminal that has gone shows nothing.
                    drop(write!(output, "\r    … {} s", elapsed.as_secs()));
                    drop(output.flush());
                    state.is_shown = true;
                }
                let waited = theirs.changed.wait_timeout(state, TICK);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Prints a line of the step, in place of the time.
    pub(crate) fn print(&self, line: &str) {
        let mut state = self.shared.lock();
        if state.is_shown {
            state.is_shown = false;
            eprint!("{CLEAR}");
        }
        println!("{line}");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.has_ended = true;
        if state.is_shown {
            eprint!("{CLEAR}");
        }
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It shows the time, and nothing depends on it.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    struct Lines(Sender<String>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.send(text).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn clock(long: Duration) -> (Clock, Receiver<String>) {
        let (sender, shown) = channel();
        (Clock::on(Lines(sender), long), shown)
    }

    #[test]
    fn long_step_shows_its_seconds_until_it_ends() {
        let (clock, shown) = clock(Duration::ZERO);
        let mut text = String::new();
        while !text.contains("… 0 s") {
            text += &shown.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        assert!(text.starts_with('\r'), "{text:?}");
        drop(clock);
        let _shown_before_its_end = shown.try_iter().count();
        assert!(shown.recv().is_err(), "the clock has stopped");
    }

    #[test]
    fn short_step_shows_nothing() {
        let (clock, shown) = clock(Duration::from_secs(3600));
        drop(clock);
        assert!(shown.recv().is_err());
    }
}
