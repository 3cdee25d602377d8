//! Runs a child under time limits, and hands on what it prints as it comes: all other ways to run one
//! with a bound are made of this.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::{display, exit_code, kill_tree, stop_here_if_ending, tail};
use crate::error::{Context as _, Error};
use crate::progress::Progress;

/// How often a child that prints nothing is looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long output may still come once the child has ended: something that it started may have kept
/// its standard output.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// How long a child may take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "to be written as a constant")]
pub struct Limits {
    /// In all.
    pub total: Duration,
    /// Without printing anything.
    pub silence: Duration,
}

/// How a child ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum End {
    /// The process exited.
    Exited(ExitStatus),
    /// Stopped by this program; the text is the limit that it reached.
    Stopped(String),
}

impl End {
    /// `None` after a success, else what went wrong, and the exit code to pass on.
    #[must_use]
    pub fn failure(&self) -> Option<(String, u8)> {
        match self {
            Self::Exited(status) if status.success() => None,
            Self::Exited(status) => Some((status.to_string(), exit_code(*status))),
            Self::Stopped(why) => Some((format!("stopped: {why}"), 124)),
        }
    }
}

/// Waits for `child` until `limit` is over, then kills it and its children: `None`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now().checked_add(limit);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            kill(child)?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Kills `child` and all that it has started. Returns whether it has ended: sudo, once it is root, cannot be
/// killed.
pub(crate) fn kill(child: &mut Child) -> io::Result<bool> {
    kill_tree(child.id());
    let deadline = Instant::now() + LAST_OUTPUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(POLL);
    }
    Ok(true)
}

/// Where a child wrote something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
}

/// Hands on what comes from `output` and `errors`, which are `child`'s, until both have ended or a limit is
/// reached; `errors` does not break the silence. `each` gets no bytes now and then, to show that the child is at work.
pub(crate) fn follow_both(
    child: &mut Child,
    output: impl Read + Send + 'static,
    errors: Option<impl Read + Send + 'static>,
    limits: Limits,
    mut each: impl FnMut(Source, &[u8]),
) -> io::Result<End> {
    let start = Instant::now();
    let (sender, chunks) = mpsc::channel();
    if let Some(errors) = errors {
        read(errors, Source::Stderr, sender.clone());
    }
    read(output, Source::Stdout, sender);
    let (mut last_output, mut ended) = (start, None);
    loop {
        match chunks.recv_timeout(POLL) {
            Ok((source, chunk)) => {
                if source == Source::Stdout {
                    last_output = Instant::now();
                }
                each(source, &chunk);
            }
            Err(RecvTimeoutError::Timeout) => {
                each(Source::Stdout, &[]);
                if ended.is_none() && child.try_wait()?.is_some() {
                    ended = Some(Instant::now());
                }
                if ended.is_some_and(|ended| ended.elapsed() > LAST_OUTPUT) {
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let why = if start.elapsed() >= limits.total {
            format!("its time limit of {} s is over", limits.total.as_secs())
        } else if last_output.elapsed() >= limits.silence {
            format!("no output for {} s", limits.silence.as_secs())
        } else {
            continue;
        };
        return Ok(End::Stopped(match kill(child)? {
            true => why,
            false => format!("{why}, and it cannot be killed: it runs as another user"),
        }));
    }
    stop_here_if_ending();
    let left = limits.total.saturating_sub(start.elapsed());
    Ok(match wait(child, left.min(limits.silence))? {
        Some(status) => End::Exited(status),
        None => End::Stopped("it closed its output but did not end".into()),
    })
}

fn read(mut input: impl Read + Send + 'static, source: Source, sender: Sender<(Source, Vec<u8>)>) {
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        // A read error ends the output, as its end does; the exit status counts.
        while let Ok(length @ 1..) = input.read(&mut buffer) {
            if sender.send((source, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
}

/// Result of a command that [`quietly`] ran.
#[derive(Debug)]
#[non_exhaustive]
pub struct Quiet {
    /// How it ended.
    pub end: End,
    /// All that it wrote, stdout and stderr in order.
    pub output: String,
}

impl Quiet {
    /// Whether it ended by itself with exit code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.end.failure().is_none()
    }

    /// The failure of `command` with the last lines of its output.
    #[must_use]
    pub fn error(&self, command: &Command) -> Error {
        let (why, code) = self.end.failure().unwrap_or_else(|| ("success".into(), 1));
        let tail = tail(&self.output, 30);
        Error::new(format!("`{}` failed: {why}\n{tail}", display(command))).with_code(code)
    }
}

/// Runs `command` as [`quietly`] does, and returns what it wrote.
///
/// # Errors
///
/// If it cannot be started or waited for, or fails: with the last lines of its output.
pub fn run_quietly(command: &mut Command, label: &str, limit: Duration) -> Result<String, Error> {
    let quiet = quietly(command, label, limit)?;
    match quiet.success() {
        true => Ok(quiet.output),
        false => Err(quiet.error(command)),
    }
}

/// Runs `command` with no input and its output kept back; a line shows that it is at work.
///
/// # Errors
///
/// If it cannot be started or waited for.
pub fn quietly(command: &mut Command, label: &str, limit: Duration) -> Result<Quiet, Error> {
    let what = || format!("cannot read the output of a command: {label}");
    let (reader, writer) = io::pipe().context(what)?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context(what)?)
        .stderr(writer);
    let child = command.spawn();
    // The pipe ends with the child's ends of it, so that ours must go.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.context(|| format!("cannot start `{}`", display(command)))?;
    let _shown = Progress::unannounced(label);
    let limits = Limits {
        total: limit,
        silence: limit,
    };
    let mut bytes = Vec::new();
    let end = follow_both(&mut child, reader, None::<io::Empty>, limits, |_, chunk| {
        bytes.extend_from_slice(chunk);
    });
    Ok(Quiet {
        end: end.context(what)?,
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::{End, quietly};
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn quiet_commands_keep_both_streams_in_order() {
        let limit = Duration::from_secs(20);
        let quiet = quietly(&mut sh("echo a; echo b >&2; echo c; exit 3"), "x", limit).unwrap();
        assert_eq!(quiet.output, "a\nb\nc\n");
        assert!(!quiet.success());
    }

    #[test]
    fn quiet_commands_end_at_their_limit() {
        let start = Instant::now();
        let quiet = quietly(&mut sh("exec sleep 60"), "x", Duration::from_millis(100)).unwrap();
        assert!(matches!(quiet.end, End::Stopped(_)));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_child_that_leaves_something_behind_is_not_waited_for() {
        let start = Instant::now();
        let quiet = quietly(&mut sh("echo a; sleep 60 &"), "x", Duration::from_secs(50)).unwrap();
        assert!(quiet.success());
        assert_eq!(quiet.output, "a\n");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
