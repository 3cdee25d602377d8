//! Latency and bandwidth of verbs-core beside C's perftest, in pairs of runs.

use std::path::Path;

use super::chart::{Lines, Scale, Series};
use super::contest::{self, Contender, Contest, Outcome, Place};
use super::perf::{Kind, Run};
use super::plan::{Part, Plan};
use super::report::Section;
use super::samples::Spread;
use super::table::{Table, cell, ratio};
use crate::error::Error;
use crate::numbers::{digits, size};

const ABOUT: &str = "\
C's `ib_…_lat` and `ib_…_bw` and the example `perf` on verbs-core run in turns, both polled, with the two ends \
pinned to a processor each. Latencies are medians, in microseconds: half of a round trip of sends and writes, \
the whole of reads and atomics. Bandwidths are in megabytes per second, of all queue pairs together. Each \
figure is the median of the rounds, with the least and the most in brackets; a ratio is the median of those of \
the rounds, here to perftest. With 1 queue pair, perftest runs twice in each round: its ratio to itself shows how much of \
the others is the machine.";

/// The second run of C's program in a round.
const CONTROL: usize = 2;

/// A comparison, and where it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    kind: Kind,
    op: &'static str,
    size: u64,
    qps: u64,
}

/// The comparisons: latencies, then bandwidths with 1 and with 16 queue pairs.
fn cases(full: bool, is_soft_roce: bool) -> Vec<Case> {
    let all: Vec<u32> = (1..=20).collect();
    let few = [1, 12, 16, 20];
    let groups = [
        (Kind::Latency, 1),
        (Kind::Bandwidth, 1),
        (Kind::Bandwidth, 16),
    ];
    let mut cases = Vec::new();
    for (kind, qps) in groups {
        let powers = if full { &all[..] } else { &few };
        let sizes: Vec<u64> = powers.iter().map(|power| 1 << power).collect();
        for op in ["send", "write", "read"] {
            cases.extend(sizes.iter().map(|size| Case {
                kind,
                op,
                size: *size,
                qps,
            }));
        }
        if kind == Kind::Latency {
            cases.push(Case {
                kind,
                op: "atomic",
                size: 8,
                qps,
            });
        }
    }
    // On soft-RoCE, long reads of 16 queue pairs fail, C's program's, too.
    let fails = |case: &Case| case.op == "read" && case.qps == 16 && case.size >= 1 << 20;
    cases.retain(|case| !(is_soft_roce && fails(case)));
    cases
}

impl Case {
    /// How many operations on each connection, so that it takes a second or so.
    fn count(&self, place: &Place) -> u64 {
        let (bytes, most) = match (place, self.kind) {
            (Place::SoftRoce(_), Kind::Latency) => (4 << 20, 300),
            (Place::SoftRoce(_), _) => (16 << 20, 2000),
            (Place::Devices { .. }, Kind::Latency) => (1 << 30, 10_000),
            (Place::Devices { .. }, _) => (8 << 30, 50_000),
        };
        // C's programs require 5.
        (bytes / self.size).min(most).div_euclid(self.qps).max(5)
    }

    /// Whether C's program is compared with itself, too.
    const fn has_control(&self) -> bool {
        self.qps == 1
    }

    /// The names of its figures, each with the contender whose ratio to the first it is.
    fn figures(&self) -> impl Iterator<Item = (String, usize)> {
        let name = self.name();
        let control = self
            .has_control()
            .then(|| (format!("{name}, control"), CONTROL));
        [(name, 1)].into_iter().chain(control)
    }

    fn name(&self) -> String {
        let Self { kind, op, qps, .. } = self;
        let size = size(self.size);
        match kind {
            Kind::Latency => format!("latency, {op}, {size}"),
            _ if *qps == 1 => format!("bandwidth, {op}, {size}, 1 queue pair"),
            _ => format!("bandwidth, {op}, {size}, {qps} queue pairs"),
        }
    }
}

/// Measures all of them.
pub(super) fn measure(plan: &Plan, program: &Path) -> Result<Section, Error> {
    let cases = cases(plan.full, plan.is_soft_roce());
    let processors = plan.processors();
    let contests: Vec<Contest> = cases
        .iter()
        .map(|case| {
            let run = Run {
                kind: case.kind,
                op: case.op,
                size: case.size,
                qps: case.qps,
                count: case.count(&plan.place),
                depth: Some(case.count(&plan.place).min(128)),
                processors: &processors,
                gid: plan.gid.as_deref(),
            };
            let mut contenders = vec![run.perftest(), run.ours("verbs-core", program, &[])];
            if case.has_control() {
                let name = "perftest again";
                contenders.push(Contender {
                    name,
                    ..run.perftest()
                });
            }
            let name = case.name();
            Contest {
                name,
                limit: contest::LIMIT,
                contenders,
            }
        })
        .collect();
    let rounds = plan.rounds(Part::Perftest);
    let outcomes = contest::hold(&contests, rounds, plan, "pairs with perftest")?;
    let mut section = section(&cases, &outcomes.all, rounds);
    section.about = ABOUT.to_owned();
    section.command = plan.command(Part::Perftest);
    let ratios = cases.iter().zip(&outcomes.all);
    let ratios = ratios.flat_map(|(case, outcome)| {
        case.figures().filter_map(|(name, contender)| {
            let ratio = outcome.ratio(contender)?;
            let numbers = [ratio.least, ratio.median, ratio.most];
            Some((name, numbers.map(rounded).into()))
        })
    });
    section.figures = ratios.collect();
    outcomes.note_in(&mut section);
    Ok(section)
}

/// To three digits after the point.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e3).round() / 1e3
}

fn section(cases: &[Case], outcomes: &[Outcome], rounds: usize) -> Section {
    let mut section = Section {
        title: "Beside perftest",
        rounds,
        ..Section::default()
    };
    let groups = [
        (Kind::Latency, 1, "latency", "Latency, µs"),
        (
            Kind::Bandwidth,
            1,
            "bandwidth-1",
            "Bandwidth, MB/s, 1 queue pair",
        ),
        (
            Kind::Bandwidth,
            16,
            "bandwidth-16",
            "Bandwidth, MB/s, 16 queue pairs",
        ),
    ];
    for (kind, qps, file, caption) in groups {
        let of_group = |case: &Case| (case.kind, case.qps) == (kind, qps);
        let group: Vec<(&Case, &Outcome)> = cases
            .iter()
            .zip(outcomes)
            .filter(|(case, _)| of_group(case))
            .collect();
        let mut table = Table::new(&[
            "operation",
            "perftest",
            "verbs-core",
            "ratio",
            "perftest again",
        ]);
        for (case, outcome) in &group {
            table.row([
                format!("{}, {}", case.op, size(case.size)),
                cell(outcome.of(0), digits),
                cell(outcome.of(1), digits),
                cell(outcome.ratio(1), ratio),
                cell(outcome.ratio(CONTROL), ratio),
            ]);
        }
        section
            .tables
            .push((format!("{caption}, n = {rounds}"), table));
        let unit = if kind == Kind::Latency { "µs" } else { "MB/s" };
        let both = ["perftest", "verbs-core"].into_iter().enumerate();
        let all = both.flat_map(|(at, name)| {
            let of = move |outcome: &Outcome| outcome.of(at);
            series(&group, &format!(", {name}"), of)
        });
        let chart = lines(caption, (unit, Scale::Log(10.0)), None, all.collect());
        section.chart(&format!("{file}.svg"), chart);
        let ratios = series(&group, "", |outcome| outcome.ratio(1));
        let title = format!("{caption}: ratio to perftest");
        let chart = lines(&title, ("ratio", Scale::Linear), Some(1.0), ratios);
        section.chart(&format!("{file}-ratio.svg"), chart);
    }
    section
}

/// The points of each operation that has more than one.
fn series(
    group: &[(&Case, &Outcome)],
    suffix: &str,
    of: impl Fn(&Outcome) -> Option<Spread>,
) -> Vec<Series> {
    let ops = ["send", "write", "read"].into_iter();
    ops.map(|op| {
        let points = group.iter().filter(|(case, _)| case.op == op);
        #[expect(clippy::cast_precision_loss, reason = "at most 2^20")]
        let points = points.filter_map(|(case, outcome)| Some((case.size as f64, of(outcome)?)));
        Series {
            name: format!("{op}{suffix}"),
            points: points.collect(),
        }
    })
    .collect()
}

fn lines(title: &str, y: (&str, Scale), level: Option<f64>, series: Vec<Series>) -> Option<String> {
    let lines = Lines {
        title,
        x: ("bytes of a message", Scale::Log(2.0)),
        y,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 2^20"
        )]
        name: |bytes| size(bytes as u64),
        level,
        series,
    };
    lines.svg()
}

#[cfg(test)]
mod tests {
    use super::{Case, Kind, Outcome, Place, cases, section};
    use crate::bench::ratios;

    #[test]
    fn each_group_has_all_sizes_and_atomics_have_one() {
        for (full, count) in [(false, 37), (true, 181)] {
            let cases = cases(full, false);
            assert_eq!(cases.len(), count);
            let of = |size| cases.iter().filter(|case| case.size == size).count();
            assert_eq!((of(2), of(1 << 20)), (9, 9));
            assert_eq!(super::cases(full, true).len(), count - 1);
            let mut names: Vec<String> = cases.iter().map(Case::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), cases.len());
        }
    }

    #[test]
    fn the_docs_show_what_is_measured() {
        let cases = cases(false, true);
        let names: Vec<String> = cases
            .iter()
            .flat_map(Case::figures)
            .map(|(name, _)| name)
            .collect();
        for name in ratios::needed() {
            assert!(names.contains(&name), "{name}");
        }
    }

    #[test]
    fn long_messages_are_few_and_never_too_few() {
        let place = Place::SoftRoce(Box::default());
        for case in cases(true, false) {
            let count = case.count(&place);
            assert!((5..=2000).contains(&count), "{case:?}: {count}");
            assert!(count * case.size * case.qps <= 128 << 20, "{case:?}");
        }
    }

    #[test]
    fn the_tables_have_both_and_their_ratio() {
        let case = |op| Case {
            kind: Kind::Latency,
            op,
            size: 64,
            qps: 1,
        };
        let pair = Outcome::of_rounds(vec![vec![Some(4.0), Some(4.0)], vec![Some(5.0), Some(6.0)]]);
        let none = Outcome::of_rounds(vec![vec![None], vec![None]]);
        let section = section(&[case("send"), case("read")], &[pair, none], 2);
        let text = section.tables[0].1.markdown();
        assert!(
            text.contains("| send, 64 B | 4.00 | 5.50 (5.00 to 6.00) | 1.38 (1.25 to 1.50) | - |"),
            "{text}"
        );
        assert!(text.contains("| read, 64 B | - | - | - | - |"), "{text}");
        let files: Vec<&str> = section.charts.iter().map(|(file, _)| &**file).collect();
        assert_eq!(files, ["latency.svg", "latency-ratio.svg"]);
    }
}
