//! Programs that do the same work where the RDMA devices are, in turns: C's beside ours, one layer beside
//! another.

use std::time::Duration;

use super::hardware;
use super::plan::Plan;
use super::progress::Progress;
use super::report::Section;
use super::samples::Spread;
use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::stream::Limits;
use crate::workspace;

/// The TCP port that all of these programs use by default.
pub(super) const PORT: u16 = 18515;

/// The longest that one run may take, unless it is a long one.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Where the devices are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Those of soft-RoCE.
    SoftRoce(Box<soft_roce::Options>),
    /// Those of this machine: the two ends, which may be one.
    Devices { own: String, peer: String },
}

impl Place {
    /// The words that stand for its devices in a job, each device once; those of soft-RoCE are of one kind.
    fn ends(&self) -> &'static [&'static str] {
        match self {
            Self::Devices { own, peer } if own != peer => &["device", "peer"],
            _ => &["device"],
        }
    }
}

/// A program, at both ends.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) server: Vec<String>,
    pub(super) client: Vec<String>,
    /// The figure in a line that it prints.
    pub(super) read: fn(&str) -> Option<f64>,
}

/// Programs to compare with the first of them.
#[derive(Clone, Debug)]
pub(super) struct Contest {
    /// Unique in its list.
    pub(super) name: String,
    /// The longest that a contender may take.
    pub(super) limit: Duration,
    pub(super) contenders: Vec<Contender>,
}

/// The result of a contest: each contender's figure of each round that it ended well.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    figures: Vec<Vec<Option<f64>>>,
    /// Output of each contender in these rounds.
    lines: Vec<Vec<Vec<String>>>,
}

/// The outcomes of some contests, what went wrong, and what they ran on.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) all: Vec<Outcome>,
    failures: Vec<String>,
    /// Contests in which a contender has no figure to compare with the first.
    missing: Vec<String>,
    ran_on: String,
    devices: Vec<String>,
}

impl Outcomes {
    /// Adds to the section of these outcomes what they ran on, and what is missing.
    pub(super) fn note_in(self, section: &mut Section) {
        section.ran_on = Some(self.ran_on);
        section.devices = self.devices;
        let missing = self.missing.into_iter();
        let missing = missing.map(|name| format!("not measured: {name}"));
        section.problems.extend(missing);
        section.failures = self.failures;
    }
}

impl Outcome {
    /// The difference between a long run and a short one, divided by `operations`.
    pub(super) fn difference(&self, short: usize, long: usize, operations: u64) -> Option<Spread> {
        let pairs = self.figures.get(long)?.iter().zip(self.figures.get(short)?);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let each = |(long, short): (&Option<f64>, &Option<f64>)| {
            Some(((*long)? - (*short)?) / operations as f64)
        };
        Spread::of(pairs.filter_map(each).collect())
    }

    #[cfg(test)]
    pub(super) const fn of_rounds(figures: Vec<Vec<Option<f64>>>) -> Self {
        let lines = Vec::new();
        Self { figures, lines }
    }

    fn of_none(contenders: usize, rounds: usize) -> Self {
        Self {
            figures: vec![vec![None; rounds]; contenders],
            lines: vec![vec![Vec::new(); rounds]; contenders],
        }
    }

    /// Whether each contender can be compared with the first.
    fn is_whole(&self) -> bool {
        let mut all = 0..self.figures.len();
        all.all(|contender| self.ratio(contender).is_some())
    }

    /// The figures of a contender.
    pub(super) fn of(&self, contender: usize) -> Option<Spread> {
        let figures = self.figures.get(contender)?;
        Spread::of(figures.iter().flatten().copied().collect())
    }

    /// The figures in other lines of a contender.
    pub(super) fn find(
        &self,
        contender: usize,
        read: impl Fn(&str) -> Option<f64>,
    ) -> Option<Spread> {
        let lines = self.lines.get(contender)?.iter().flatten();
        Spread::of(lines.filter_map(|line| read(line)).collect())
    }

    /// The ratios of a contender's figures to those of the first in the same round.
    pub(super) fn ratio(&self, contender: usize) -> Option<Spread> {
        let pairs = self.figures.get(contender)?.iter().zip(&self.figures[0]);
        let ratio = |(ours, first): (&Option<f64>, &Option<f64>)| Some((*ours)? / (*first)?);
        Spread::of(pairs.filter_map(ratio).collect())
    }
}

/// Prints what the devices are on, in a line of its own.
const RAN_ON: &str = "\
echo \"RESULT Linux $(uname -r) $(uname -m), ${SOFT_ROCE:-native} ${SOFT_ROCE_DRIVER:-$0}, $(nproc) processors:\" \
$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)";

/// Runs all contests, round after round.
pub(super) fn hold(
    contests: &[Contest],
    rounds: usize,
    plan: &Plan,
    part: &'static str,
) -> Result<Outcomes, Error> {
    let mut jobs = vec![job(
        "place",
        LIMIT,
        vec![words(&["sh", "-c", RAN_ON, "{device}"])],
    )];
    let devinfo = super::example("devinfo")?.display().to_string();
    let ends = plan.place.ends();
    for end in ends {
        let word = format!("{{{end}}}");
        jobs.push(job(end, LIMIT, vec![hardware::command(&devinfo, &word)]));
    }
    let mut tally = Tally::new(contests, rounds, ends.len());
    for (at, contest) in contests.iter().enumerate() {
        for round in 0..rounds {
            let mut order: Vec<_> = contest.contenders.iter().enumerate().collect();
            // In the other direction each time: what slows the machine down for a while is no one's.
            if round % 2 == 1 {
                order.reverse();
            }
            for (
                contender,
                Contender {
                    name,
                    server,
                    client,
                    ..
                },
            ) in order
            {
                let name = format!("{}, {name}, round {}", contest.name, round + 1);
                let commands = vec![server.clone(), client.clone()];
                jobs.push(job(&name, contest.limit, commands));
                tally.turns.push(Turn {
                    name,
                    at,
                    contender,
                    round,
                });
            }
        }
    }
    let mut progress = Progress::new(part, tally.turns.len());
    let mut sink = |job: &Job, event: Event<'_>| {
        if let Event::Start(name) = event
            && tally.turns.iter().any(|turn| turn.name == name)
        {
            progress.next(name);
        }
        let end = ends.iter().position(|end| *end == job.name);
        tally.event(&job.name, end, event);
    };
    match &plan.place {
        Place::SoftRoce(options) => jobs::run(&jobs, &options.of_kernel(), &mut sink)?,
        Place::Devices { own, peer } => jobs::run_on(&jobs, own, peer, &mut sink)?,
    }
    drop(progress);
    Ok(tally.outcomes(plan.gid.as_deref()))
}

/// One run of a contender.
struct Turn {
    name: String,
    /// Which contest.
    at: usize,
    contender: usize,
    round: usize,
}

/// Results of the runs so far.
struct Tally<'c> {
    contests: &'c [Contest],
    turns: Vec<Turn>,
    all: Vec<Outcome>,
    failures: Vec<String>,
    ran_on: String,
    /// Output about each device.
    devices: Vec<Vec<String>>,
}

impl<'c> Tally<'c> {
    fn new(contests: &'c [Contest], rounds: usize, ends: usize) -> Self {
        let none = |contest: &Contest| Outcome::of_none(contest.contenders.len(), rounds);
        Self {
            contests,
            turns: Vec::new(),
            all: contests.iter().map(none).collect(),
            failures: Vec::new(),
            ran_on: String::new(),
            devices: vec![Vec::new(); ends],
        }
    }

    /// Takes an event of a job: that of a turn, of a device with this number, or about the machine.
    fn event(&mut self, job: &str, device: Option<usize>, event: Event<'_>) {
        let turn = self.turns.iter().find(|turn| turn.name == job);
        let Some(turn) = turn else {
            return match (event, device.and_then(|at| self.devices.get_mut(at))) {
                (Event::Line(line), Some(lines)) => lines.push(line.to_owned()),
                (Event::Line(line), None) => {
                    let line = line.strip_prefix("RESULT ").unwrap_or(line);
                    self.ran_on = line.to_owned();
                }
                (Event::End(Err((_, why))), _) => self.failures.push(format!("{job}: {why}")),
                (Event::Start(_) | Event::End(Ok(())), _) => {}
            };
        };
        let outcome = &mut self.all[turn.at];
        let figure = &mut outcome.figures[turn.contender][turn.round];
        let lines = &mut outcome.lines[turn.contender][turn.round];
        match event {
            Event::Start(_) => {}
            Event::Line(line) => {
                lines.push(line.to_owned());
                let read = self.contests[turn.at].contenders[turn.contender].read;
                *figure = read(line).filter(|figure| *figure > 0.0).or(*figure);
            }
            // The output of a run that failed is no measurement.
            Event::End(Err((_, why))) => {
                *figure = None;
                let last = last_of(lines, why).map(|line| format!(": {line}"));
                let last = last.unwrap_or_default();
                self.failures.push(format!("{job}: {why}{last}"));
                lines.clear();
            }
            Event::End(Ok(())) if figure.is_none() => {
                self.failures.push(format!("{job}: it printed no figure"));
            }
            Event::End(Ok(())) => {}
        }
    }

    fn outcomes(self, gid: Option<&str>) -> Outcomes {
        let all = self.contests.iter().zip(&self.all);
        let missing = all.filter(|(_, outcome)| !outcome.is_whole());
        let missing = missing.map(|(contest, _)| contest.name.clone()).collect();
        let devices = self.devices.iter();
        let devices = devices.map(|lines| hardware::describe(lines, gid));
        Outcomes {
            missing,
            devices: devices.collect(),
            all: self.all,
            failures: self.failures,
            ran_on: self.ran_on,
        }
    }
}

/// The last line of the program that this failure names. `lines` has the output of all programs of
/// a failed run, each below a line with its name.
fn last_of<'l>(lines: &'l [String], why: &str) -> Option<&'l str> {
    let name = |line: &'l String| line.strip_prefix("--- ");
    let mut rest = lines.iter();
    rest.find(|line| name(line).is_some_and(|name| why.starts_with(name)))?;
    let own = rest.take_while(|line| name(line).is_none());
    own.last().map(|line| line.trim())
}

fn job(name: &str, limit: Duration, commands: Vec<Vec<String>>) -> Job {
    Job {
        name: name.to_owned(),
        dir: workspace::root().display().to_string(),
        env: Vec::new(),
        limits: Limits {
            total: limit,
            silence: limit,
        },
        commands,
        port: PORT,
    }
}

/// A command that runs a script with these arguments, `$0` first. It fails if any program of a pipe does:
/// dash, which may be `sh`, has no option for that.
pub(super) fn script(script: &str, arguments: &[&str]) -> Vec<String> {
    words(&[&["bash", "-o", "pipefail", "-c", script], arguments].concat())
}

/// Words of a command.
pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Contender, Contest, Event, LIMIT, Outcome, Spread, Tally, Turn, script};
    use std::process::Command;

    #[test]
    fn ratios_are_of_rounds_that_both_ended_well() {
        let outcome = Outcome::of_rounds(vec![
            vec![Some(2.0), Some(4.0), None],
            vec![Some(3.0), None, Some(9.0)],
        ]);
        let ratio = outcome.ratio(1).unwrap();
        assert_eq!((ratio.least, ratio.most), (1.5, 1.5));
        assert_eq!(outcome.of(1).unwrap().median, 6.0);
        assert_eq!(outcome.of(2), None);
        assert!(outcome.is_whole());
        assert_eq!(outcome.difference(0, 1, 2), Some(Spread::exactly(0.5)));
        let none = Outcome::of_rounds(vec![vec![None], vec![None]]);
        assert_eq!((none.of(0), none.ratio(1)), (None, None));
        assert!(!none.is_whole());
        // Each has a figure, but of another round.
        let apart = Outcome::of_rounds(vec![vec![Some(1.0), None], vec![None, Some(1.0)]]);
        assert!(!apart.is_whole());
    }

    #[test]
    fn a_run_that_fails_leaves_no_figure() {
        let contender = |name| Contender {
            name,
            server: Vec::new(),
            client: Vec::new(),
            read: |line| line.strip_prefix("RESULT ")?.parse().ok(),
        };
        let contests = [Contest {
            name: "all".to_owned(),
            limit: LIMIT,
            contenders: vec![contender("C"), contender("ours")],
        }];
        let mut tally = Tally::new(&contests, 2, 1);
        for (contender, round) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let name = format!("{contender} {round}");
            tally.turns.push(Turn {
                name: name.clone(),
                at: 0,
                contender,
                round,
            });
            tally.event(&name, None, Event::Start(&name));
            tally.event(&name, None, Event::Line("RESULT 4"));
            tally.event(&name, None, Event::Line("RESULT of something else"));
            let mut end = Ok(());
            if (contender, round) == (1, 0) {
                for line in ["--- server: a", "bound", "--- client: b", "x", "no peer"] {
                    tally.event(&name, None, Event::Line(line));
                }
                end = Err((1, "server: a ended with 1"));
            }
            tally.event(&name, None, Event::End(end));
        }
        tally.event("place", None, Event::Line("RESULT Linux"));
        tally.event("device", Some(0), Event::Line("hca_id: rxe0"));
        let outcomes = tally.outcomes(None);
        assert_eq!(outcomes.all[0].figures[0], [Some(4.0), Some(4.0)]);
        assert_eq!(outcomes.all[0].figures[1], [None, Some(4.0)]);
        let other = |line: &str| line.contains("else").then_some(1.0);
        assert!(outcomes.all[0].find(0, other).is_some());
        assert_eq!(outcomes.all[0].lines[1][0], Vec::<String>::new());
        assert_eq!(outcomes.failures, ["1 0: server: a ended with 1: bound"]);
        assert_eq!(outcomes.ran_on, "Linux");
        assert!(outcomes.devices[0].starts_with("rxe0: "));
        assert!(outcomes.missing.is_empty());
    }

    #[test]
    fn a_script_fails_if_a_program_of_a_pipe_does() {
        let run = |text, arguments: &[&str]| {
            let words = script(text, arguments);
            Command::new(&words[0]).args(&words[1..]).output().unwrap()
        };
        assert!(run("true | cat", &[]).status.success());
        assert_eq!(run("sh -c 'exit 3' | cat", &[]).status.code(), Some(3));
        assert_eq!(run("echo $0-$1", &["a", "b"]).stdout, b"a-b\n");
    }
}
