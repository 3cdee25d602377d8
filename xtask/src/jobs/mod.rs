//! Jobs that need RDMA devices: passed in one list to one run of soft-RoCE, and reported line by
//! line as they run.

mod inside;
mod plan;

use std::fs;
use std::process::{self, Command};
use std::time::Duration;

use soft_roce::{Options, Way};

pub(crate) use inside::main as run_inside;
pub(crate) use plan::Job;

use crate::error::{Context as _, Error};
use crate::packages::Policy;
use crate::progress::{self, Pause};
use crate::stream::{self, Limits, Text};
use crate::workspace;

/// The hidden subcommand that runs a list of jobs inside.
pub(crate) const COMMAND: &str = "run-jobs";

/// A job begins; its name follows.
const START: &str = "##start ";
/// A job has ended; its exit code and its name follow, and what went wrong.
const END: &str = "##end ";
/// Lines of programs that are meant for us are shown, whatever else they print: results, and JSON.
const OWN_LINES: [&str; 2] = ["RESULT ", "{"];

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
    command.arg("--").arg(&own);
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
    let mut command = Command::new(soft_roce::own_exe()?);
    let devices = [("VERBS_DEVICE", device), ("VERBS_PEER_DEVICE", peer)];
    command.envs(devices);
    let limits = Limits { total, silence };
    start(jobs, command, limits, "nothing ran", sink)
}

/// How long `jobs` may take, and how long they may print nothing. Each job has its own limit inside; these
/// are for what may go wrong around them.
fn limits(jobs: &[Job]) -> (Duration, Duration) {
    let total = jobs.iter().map(|job| job.limits.total).sum::<Duration>() + AROUND;
    let silence = jobs.iter().map(|job| job.limits.silence).max();
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
    let text = plan::write(jobs)?;
    fs::write(&file, text).context(|| format!("cannot write {}", file.display()))?;
    command
        .arg(COMMAND)
        .arg(&file)
        .current_dir(workspace::root());
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
    use super::{Event, Job, JobOutput};
    use crate::stream::Limits;
    use std::time::Duration;

    fn jobs() -> Vec<Job> {
        let job = |name: &str| Job {
            name: name.into(),
            dir: String::new(),
            env: vec![],
            limits: Limits {
                total: Duration::ZERO,
                silence: Duration::ZERO,
            },
            commands: vec![],
            port: 0,
        };
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
}
