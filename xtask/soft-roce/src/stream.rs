//! Runs a child and hands on what it prints, line by line as it comes, under two time limits.

use std::process::{Command, Stdio};

use crate::error::{Context as _, Error};
use crate::process::{display, follow};

pub use crate::process::{End, Limits};

/// What a child prints.
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
    mut sink: impl FnMut(Text<'_>),
) -> Result<End, Error> {
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.context(|| format!("cannot start `{}`", display(command)))?;
    let stdout = child.stdout.take();
    let stdout = stdout.ok_or_else(|| Error::new("a child has no output"))?;
    let mut pending = Vec::new();
    let end = follow(&mut child, stdout, limits, |chunk| {
        pending.extend_from_slice(chunk);
        lines(&mut pending, !chunk.is_empty(), &mut sink);
    });
    if !pending.is_empty() {
        sink(Text::Line(&String::from_utf8_lossy(&pending)));
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

#[cfg(test)]
mod tests {
    use super::{End, Limits, Text, run};
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
