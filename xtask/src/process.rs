//! Child processes: finding them, and running them with a bound and in silence unless they fail.

use std::env;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context as _, Error};

/// Where administrators' programs are; a user's PATH often leaves these out.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// How often a child with a time limit is looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long children have to end by themselves once they are told to.
const GRACE: Duration = Duration::from_secs(3);

/// How a child ended that ran under a time limit.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// By us, because its time was over.
    TimedOut,
}

/// The executable called `name`, on PATH or where system programs are.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRS.into_iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The exit code to pass on for a child's status: its own, or 128 + the signal that killed it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// A command as a shell would take it, for messages.
pub(crate) fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = words.map(|word| quote(&word.to_string_lossy())).collect();
    quoted.join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs `command` with its output shown; its failure is an error that carries its exit code.
pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let status = command
        .status()
        .context(|| format!("cannot start `{}`", display(command)))?;
    stop_here_if_ending();
    if status.success() {
        return Ok(());
    }
    let message = format!("`{}` failed: {status}", display(command));
    Err(Error::new(message).with_code(exit_code(status)))
}

/// Runs `command` without input and returns what it wrote to stdout; stderr is shown.
pub(crate) fn output(command: &mut Command) -> Result<String, Error> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context(|| format!("cannot start `{}`", display(command)))?;
    stop_here_if_ending();
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = format!("`{}` failed: {}", display(command), output.status);
    Err(Error::new(message).with_code(exit_code(output.status)))
}

/// Whether `command` can be started and succeeds; its output is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Kills a process and all that it has started, as far as they still are its descendants.
pub(crate) fn kill_tree(pid: u32) {
    for pid in descendants(pid).into_iter().rev() {
        signal(pid, Signal::KILL);
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may be gone already, which is all that was wanted.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// `pid` and the processes below it, parents first.
fn descendants(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pairs: Vec<(u32, u32)> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(pid)?))
        })
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = pairs.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: the state, then the parent.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Whether this process has been told to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Goes no further once this process has been told to end: a child that was ended with it is no
/// failure to report, and nothing new is to begin. It ends within [`GRACE`].
pub(crate) fn stop_here_if_ending() {
    while ENDING.load(Ordering::Relaxed) {
        thread::sleep(POLL);
    }
}

/// From now on, an interrupt or a request to end first ends all children, then this process.
pub(crate) fn end_children_when_told_to_end() -> Result<(), Error> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let mut signals = signals.context(|| "cannot listen for signals")?;
    thread::spawn(move || {
        let Some(told) = signals.forever().next() else {
            return;
        };
        ENDING.store(true, Ordering::Relaxed);
        let own = process::id();
        let children = || descendants(own).into_iter().skip(1).rev();
        for pid in children() {
            signal(pid, Signal::TERM);
        }
        let patience = Instant::now() + GRACE;
        while children().next().is_some() && Instant::now() < patience {
            thread::sleep(POLL);
        }
        for pid in children() {
            signal(pid, Signal::KILL);
        }
        process::exit(128 + told);
    });
    Ok(())
}

/// Waits for `child` until `limit` is over, then kills it and its children.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> io::Result<Ended> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Exited(status));
        }
        if Instant::now() >= deadline {
            kill_tree(child.id());
            child.wait()?;
            return Ok(Ended::TimedOut);
        }
        thread::sleep(POLL);
    }
}

/// What a command did that [`quietly`] ran.
#[derive(Debug)]
pub(crate) struct Quiet {
    /// How it ended.
    pub(crate) ended: Ended,
    /// All that it wrote, stdout and stderr in order.
    pub(crate) output: String,
}

impl Quiet {
    /// Whether it ended by itself with exit code 0.
    pub(crate) fn success(&self) -> bool {
        matches!(&self.ended, Ended::Exited(status) if status.success())
    }

    /// The failure of `command` with the last lines of its output.
    pub(crate) fn error(&self, command: &Command, limit: Duration) -> Error {
        let how = match &self.ended {
            Ended::Exited(status) => format!("failed: {status}"),
            Ended::TimedOut => format!("was stopped after {} s", limit.as_secs()),
        };
        let code = match &self.ended {
            Ended::Exited(status) if !status.success() => exit_code(*status),
            _ => 1,
        };
        let tail = tail(&self.output, 30);
        Error::new(format!("`{}` {how}\n{tail}", display(command))).with_code(code)
    }
}

/// Runs `command` with no input and its output kept back; on a terminal one line shows that it
/// is at work.
pub(crate) fn quietly(command: &mut Command, label: &str, limit: Duration) -> Result<Quiet, Error> {
    let mut log = Scratch::new()?;
    let out = log.handle()?;
    let err = log.handle()?;
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .context(|| format!("cannot start `{}`", display(command)))?;
    let progress = io::stderr().is_terminal();
    let ended = loop {
        let slice = limit.saturating_sub(start.elapsed());
        if let Some(status) = child
            .try_wait()
            .context(|| format!("cannot wait for `{}`", display(command)))?
        {
            break Ended::Exited(status);
        }
        if slice.is_zero() {
            let ended = wait(&mut child, Duration::ZERO);
            break ended.context(|| format!("cannot stop `{}`", display(command)))?;
        }
        if progress {
            eprint!("\r{label} … {} s", start.elapsed().as_secs());
            io::stderr()
                .flush()
                .context(|| "cannot write to the terminal")?;
        }
        thread::sleep(POLL);
    };
    if progress {
        eprint!("\r\x1b[K");
    }
    stop_here_if_ending();
    let output = log.text()?;
    Ok(Quiet { ended, output })
}

/// A temporary file that nobody else sees: it has no name once it is open.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: File,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let nanos = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos());
        let name = format!("xtask-{}-{count}-{nanos}", process::id());
        let path = env::temp_dir().join(name);
        let what = || format!("cannot make the temporary file {}", path.display());
        let file = File::options()
            .read(true)
            .append(true)
            .create_new(true)
            .open(&path)
            .context(what)?;
        fs::remove_file(&path).context(what)?;
        Ok(Self { file })
    }

    /// The same file once more, for a child to write to.
    pub(crate) fn handle(&self) -> Result<File, Error> {
        let handle = self.file.try_clone();
        handle.context(|| "cannot share a temporary file")
    }

    /// All that was written.
    pub(crate) fn text(&mut self) -> Result<String, Error> {
        let what = || "cannot read a child's output back";
        let mut bytes = Vec::new();
        self.file.rewind().context(what)?;
        self.file.read_to_end(&mut bytes).context(what)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Ended, display, exit_code, quietly, tail, which};
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn which_finds_programs_and_nothing_else() {
        assert!(which("sh").is_some());
        assert!(which("no-such-program-anywhere").is_none());
    }

    #[test]
    fn a_command_is_quoted_as_a_shell_takes_it() {
        assert_eq!(display(&sh("echo it's")), r"sh -c 'echo it'\''s'");
    }

    #[test]
    fn exit_codes_are_passed_on() {
        let status = |script| sh(script).status().unwrap();
        assert_eq!(exit_code(status("exit 7")), 7);
        assert_eq!(exit_code(status("kill -9 $$")), 137);
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
        assert!(matches!(quiet.ended, Ended::TimedOut));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
