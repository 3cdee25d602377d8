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

/// The longest that one run may take.
const LIMIT: Duration = Duration::from_secs(120);

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
    pub(super) contenders: Vec<Contender>,
}

/// What was measured of a contest: of each contender, the figure of each round that it ended well.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    figures: Vec<Vec<Option<f64>>>,
    /// What each contender printed, in all rounds.
    lines: Vec<Vec<String>>,
}

/// The outcomes of some contests, what went wrong, and what they ran on.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) all: Vec<Outcome>,
    failures: Vec<String>,
    /// Contests in which a contender has no figure at all.
    missing: Vec<String>,
    ran_on: String,
    devices: Vec<String>,
}

impl Outcomes {
    /// Adds to the section of these outcomes what they ran on, and what is missing.
    pub(super) fn note_in(self, section: &mut Section) {
        section.ran_on = Some(self.ran_on);
        section.devices = self.devices;
        section.missing = self.missing;
        section.failures = self.failures;
    }
}

impl Outcome {
    /// How much more of something a long run has than a short one, for each of so many operations.
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

    /// Whether each contender has a figure.
    fn is_whole(&self) -> bool {
        let mut all = self.figures.iter();
        all.all(|figures| figures.iter().any(Option::is_some))
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
        let lines = self.lines.get(contender)?.iter();
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
    let mut turns = Vec::new();
    let mut jobs = vec![job("place", vec![words(&["sh", "-c", RAN_ON, "{device}"])])];
    let devinfo = super::example("devinfo")?.display().to_string();
    let ends = plan.place.ends();
    for end in ends {
        let word = format!("{{{end}}}");
        jobs.push(job(end, vec![hardware::command(&devinfo, &word)]));
    }
    let mut printed = vec![Vec::new(); ends.len()];
    for (at, contest) in contests.iter().enumerate() {
        for round in 0..rounds {
            let mut order: Vec<_> = contest.contenders.iter().enumerate().collect();
            // In the other direction each time: what slows the machine down for a while is no one's.
            if round % 2 == 1 {
                order.reverse();
            }
            for (number, contender) in order {
                let name = format!("{}, {}, round {}", contest.name, contender.name, round + 1);
                let commands = vec![contender.server.clone(), contender.client.clone()];
                jobs.push(job(&name, commands));
                turns.push((name, at, number, round));
            }
        }
    }
    let empty = |contest: &Contest| Outcome {
        figures: vec![vec![None; rounds]; contest.contenders.len()],
        lines: vec![Vec::new(); contest.contenders.len()],
    };
    let mut outcomes = Outcomes {
        all: contests.iter().map(empty).collect(),
        failures: Vec::new(),
        missing: Vec::new(),
        ran_on: String::new(),
        devices: Vec::new(),
    };
    let mut progress = Progress::new(part, turns.len());
    let mut sink = |job: &Job, event: Event<'_>| {
        let turn = turns.iter().find(|(name, ..)| *name == job.name);
        match (event, turn) {
            (Event::Start(name), Some(_)) => progress.next(name),
            (Event::Line(line), None) => {
                if let Some(end) = ends.iter().position(|end| *end == job.name) {
                    printed[end].push(line.to_owned());
                    return;
                }
                let line = line.strip_prefix("RESULT ").unwrap_or(line);
                outcomes.ran_on = line.to_owned();
            }
            (Event::Line(line), Some(&(_, at, number, round))) => {
                outcomes.all[at].lines[number].push(line.to_owned());
                let figure = (contests[at].contenders[number].read)(line);
                if let Some(figure) = figure.filter(|figure| *figure > 0.0) {
                    outcomes.all[at].figures[number][round] = Some(figure);
                }
            }
            (Event::End(Err((_, why))), _) => {
                outcomes.failures.push(format!("{}: {why}", job.name));
            }
            (Event::End(Ok(())), Some(&(_, at, number, round)))
                if outcomes.all[at].figures[number][round].is_none() =>
            {
                let name = &job.name;
                outcomes
                    .failures
                    .push(format!("{name}: it printed no figure"));
            }
            (Event::Start(_) | Event::End(Ok(())), _) => {}
        }
    };
    match &plan.place {
        Place::SoftRoce(options) => jobs::run(&jobs, options, &mut sink)?,
        Place::Devices { own, peer } => jobs::run_on(&jobs, own, peer, &mut sink)?,
    }
    let devices = printed.iter();
    let devices = devices.map(|lines| hardware::describe(lines, plan.gid.as_deref()));
    outcomes.devices = devices.collect();
    let all = contests.iter().zip(&outcomes.all);
    let missing = all.filter(|(_, outcome)| !outcome.is_whole());
    outcomes.missing = missing.map(|(contest, _)| contest.name.clone()).collect();
    Ok(outcomes)
}

fn job(name: &str, commands: Vec<Vec<String>>) -> Job {
    Job {
        name: name.to_owned(),
        dir: workspace::root().display().to_string(),
        env: Vec::new(),
        limits: Limits {
            total: LIMIT,
            silence: LIMIT,
        },
        commands,
        port: PORT,
    }
}

/// Words of a command.
pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Spread};

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
    }
}
