//! Runs a child and hands on what it prints, line by line as it comes, under two time limits.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context as _, Error};
use crate::process::{self, display};

/// How long a child may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// In all.
    pub(crate) total: Duration,
    /// Without printing anything.
    pub(crate) silence: Duration,
}

/// How a child ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself.
    Exited(ExitStatus),
    /// Stopped by us; the text says which limit it reached.
    Stopped(String),
}

impl End {
    /// `None` after a success, else what went wrong, and the exit code to pass on.
    pub(crate) fn failure(&self) -> Option<(String, u8)> {
        match self {
            Self::Exited(status) if status.success() => None,
            Self::Exited(status) => Some((status.to_string(), process::exit_code(*status))),
            Self::Stopped(why) => Some((format!("stopped: {why}"), 124)),
        }
    }
}

/// What a child prints.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Text<'a> {
    /// A line, without its end.
    Line(&'a str),
    /// The start of a line that has not ended yet.
    Partial(&'a str),
}

/// Runs `command` and calls `sink` with all it writes to stdout; stderr is shown. When a limit
/// is reached, it and its children are killed.
pub(crate) fn run(
    command: &mut Command,
    limits: Limits,
    mut sink: impl FnMut(Text<'_>),
) -> Result<End, Error> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context(|| format!("cannot start `{}`", display(command)))?;
    let start = Instant::now();
    let chunks = reader(&mut child);
    let mut pending = Vec::new();
    loop {
        let left = limits.total.saturating_sub(start.elapsed());
        match chunks.recv_timeout(left.min(limits.silence)) {
            Ok(chunk) => {
                pending.extend(chunk);
                lines(&mut pending, &mut sink);
            }
            Err(RecvTimeoutError::Timeout) => {
                process::kill_tree(child.id());
                child
                    .wait()
                    .context(|| format!("cannot stop `{}`", display(command)))?;
                rest(&pending, &mut sink);
                let why = if left <= limits.silence {
                    format!("its time limit of {} s is over", limits.total.as_secs())
                } else {
                    format!("no output for {} s", limits.silence.as_secs())
                };
                return Ok(End::Stopped(why));
            }
            // Its stdout is closed: it has ended, or is about to.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    rest(&pending, &mut sink);
    process::stop_here_if_ending();
    let left = limits.total.saturating_sub(start.elapsed());
    let ended = process::wait(&mut child, left.min(limits.silence));
    let ended = ended.context(|| format!("cannot wait for `{}`", display(command)))?;
    Ok(match ended {
        process::Ended::Exited(status) => End::Exited(status),
        process::Ended::TimedOut => End::Stopped("it closed its output but did not end".into()),
    })
}

fn reader(child: &mut Child) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    if let Some(mut stdout) = child.stdout.take() {
        thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            // A read error ends the output, as its end does; the exit status tells the rest.
            while let Ok(length @ 1..) = stdout.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

fn lines(pending: &mut Vec<u8>, sink: &mut impl FnMut(Text<'_>)) {
    while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = pending.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line[..end]);
        sink(Text::Line(line.trim_end_matches('\r')));
    }
    if !pending.is_empty() {
        sink(Text::Partial(&String::from_utf8_lossy(pending)));
    }
}

fn rest(pending: &[u8], sink: &mut impl FnMut(Text<'_>)) {
    if !pending.is_empty() {
        sink(Text::Line(&String::from_utf8_lossy(pending)));
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

    /// Whether the process is there, and more than a name that nobody has collected yet.
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
        // It was told at once, and takes a moment to go.
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
