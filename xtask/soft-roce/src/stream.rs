//! Runs a child and hands on what it prints, line by line as it comes, under two time limits.

use std::io::{self, IsTerminal as _};
use std::process::{Command, Stdio};

use crate::error::{Context as _, Error};
use crate::process::{Source, display, follow_both};
use crate::progress;

pub use crate::process::{End, Limits};

/// Output of a child.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Text<'a> {
    /// A line, without its end.
    Line(&'a str),
    /// The start of a line that has not ended yet.
    Partial(&'a str),
}

/// Runs `command` and calls `sink` with all it writes to stdout; stderr is shown. When a limit
/// is reached, it and its children are killed.
///
/// # Errors
///
/// If it cannot be started or waited for.
pub fn run(
    command: &mut Command,
    limits: Limits,
    sink: impl FnMut(Text<'_>),
) -> Result<End, Error> {
    carry(command, limits, sink, None::<fn(&str)>)
}

/// As [`run`], for a command whose [`Progress`](progress::Progress) is shown: on a terminal, cargo's
/// bar becomes a part of that.
///
/// # Errors
///
/// If it cannot be started or waited for.
pub fn run_shown(
    command: &mut Command,
    limits: Limits,
    sink: impl FnMut(Text<'_>),
) -> Result<End, Error> {
    if !io::stderr().is_terminal() {
        return run(command, limits, sink);
    }
    progress::ask_for_bar(command);
    carry(command, limits, sink, Some(progress::print_error))
}

/// Runs `command`; `errors` gets the lines that it writes to stderr, which else is shown as it is.
fn carry(
    command: &mut Command,
    limits: Limits,
    mut sink: impl FnMut(Text<'_>),
    mut errors: Option<impl FnMut(&str)>,
) -> Result<End, Error> {
    if errors.is_some() {
        command.stderr(Stdio::piped());
    }
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.context(|| format!("cannot start `{}`", display(command)))?;
    let stdout = child.stdout.take();
    let stdout = stdout.ok_or_else(|| Error::new("a child has no output"))?;
    let stderr = child.stderr.take();
    let (mut pending, mut complaints) = (Vec::new(), Vec::new());
    let end = follow_both(&mut child, stdout, stderr, limits, |source, chunk| {
        if source == Source::Stdout {
            pending.extend_from_slice(chunk);
            lines(&mut pending, !chunk.is_empty(), &mut sink);
        } else if let Some(errors) = &mut errors {
            complaints.extend_from_slice(chunk);
            error_lines(&mut complaints, errors);
        }
    });
    if !pending.is_empty() {
        sink(Text::Line(&String::from_utf8_lossy(&pending)));
    }
    if let Some(errors) = errors.as_mut().filter(|_| !complaints.is_empty()) {
        errors(&String::from_utf8_lossy(&complaints));
    }
    end.context(|| format!("cannot wait for `{}`", display(command)))
}

fn lines(pending: &mut Vec<u8>, is_new: bool, sink: &mut impl FnMut(Text<'_>)) {
    while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = pending.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line[..end]);
        sink(Text::Line(line.trim_end_matches('\r')));
    }
    if is_new && !pending.is_empty() {
        sink(Text::Partial(&String::from_utf8_lossy(pending)));
    }
}

/// Takes the whole lines off; what ends with a carriage return alone is replaced by what comes next, as
/// cargo's bar is.
fn error_lines(pending: &mut Vec<u8>, errors: &mut impl FnMut(&str)) {
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
    while let Some(end) = pending.iter().position(is_end) {
        let mut is_bar = pending[end] == b'\r';
        let length = match (is_bar, pending.get(end + 1)) {
            // The next bytes decide.
            (true, None) => return,
            (true, Some(b'\n')) => {
                is_bar = false;
                end + 2
            }
            _ => end + 1,
        };
        let line: Vec<u8> = pending.drain(..length).collect();
        let line = String::from_utf8_lossy(&line[..end]);
        match progress::cargo_bar(&line).filter(|_| is_bar) {
            Some(what) => progress::doing(&what),
            None if is_bar => {}
            // Cargo clears its bar with this.
            None => errors(line.trim_start_matches("\x1b[K")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{End, Limits, Text, carry, error_lines, run};
    use std::fs;
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    fn stream(script: &str, limits: Limits) -> (End, Vec<String>) {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        let end = run(command.args(["-c", script]), limits, |text| {
            if let Text::Line(line) = text {
                seen.push(line.to_owned());
            }
        });
        (end.unwrap(), seen)
    }

    #[test]
    fn a_bar_is_no_line_and_what_follows_it_is() {
        let mut pending = Vec::new();
        let mut seen = Vec::new();
        let bar = b"\x1b[1m    Building\x1b[0m [=> ] 1/2: syn\r";
        for chunk in [&b"one\r"[..], b"\ntw", b"o\n", bar, b"\x1b[K", b"three\nfo"] {
            pending.extend_from_slice(chunk);
            error_lines(&mut pending, &mut |line| seen.push(line.to_owned()));
        }
        assert_eq!(seen, ["one", "two", "three"]);
        assert_eq!(pending, b"fo");
    }

    #[test]
    fn errors_are_lines_of_their_own_and_do_not_break_the_silence() {
        let (mut lines, mut errors) = (Vec::new(), Vec::new());
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; printf c >&2; exit 3"]);
        let mut sink = |text: Text<'_>| match text {
            Text::Line(line) => lines.push(line.to_owned()),
            Text::Partial(_) => {}
        };
        let end = carry(
            &mut command,
            LONG,
            &mut sink,
            Some(|line: &str| errors.push(line.to_owned())),
        );
        assert_eq!(end.unwrap().failure().map(|(_, code)| code), Some(3));
        assert_eq!(
            (lines, errors),
            (vec!["a".into()], vec!["b".into(), "c".to_owned()])
        );

        let mut command = Command::new("sh");
        command.args(["-c", "while :; do echo x >&2; sleep 0.01; done"]);
        let limits = Limits {
            total: Duration::from_secs(20),
            silence: Duration::from_secs(2),
        };
        let end = carry(&mut command, limits, |_| {}, Some(|_: &str| {})).unwrap();
        assert!(end.failure().unwrap().0.contains("no output"), "{end:?}");
    }

    /// Whether the process runs: it exists, and is no zombie.
    fn runs(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    const LONG: Limits = Limits {
        total: Duration::from_secs(60),
        silence: Duration::from_secs(60),
    };

    #[test]
    fn lines_arrive_whole_and_the_last_needs_no_end() {
        let (end, seen) = stream("printf a; printf 'b\\nc'; exit 3", LONG);
        assert_eq!(seen, ["ab", "c"]);
        assert_eq!(end.failure().map(|(_, code)| code), Some(3));
    }

    #[test]
    fn silence_and_the_total_each_end_it_with_its_children() {
        let start = Instant::now();
        let short = Duration::from_millis(300);
        let silence = Limits {
            silence: short,
            ..LONG
        };
        let (end, seen) = stream("exec 2>/dev/null; sleep 50 & echo $!; sleep 50", silence);
        assert!(end.failure().unwrap().0.contains("no output"), "{end:?}");
        // It gets the signal at once, and takes a moment to end.
        while runs(&seen[0]) && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!runs(&seen[0]));
        let total = Limits {
            total: short,
            ..LONG
        };
        let (end, seen) = stream("while :; do echo x; sleep 0.01; done", total);
        assert!(end.failure().unwrap().0.contains("time limit"), "{end:?}");
        assert!(!seen.is_empty());
        assert!(start.elapsed() < Duration::from_secs(40));
    }
}
