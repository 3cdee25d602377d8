//! Runs a child under time limits, and hands on what it prints as it comes: all other ways to run one
//! with a bound are made of this.

use std::io::{self, IsTerminal as _, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{display, exit_code, kill_tree, stop_here_if_ending, tail};
use crate::error::{Context as _, Error};

/// How often a child that prints nothing is looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long output may still come once the child has ended: something that it started may have kept
/// its standard output.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// How long a step takes that is announced where stderr is no terminal.
const LONG: Duration = Duration::from_secs(5);

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
    /// By itself.
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
            kill_tree(child.id());
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Hands on what comes from `output`, which is `child`'s, until both have ended or a limit is
/// reached. `each` gets no bytes now and then, to show that the child is at work.
pub(crate) fn follow(
    child: &mut Child,
    output: impl Read + Send + 'static,
    limits: Limits,
    mut each: impl FnMut(&[u8]),
) -> io::Result<End> {
    let start = Instant::now();
    let chunks = reader(output);
    let (mut last_output, mut ended) = (start, None);
    loop {
        match chunks.recv_timeout(POLL) {
            Ok(chunk) => {
                last_output = Instant::now();
                each(&chunk);
            }
            Err(RecvTimeoutError::Timeout) => {
                each(&[]);
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
        kill_tree(child.id());
        child.wait()?;
        return Ok(End::Stopped(why));
    }
    stop_here_if_ending();
    let left = limits.total.saturating_sub(start.elapsed());
    Ok(match wait(child, left.min(limits.silence))? {
        Some(status) => End::Exited(status),
        None => End::Stopped("it closed its output but did not end".into()),
    })
}

fn reader(mut output: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        // A read error ends the output, as its end does; the exit status counts.
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// What a command did that [`quietly`] ran.
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

/// Runs `command` with no input and its output kept back; on a terminal one line shows that it
/// is at work.
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
    collect(&mut child, reader, label, limit).context(what)
}

/// Keeps back what `child` writes to `output`.
pub(crate) fn collect(
    child: &mut Child,
    output: impl Read + Send + 'static,
    label: &str,
    limit: Duration,
) -> io::Result<Quiet> {
    let mut progress = Progress::start(label);
    let limits = Limits {
        total: limit,
        silence: limit,
    };
    let mut bytes = Vec::new();
    let end = follow(child, output, limits, |chunk| {
        bytes.extend_from_slice(chunk);
        progress.show();
    })?;
    Ok(Quiet {
        end,
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// A line on the terminal with the step in progress, and its duration so far. Where stderr is no
/// terminal, one line that stays, if the step takes long.
pub(crate) struct Progress<'a> {
    label: &'a str,
    start: Instant,
    is_terminal: bool,
    is_announced: bool,
}

impl<'a> Progress<'a> {
    fn start(label: &'a str) -> Self {
        Self {
            label,
            start: Instant::now(),
            is_terminal: io::stderr().is_terminal(),
            is_announced: false,
        }
    }

    /// Shows nothing where stderr is no terminal: there it belongs to what is run.
    pub(crate) fn on_terminal(label: &'a str) -> Self {
        Self {
            is_announced: true,
            ..Self::start(label)
        }
    }

    #[expect(clippy::print_stderr, reason = "it is for the person at the terminal")]
    pub(crate) fn show(&mut self) {
        if let Some(text) = self.text(self.start.elapsed()) {
            eprint!("{text}");
            // A terminal that has gone shows nothing.
            drop(io::stderr().flush());
        }
    }

    /// What to print now.
    fn text(&mut self, elapsed: Duration) -> Option<String> {
        if self.is_terminal {
            return Some(format!("\r{} … {} s", self.label, elapsed.as_secs()));
        }
        let is_due = elapsed >= LONG && !self.is_announced;
        self.is_announced |= is_due;
        is_due.then(|| format!("{} …\n", self.label))
    }
}

#[expect(clippy::print_stderr, reason = "it is for the person at the terminal")]
impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{End, LONG, Progress, quietly};
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
    fn long_steps_are_announced_once_where_there_is_no_terminal() {
        let progress = |is_terminal| Progress {
            is_terminal,
            ..Progress::start("thinking")
        };
        let (soon, late) = (LONG / 2, LONG * 2);
        let mut piped = progress(false);
        let texts = [soon, late, late].map(|elapsed| piped.text(elapsed));
        assert_eq!(texts, [None, Some("thinking …\n".to_owned()), None]);
        let mut shown = progress(true);
        assert_eq!(shown.text(soon).as_deref(), Some("\rthinking … 2 s"));
        let mut only_shown = Progress {
            is_terminal: false,
            ..Progress::on_terminal("thinking")
        };
        assert_eq!(only_shown.text(late), None);
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
