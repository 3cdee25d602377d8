//! Shows that steps are at work: on a terminal in one line, which is replaced in place and goes when
//! they end; elsewhere in a line a minute.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

/// A step that ends sooner is not shown.
const LONG: Duration = Duration::from_secs(2);

/// How often the line on a terminal is replaced.
const TICK: Duration = Duration::from_millis(250);

/// A step that was not announced is, after so long, where there is no terminal.
const UNANNOUNCED: Duration = Duration::from_secs(5);

/// How long nothing is printed before there is a line, where there is no terminal.
const SILENCE: Duration = Duration::from_secs(60);

/// How long the reader of the last line has.
const LAST_LINE: Duration = Duration::from_secs(1);

/// Goes to the start of a line, and clears it.
const CLEAR: &str = "\r\x1b[K";

static SCREEN: Screen = Screen {
    steps: Mutex::new(Steps::NONE),
    changed: Condvar::new(),
};

/// A step, which is shown until this is dropped. Where several are at work, it is the one that began
/// last, as soon as it takes long.
#[derive(Debug)]
#[must_use]
pub struct Progress {
    id: u64,
}

impl Progress {
    /// A step that a line on standard output has announced.
    pub fn of(name: &str) -> Self {
        Self::start(name, Log::Silence)
    }

    /// A step that nothing has announced.
    pub(crate) fn unannounced(name: &str) -> Self {
        Self::start(name, Log::Soon)
    }

    /// A step that is shown on a terminal only: elsewhere standard error belongs to what is run.
    pub(crate) fn on_terminal(name: &str) -> Self {
        Self::start(name, Log::Never)
    }

    fn start(name: &str, log: Log) -> Self {
        let mut steps = SCREEN.lock();
        let (id, is_first) = steps.push(name, log, Instant::now());
        drop(steps);
        if is_first {
            thread::spawn(|| SCREEN.show());
        }
        Self { id }
    }

    /// Sets the step's current action: `3 of 9, NAME`.
    pub fn doing(&self, what: &str) {
        let mut steps = SCREEN.lock();
        steps.doing(|step| step.id == self.id, what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut steps = SCREEN.lock();
        steps.all.retain(|step| step.id != self.id);
        steps.erase();
        drop(steps);
        SCREEN.changed.notify_all();
    }
}

/// Says what the step that began last does now.
pub fn doing(what: &str) {
    SCREEN.lock().doing(|_| true, what);
}

/// Prints a line on standard output, in place of the one that is shown.
#[expect(clippy::print_stdout, reason = "it is for the person at the terminal")]
pub fn print(line: &str) {
    let mut steps = SCREEN.lock();
    steps.printed();
    println!("{line}");
}

/// Prints a line on standard error, in place of the one that is shown.
pub(crate) fn print_error(line: &str) {
    let mut steps = SCREEN.lock();
    steps.printed();
    write(&format!("{line}\n"));
}

/// Prints the last line of this process on standard error. It ends soon also if nobody reads it.
pub fn print_last(line: String) {
    let (written, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        write(&format!("{line}\n"));
        drop(written);
    });
    // Ends at once when the sender has gone.
    let _ = wait.recv_timeout(LAST_LINE);
}

/// Clears the line that is shown: this process ends.
pub(crate) fn erase() {
    SCREEN.lock().erase();
}

/// Shows nothing until this is dropped: another process has the terminal.
#[derive(Debug)]
#[must_use]
pub struct Pause(());

impl Pause {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it changes what is shown")]
    pub fn new() -> Self {
        let mut steps = SCREEN.lock();
        steps.paused += 1;
        steps.erase();
        Self(())
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        SCREEN.lock().paused -= 1;
    }
}

/// Has cargo print its bar, for [`cargo_bar`], as it does on a terminal.
pub(crate) fn ask_for_bar(command: &mut Command) {
    command
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", columns().to_string())
        .env("CARGO_TERM_PROGRESS_TERM_INTEGRATION", "false");
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    if !is_set("CARGO_TERM_COLOR") && !is_set("NO_COLOR") {
        command.env("CARGO_TERM_COLOR", "always");
    }
}

/// The text of cargo's bar: `12/60: syn, quote` in `Building [==> ] 12/60: syn, quote`.
pub(crate) fn cargo_bar(text: &str) -> Option<String> {
    let text = without_escapes(text);
    let (_, what) = text.split_once("] ")?;
    Some(what.trim().to_owned())
}

/// Leaves out what sets colours and moves the cursor.
fn without_escapes(text: &str) -> String {
    let mut rest = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\x1b' => drop(chars.find(char::is_ascii_alphabetic)),
            char if char.is_control() => {}
            char => rest.push(char),
        }
    }
    rest
}

struct Screen {
    steps: Mutex<Steps>,
    changed: Condvar,
}

impl Screen {
    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the steps until there are none.
    fn show(&self) {
        let is_terminal = io::stderr().is_terminal();
        let mut steps = self.lock();
        while !steps.all.is_empty() {
            let now = Instant::now();
            let text = match is_terminal {
                true => steps.on_terminal(now, columns()),
                false => steps.in_log(now),
            };
            if let Some(text) = text {
                steps.is_shown = is_terminal;
                write(&text);
            }
            let waited = self.changed.wait_timeout(steps, TICK);
            steps = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        steps.has_thread = false;
    }
}

/// Running steps, the innermost last.
#[derive(Debug)]
struct Steps {
    all: Vec<Step>,
    next: u64,
    paused: usize,
    has_thread: bool,
    /// Whether there is a line on the terminal.
    is_shown: bool,
    /// When the last line was printed.
    last: Option<Instant>,
}

#[derive(Debug)]
struct Step {
    id: u64,
    name: String,
    doing: String,
    log: Log,
    start: Instant,
}

/// When a step is shown where there is no terminal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Log {
    /// When nothing has been printed for long.
    Silence,
    /// Soon, as nothing has announced it, and then as the others are.
    Soon,
    Never,
}

impl Steps {
    const NONE: Self = Self {
        all: Vec::new(),
        next: 0,
        paused: 0,
        has_thread: false,
        is_shown: false,
        last: None,
    };

    /// Adds a step; returns its number, and whether a thread has to be started to show it.
    fn push(&mut self, name: &str, log: Log, now: Instant) -> (u64, bool) {
        let id = self.next;
        self.next += 1;
        self.all.push(Step {
            id,
            name: name.to_owned(),
            doing: String::new(),
            log,
            start: now,
        });
        if log == Log::Silence {
            self.last = Some(now);
        }
        (id, !std::mem::replace(&mut self.has_thread, true))
    }

    fn doing(&mut self, is_it: impl Fn(&Step) -> bool, what: &str) {
        if let Some(step) = self.all.iter_mut().rev().find(|step| is_it(step)) {
            what.clone_into(&mut step.doing);
        }
    }

    /// A line is about to be printed.
    fn printed(&mut self) {
        self.erase();
        self.last = Some(Instant::now());
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            write(CLEAR);
        }
    }

    /// The line for a terminal of `columns` columns.
    ///
    /// The cursor stays in front of it, so that what another process prints replaces it.
    fn on_terminal(&self, now: Instant, columns: usize) -> Option<String> {
        let mut steps = self.all.iter().rev();
        let step = steps.find(|step| now.duration_since(step.start) >= LONG)?;
        let text: String = step.text(now).chars().take(columns.max(1) - 1).collect();
        (self.paused == 0).then(|| format!("{CLEAR}{text}\r"))
    }

    /// The line that is due where there is no terminal.
    fn in_log(&mut self, now: Instant) -> Option<String> {
        let steps = self.all.iter_mut().rev();
        let mut steps = steps.filter(|step| step.log != Log::Never);
        let step = steps.next().filter(|_| self.paused == 0)?;
        let last = self.last.map_or(step.start, |last| last.max(step.start));
        let pause = match step.log {
            Log::Soon => UNANNOUNCED,
            _ => SILENCE,
        };
        if now.duration_since(last) < pause {
            return None;
        }
        step.log = Log::Silence;
        self.last = Some(now);
        Some(step.text(now) + "\n")
    }
}

impl Step {
    /// `NAME … 12 s: what it does`.
    fn text(&self, now: Instant) -> String {
        let seconds = now.duration_since(self.start).as_secs();
        let time = match (seconds / 60, seconds % 60) {
            (0, seconds) => format!("{seconds} s"),
            (minutes, seconds) => format!("{minutes} min {seconds} s"),
        };
        let Self { name, doing, .. } = self;
        match doing.is_empty() {
            true => format!("    {name} … {time}"),
            false => format!("    {name} … {time}: {doing}"),
        }
    }
}

/// How wide the terminal is.
fn columns() -> usize {
    let size = tcgetwinsize(io::stderr());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}

fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    // A terminal that has gone shows nothing.
    drop(stderr.write_all(text.as_bytes()));
    drop(stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::{Log, Steps, cargo_bar};
    use std::time::{Duration, Instant};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn steps(names: &[(&str, Log)]) -> (Steps, Instant) {
        let (mut steps, now) = (Steps::NONE, Instant::now());
        for (name, log) in names {
            let _id = steps.push(name, *log, now);
        }
        (steps, now)
    }

    #[test]
    fn a_terminal_shows_a_long_step_with_its_time() {
        let (mut steps, start) = steps(&[("tests", Log::Silence)]);
        assert_eq!(steps.on_terminal(start + seconds(1), 80), None);
        let shown = steps.on_terminal(start + seconds(2), 80);
        assert_eq!(shown.as_deref(), Some("\r\x1b[K    tests … 2 s\r"));
        steps.doing(|_| true, "3 passed");
        let shown = steps.on_terminal(start + seconds(125), 80);
        let expected = "\r\x1b[K    tests … 2 min 5 s: 3 passed\r";
        assert_eq!(shown.as_deref(), Some(expected));
    }

    #[test]
    fn a_line_is_narrower_than_the_terminal() {
        let (steps, start) = steps(&[("a very long name", Log::Silence)]);
        let shown = steps.on_terminal(start + seconds(2), 10);
        assert_eq!(shown.as_deref(), Some("\r\x1b[K    a ver\r"));
        assert!(steps.on_terminal(start + seconds(2), 0).is_some());
    }

    #[test]
    fn the_innermost_step_that_takes_long_is_shown() {
        let (mut steps, start) = steps(&[("outer", Log::Silence)]);
        let _id = steps.push("inner", Log::Never, start + seconds(10));
        let shown = |steps: &Steps, at| steps.on_terminal(start + seconds(at), 80).unwrap();
        assert!(shown(&steps, 11).contains("outer … 11 s"));
        assert!(shown(&steps, 12).contains("inner … 2 s"));
        steps.paused = 1;
        assert_eq!(steps.on_terminal(start + seconds(12), 80), None);
    }

    #[test]
    fn a_log_has_a_line_after_a_minute_of_silence() {
        let (mut steps, start) = steps(&[("tests", Log::Silence)]);
        assert_eq!(steps.in_log(start + seconds(59)), None);
        let line = steps.in_log(start + seconds(60));
        assert_eq!(line.as_deref(), Some("    tests … 1 min 0 s\n"));
        assert_eq!(steps.in_log(start + seconds(61)), None);
        steps.last = Some(start + seconds(100));
        assert_eq!(steps.in_log(start + seconds(159)), None);
        assert!(steps.in_log(start + seconds(160)).is_some());
    }

    #[test]
    fn a_log_announces_what_was_not_announced_unless_it_is_another_program_s() {
        let (mut steps, start) = steps(&[("thinking", Log::Soon), ("booting", Log::Never)]);
        assert_eq!(steps.in_log(start + seconds(4)), None);
        let line = steps.in_log(start + seconds(5));
        assert_eq!(line.as_deref(), Some("    thinking … 5 s\n"));
        assert_eq!(steps.in_log(start + seconds(64)), None);
        assert!(steps.in_log(start + seconds(65)).is_some());
        let (mut other, start) = self::steps(&[("booting", Log::Never)]);
        assert_eq!(other.in_log(start + seconds(3600)), None);
    }

    #[test]
    fn cargo_s_bar_is_read_without_its_colours() {
        let bar = "\x1b[1m\x1b[96m    Building\x1b[0m [=>      ] 12/60: syn, quote(build)";
        assert_eq!(cargo_bar(bar).as_deref(), Some("12/60: syn, quote(build)"));
        assert_eq!(cargo_bar("   Compiling syn v3.0.3"), None);
    }
}
