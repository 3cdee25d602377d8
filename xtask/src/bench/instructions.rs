//! Instructions and time of each operation, beside the same loop in C.

use std::fs;
use std::path::Path;

use super::callgrind::{self, Counts};
use super::chart::{Bar, Bars, Scale};
use super::clock::Times;
use super::operations::{Budget, OPERATIONS, Operation, Ours};
use super::plan::{Part, Plan};
use super::programs::{build_c, build_ours};
use super::progress::Progress;
use super::report::Section;
use super::samples::Spread;
use super::table::{Table, cell};
use crate::error::{Context as _, Error};
use crate::numbers::digits;
use crate::workspace;

const ABOUT: &str = "\
The programs run on a stand-in for libibverbs that completes every request at once. Instructions are those \
that callgrind counts in the loop and in the binding, without the stand-in's; the time is that of the \
processor, in nanoseconds, with the stand-in's, which is the same in both. Times are medians, with the least \
and the most in brackets; ratios are those of runs one after the other. Budgets are for x86-64.";

/// Each loop is run twice. The difference is the loop's alone: set-up and tear-down are in both.
const COUNTS: [u64; 2] = [1_000, 5_000];

/// The measurements, and the operations that exceed their budget.
pub(super) struct Measured {
    pub(super) section: Section,
    pub(super) rows: Vec<Row>,
}

/// Measures all operations.
pub(super) fn measure(plan: &Plan) -> Result<Measured, Error> {
    let rounds = plan.rounds(Part::Instructions);
    let dir = workspace::scratch_dir()?.join("bench");
    fs::create_dir_all(&dir).context(|| format!("cannot make the folder {}", dir.display()))?;
    println!("building the programs that are counted");
    let reference = build_c(&dir)?;
    let core = build_ours(Ours::Core)?;
    let channel = build_ours(Ours::Channel)?;
    let operations = build_ours(Ours::Async)?;
    let mut progress = Progress::new("instructions and times", OPERATIONS.len());
    let mut rows = Vec::new();
    for operation in &OPERATIONS {
        let program = match operation.ours {
            Ours::Core => &core,
            Ours::Channel => &channel,
            Ours::Async => &operations,
        };
        progress.next(operation.name);
        let c = cost(&reference, &dir, operation.c)?;
        let ours = cost(program, &dir, operation.name)?;
        let times = Times::measure(
            [
                (&reference, operation.c, c.instructions),
                (program, operation.name, ours.instructions),
            ],
            &dir,
            rounds,
        )?;
        let budget = operation.budget.among(&rows);
        rows.push(Row {
            operation,
            c,
            ours,
            times,
            budget,
        });
    }
    let mut section = section(&rows, rounds);
    section.command = plan.command(Part::Instructions);
    Ok(Measured { section, rows })
}

/// The cost of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    pub(super) instructions: f64,
    pub(super) allocations: f64,
}

pub(super) fn cost(program: &Path, dir: &Path, operation: &str) -> Result<Cost, Error> {
    let [short, long] = COUNTS;
    let run = |count| callgrind::count(program, dir, operation, count);
    Ok(per_operation(run(short)?, run(long)?, long - short))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn per_operation(short: Counts, long: Counts, operations: u64) -> Cost {
    let per = |short: u64, long: u64| long.saturating_sub(short) as f64 / operations as f64;
    Cost {
        instructions: per(short.instructions, long.instructions),
        allocations: per(short.allocations, long.allocations),
    }
}

/// An operation, measured.
pub(super) struct Row {
    pub(super) operation: &'static Operation,
    pub(super) c: Cost,
    pub(super) ours: Cost,
    pub(super) times: Option<Times>,
    /// The most instructions that ours may take, on x86-64.
    budget: Option<f64>,
}

impl Budget {
    /// In instructions, given the rows above.
    fn among(self, rows: &[Row]) -> Option<f64> {
        let row = |name| rows.iter().find(|row| row.operation.name == name);
        match self {
            Self::Any => None,
            Self::Most(most) => Some(most),
            Self::TenthAbove(name) => Some((row(name)?.ours.instructions * 1.1).floor()),
            Self::HundredthAbove(name) => Some((row(name)?.ours.instructions * 1.01).floor()),
        }
    }

    /// Whether what it is for may allocate.
    const fn may_allocate(self) -> bool {
        matches!(self, Self::Any | Self::HundredthAbove(_))
    }
}

impl Row {
    /// Whether ours takes more than it may: to one instruction, since the loop's own branches
    /// differ by fractions of one.
    fn is_over(&self) -> bool {
        let over = |budget: f64| self.ours.instructions.round() > budget;
        let is_x86 = cfg!(target_arch = "x86_64");
        let allocates = self.ours.allocations > 0.0 && !self.operation.budget.may_allocate();
        allocates || (is_x86 && self.budget.is_some_and(over))
    }
}

/// The table and the picture.
fn section(rows: &[Row], rounds: usize) -> Section {
    let heads = [
        "operation",
        "C",
        "here",
        "ratio",
        "budget",
        "allocations",
        "C ns",
        "here ns",
        "ratio of times",
    ];
    let mut table = Table::new(&heads);
    let mut bars = Vec::new();
    for row in rows {
        let Operation { name, what, .. } = row.operation;
        let (c, ours) = (row.c.instructions, row.ours.instructions);
        let time = |of: fn(&Times) -> Spread| row.times.as_ref().map(of);
        let over = if row.is_over() { " OVER" } else { "" };
        let budget = row
            .budget
            .map_or_else(|| "-".to_owned(), |budget| budget.to_string());
        table.row([
            format!("{what} (`{name}`)"),
            format!("{c:.1}"),
            format!("{ours:.1}"),
            format!("{:.2}", ours / c),
            budget + over,
            row.ours.allocations.to_string(),
            cell(time(|times| times.c), digits),
            cell(time(|times| times.ours), digits),
            cell(time(|times| times.ratio), |ratio| format!("{ratio:.2}")),
        ]);
        bars.push(Bar {
            name: (*what).to_owned(),
            values: vec![c, ours],
            limit: row.budget,
        });
    }
    let mut section = Section {
        title: "Instructions and time of each operation",
        about: ABOUT.into(),
        rounds,
        tables: vec![(
            format!("Instructions and nanoseconds of each operation, times of n = {rounds} rounds"),
            table,
        )],
        ..Section::default()
    };
    let bars = Bars {
        title: "Instructions of each operation (the mark is the budget)",
        names: &["C", "here"],
        scale: Scale::Log(10.0),
        rows: bars,
    };
    section.chart("instructions.svg", bars.svg());
    let tenths = |number: f64| (number * 10.0).round() / 10.0;
    let figures = rows.iter().map(|row| {
        let numbers = [row.c, row.ours].map(|cost| tenths(cost.instructions));
        (row.operation.name.to_owned(), numbers.into())
    });
    section.figures = figures.collect();
    section
}

/// The operations that take more than they may, if there are any.
pub(super) fn over_budget(rows: &[Row]) -> Option<String> {
    let over = rows.iter().filter(|row| row.is_over());
    let over: Vec<&str> = over.map(|row| row.operation.name).collect();
    (!over.is_empty()).then(|| format!("over the budget: {}", over.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::{
        Budget, Cost, Counts, OPERATIONS, Row, Spread, Times, over_budget, per_operation, section,
    };

    fn row(instructions: f64, allocations: f64) -> Row {
        let cost = |instructions, allocations| Cost {
            instructions,
            allocations,
        };
        Row {
            operation: &OPERATIONS[0],
            c: cost(50.0, 0.0),
            ours: cost(instructions, allocations),
            times: None,
            budget: OPERATIONS[0].budget.among(&[]),
        }
    }

    #[test]
    fn set_up_is_not_counted() {
        let counts = |instructions, allocations| Counts {
            instructions,
            allocations,
        };
        let cost = per_operation(counts(90_000, 7), counts(150_000, 7), 1_000);
        assert_eq!(
            cost,
            Cost {
                instructions: 60.0,
                allocations: 0.0
            }
        );
    }

    #[test]
    fn the_table_shows_both_and_their_ratio() {
        let times = Times {
            c: Spread::exactly(20.0),
            ours: Spread::exactly(30.0),
            ratio: Spread::exactly(1.5),
        };
        let timed = Row {
            times: Some(times),
            ..row(60.0, 0.5)
        };
        let section = section(&[row(45.0, 0.0), timed], 5);
        let [(caption, table)] = &section.tables[..] else {
            panic!("one table");
        };
        assert!(caption.ends_with("times of n = 5 rounds"), "{caption}");
        let text = table.markdown();
        assert!(
            text.contains("| 50.0 | 45.0 | 0.90 | 46 | 0 | - | - | - |"),
            "{text}"
        );
        // Over, wherever this runs: it allocates.
        assert!(
            text.contains("| 46 OVER | 0.5 | 20.0 | 30.0 | 1.50 |"),
            "{text}"
        );
        assert_eq!(section.charts.len(), 1);
    }

    #[test]
    fn a_row_may_take_a_tenth_more_than_another() {
        let name = OPERATIONS[0].name;
        let rows = [row(40.0, 0.0)];
        assert_eq!(Budget::TenthAbove(name).among(&rows), Some(44.0));
        assert_eq!(Budget::TenthAbove("none").among(&rows), None);
        assert_eq!(
            Budget::HundredthAbove(name).among(&[row(400.0, 0.0)]),
            Some(404.0)
        );
        for operation in &OPERATIONS {
            if let Budget::TenthAbove(name) | Budget::HundredthAbove(name) = operation.budget {
                assert!(OPERATIONS.iter().any(|other| other.name == name));
            }
        }
    }

    #[test]
    fn an_allocation_is_over_any_budget_of_a_data_path() {
        assert_eq!(over_budget(&[row(10.0, 0.0)]), None);
        assert!(over_budget(&[row(10.0, 0.001)]).is_some());
        let operation = OPERATIONS.iter().find(|other| other.name == "rejoin64");
        let operation = operation.unwrap();
        let control = Row {
            operation,
            ..row(10.0, 7.0)
        };
        assert_eq!(over_budget(&[control]), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn more_instructions_than_the_budget_are_over_it() {
        assert_eq!(over_budget(&[row(46.4, 0.0)]), None);
        let over = over_budget(&[row(47.0, 0.0)]);
        assert_eq!(over.as_deref(), Some("over the budget: send1"));
    }
}
