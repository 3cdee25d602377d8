//! Jobs that need RDMA devices: passed in one list to one run of soft-RoCE, and reported line by
//! line as they run.

use std::fs;
use std::process::{self, Command};
use std::time::Duration;

use soft_roce::{Options, Way};

use crate::error::{Context as _, Error};
use crate::packages::Policy;
use crate::progress::{self, Pause};
use crate::stream::{self, Limits, Text};
use crate::workspace;

/// The program that runs jobs.
const RUNNER: &str = include_str!("run.sh");

/// Something to run where the RDMA devices are.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Name in reports; unique in its list.
    pub(crate) name: String,
    /// The folder it runs in.
    pub(crate) dir: String,
    /// How long it may take.
    pub(crate) limit: Duration,
    /// The programs: one; or a server and its clients, which start once it listens on [`PORT`]. The words
    /// `{device}` and `{peer}` stand for the two RDMA devices.
    pub(crate) commands: Vec<Vec<String>>,
}

/// The TCP port on which our programs and C's listen unless another one is chosen.
const PORT: u16 = 18515;

impl Job {
    /// Programs that run in the workspace's folder.
    pub(crate) fn new(name: String, limit: Duration, commands: Vec<Vec<String>>) -> Self {
        let dir = workspace::root().display().to_string();
        Self {
            name,
            dir,
            limit,
            commands,
        }
    }

    /// The line that runs it.
    fn line(&self) -> String {
        let kind = if self.commands.len() == 1 {
            "one"
        } else {
            "talk"
        };
        let mut line = format!(
            "{kind} {} {} {PORT}",
            quoted(&self.name),
            self.limit.as_secs().max(1)
        );
        for command in &self.commands {
            let mut text = format!("cd {} && exec", quoted(&self.dir));
            for word in command {
                text += &match word.as_str() {
                    "{device}" => " \"$VERBS_DEVICE\"".to_owned(),
                    "{peer}" => " \"$VERBS_PEER_DEVICE\"".to_owned(),
                    word => format!(" {}", quoted(word)),
                };
            }
            line += &format!(" {}", quoted(&text));
        }
        line
    }
}

/// A word as the shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A job begins; its name follows.
const START: &str = "##start ";
/// A job has ended; its exit code and its name follow, and what went wrong.
const END: &str = "##end ";

/// Where the devices are, unless the fastest place that will do is right.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Place {
    /// Soft-RoCE in a virtual machine, whose processor may be emulated
    #[arg(long)]
    guest: bool,
    /// Soft-RoCE of this kernel, or fail
    #[arg(long)]
    native: bool,
    /// Cards in user space, whatever this kernel has
    #[arg(long)]
    user: bool,
}

impl Place {
    pub(crate) fn options(self, install: Policy) -> Options {
        let mut options = Options::default();
        options.install = install;
        options.way = match self {
            Self { guest: true, .. } => Way::Guest,
            Self { native: true, .. } => Way::Native,
            Self { user: true, .. } => Way::User,
            _ => Way::Auto,
        };
        options
    }
}

/// The events of the jobs while they run.
#[derive(Debug, PartialEq)]
pub(crate) enum Event<'a> {
    /// The job of this name has started.
    Start(&'a str),
    /// It printed this line.
    Line(&'a str),
    /// It has ended: well, or with this exit code for this reason.
    End(Result<(), (u8, &'a str)>),
}

/// Runs `jobs` in one run of soft-RoCE, and calls `sink` with their events.
///
/// A job without an end, because the machine it ran on died, is reported as failed; so is
/// one that never began. Fails only if nothing could be run at all.
pub(crate) fn run(
    jobs: &[Job],
    options: &Options,
    sink: &mut dyn FnMut(&Job, Event<'_>),
) -> Result<(), Error> {
    // Here, where a download has its own limits.
    soft_roce::prepare(options)?;
    let (total, silence) = limits(jobs);
    let mut inner = options.clone();
    inner.timeout = Some(total);
    let own = soft_roce::own_exe()?;
    let mut command = Command::new(&own);
    command.args(["soft-roce", "run"]).args(inner.to_args());
    command.args(["--", "bash"]);
    let limits = Limits {
        total: total + AROUND,
        silence,
    };
    let missing = "soft-RoCE did not come up";
    start(jobs, command, limits, missing, sink)
}

/// Runs `jobs` on devices of this machine, as [`run`] does: the two ends on `device` and on `peer`, which
/// may be the same.
pub(crate) fn run_on(
    jobs: &[Job],
    device: &str,
    peer: &str,
    sink: &mut dyn FnMut(&Job, Event<'_>),
) -> Result<(), Error> {
    let (total, silence) = limits(jobs);
    let mut command = Command::new("bash");
    let devices = [("VERBS_DEVICE", device), ("VERBS_PEER_DEVICE", peer)];
    command.envs(devices);
    let limits = Limits { total, silence };
    start(jobs, command, limits, "nothing ran", sink)
}

/// How long `jobs` may take, and how long they may print nothing. Each job has its own limit inside; these
/// are for what may go wrong around them.
fn limits(jobs: &[Job]) -> (Duration, Duration) {
    let total = jobs.iter().map(|job| job.limit).sum::<Duration>() + AROUND;
    let silence = jobs.iter().map(|job| job.limit).max();
    (total, silence.unwrap_or_default() + AROUND)
}

/// Runs `command`, completed with what makes it run the jobs.
fn start(
    jobs: &[Job],
    mut command: Command,
    limits: Limits,
    missing: &str,
    sink: &mut dyn FnMut(&Job, Event<'_>),
) -> Result<(), Error> {
    // The file is of this run alone: another one may be under way.
    let file = workspace::scratch_dir()?.join(format!("jobs-{}", process::id()));
    let lines: Vec<String> = jobs.iter().map(Job::line).collect();
    let text = format!("{RUNNER}{}\nexit $code\n", lines.join("\n"));
    fs::write(&file, text).context(|| format!("cannot write {}", file.display()))?;
    command.arg(&file).current_dir(workspace::root());
    let mut output = JobOutput::new(jobs);
    // Starting soft-RoCE has its own progress, and may ask for a password.
    let mut starting = Some(Pause::new());
    let end = stream::run(&mut command, limits, |text| {
        if let Text::Line(line) = text {
            output.line(line, sink);
            if output.anything {
                starting = None;
            }
        }
    });
    drop(starting);
    let removed = fs::remove_file(&file);
    let end = end?;
    removed.context(|| format!("cannot remove {}", file.display()))?;
    let failure = end.failure();
    if !output.anything {
        let (why, code) = failure.unwrap_or_else(|| ("it ran nothing".into(), 1));
        return Err(Error::new(format!("{missing}: {why}")).with_code(code));
    }
    let (why, code) = failure.unwrap_or_else(|| ("the machine is gone".into(), 1));
    output.finish(code, &why, sink);
    Ok(())
}

/// How long bringing soft-RoCE up, and down, may take.
const AROUND: Duration = Duration::from_secs(240);

/// Sorts what soft-RoCE prints by job.
struct JobOutput<'a> {
    jobs: &'a [Job],
    current: Option<usize>,
    ended: usize,
    anything: bool,
}

impl<'a> JobOutput<'a> {
    fn new(jobs: &'a [Job]) -> Self {
        Self {
            jobs,
            current: None,
            ended: 0,
            anything: false,
        }
    }

    fn line(&mut self, line: &str, sink: &mut dyn FnMut(&Job, Event<'_>)) {
        if let Some(name) = line.strip_prefix(START) {
            self.anything = true;
            self.current = self.jobs.iter().position(|job| job.name == name);
            if let Some(at) = self.current {
                sink(&self.jobs[at], Event::Start(name));
            }
        } else if let Some(end) = line.strip_prefix(END) {
            let (code, rest) = end.split_once(' ').unwrap_or((end, ""));
            if let Some(at) = self.current.take() {
                let job = &self.jobs[at];
                let why = rest.strip_prefix(&job.name).unwrap_or(rest);
                let result = match code.parse() {
                    Ok(0) => Ok(()),
                    Ok(code) => Err((code, why.trim_start_matches(": "))),
                    Err(_) => Err((1, why.trim_start_matches(": "))),
                };
                self.ended = at + 1;
                sink(job, Event::End(result));
            }
        } else if let Some(at) = self.current {
            sink(&self.jobs[at], Event::Line(line));
        } else {
            // Not of a job, but of soft-RoCE itself.
            progress::print(line);
        }
    }

    /// Reports each job that has not ended as failed.
    fn finish(self, code: u8, why: &str, sink: &mut dyn FnMut(&Job, Event<'_>)) {
        for (at, job) in self.jobs.iter().enumerate().skip(self.ended) {
            if self.current == Some(at) {
                sink(job, Event::End(Err((code, &format!("did not end: {why}")))));
            } else {
                sink(job, Event::Start(&job.name));
                sink(job, Event::End(Err((code, &format!("was not run: {why}")))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Job, JobOutput, start};
    use crate::stream::Limits;
    use std::net::TcpListener;
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn jobs() -> Vec<Job> {
        let job = |name: &str| Job::new(name.into(), Duration::ZERO, vec![]);
        vec![job("a"), job("b c"), job("d")]
    }

    fn events_of(lines: &[&str]) -> Vec<String> {
        let jobs = jobs();
        let mut seen = Vec::new();
        let mut sink = |job: &Job, event: Event<'_>| {
            seen.push(match event {
                Event::Start(_) => format!("{} starts", job.name),
                Event::Line(line) => format!("{} prints {line}", job.name),
                Event::End(Ok(())) => format!("{} is well", job.name),
                Event::End(Err((code, why))) => format!("{} failed {code}: {why}", job.name),
            });
        };
        let mut output = JobOutput::new(&jobs);
        for line in lines {
            output.line(line, &mut sink);
        }
        output.finish(125, "it died", &mut sink);
        seen
    }

    #[test]
    fn lines_belong_to_the_job_that_runs() {
        let lines = [
            "booting",
            "##start a",
            "x",
            "##end 0 a",
            "##start b c",
            "##end 7 b c: no",
        ];
        let seen = events_of(&[&lines[..], &["##start d", "##end 0 d"]].concat());
        let expected = [
            "a starts",
            "a prints x",
            "a is well",
            "b c starts",
            "b c failed 7: no",
            "d starts",
            "d is well",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn jobs_without_an_end_have_failed() {
        let seen = events_of(&["##start a", "##end 0 a", "##start b c", "x"]);
        let expected = [
            "a starts",
            "a is well",
            "b c starts",
            "b c prints x",
            "b c failed 125: did not end: it died",
            "d starts",
            "d failed 125: was not run: it died",
        ];
        assert_eq!(seen, expected);
    }

    /// How jobs of these scripts end, and the lines that they print.
    fn ran(scripts: &[&str]) -> (Result<(), (u8, String)>, Vec<String>) {
        let words = |script: &&str| {
            ["bash", "-c", script, "{device}", "b 'c"]
                .map(str::to_owned)
                .into()
        };
        let job = Job::new(
            "it's one".into(),
            Duration::from_secs(1),
            scripts.iter().map(words).collect(),
        );
        let limits = Limits {
            total: Duration::from_secs(60),
            silence: Duration::from_secs(60),
        };
        let mut command = Command::new("bash");
        command.env("VERBS_DEVICE", "rxe 0");
        let (mut end, mut lines) = (Ok(()), Vec::new());
        start(
            &[job],
            command,
            limits,
            "nothing",
            &mut |_, event| match event {
                Event::Line(line) => lines.push(line.to_owned()),
                Event::End(Err((code, why))) => end = Err((code, why.to_owned())),
                _ => {}
            },
        )
        .unwrap();
        (end, lines)
    }

    #[test]
    fn jobs_get_words_as_they_are_and_end_with_the_first_failure_or_at_their_limit() {
        let (end, lines) = ran(&["echo \"$1, $0\"; printf open; exit 7"]);
        assert_eq!(lines, ["b 'c, rxe 0", "open"]);
        assert_eq!(end, Err((7, "ended with 7".into())));
        assert_eq!(ran(&["true"]).0, Ok(()));
        assert_eq!(ran(&["sleep 50"]).0.unwrap_err().0, 124);
        let (early, _) = ran(&["exit 0", "exit 0"]);
        assert!(early.unwrap_err().1.contains("before it listened"));
        let never = ran(&["sleep 50", "exit 0"]).0.unwrap_err();
        assert!(
            never.0 == 124 && never.1.contains("did not listen"),
            "{never:?}"
        );
        let Ok(_listener) = TcpListener::bind(("127.0.0.1", super::PORT)) else {
            return;
        };
        let start = Instant::now();
        let (end, lines) = ran(&["echo RESULT 1; echo 2", "echo '{}'", "sleep 0.1"]);
        assert_eq!((end, &*lines.join(" ")), (Ok(()), "RESULT 1 {}"));
        let (end, lines) = ran(&["echo bound; sleep 50", "exit 9"]);
        assert_eq!(end, Err((9, "command 2 ended with 9".into())));
        assert!(lines.contains(&"bound".to_owned()), "{lines:?}");
        assert_eq!(ran(&["sleep 50", "exit 0"]).0.unwrap_err().0, 124);
        assert!(start.elapsed() < Duration::from_secs(40));
    }
}
