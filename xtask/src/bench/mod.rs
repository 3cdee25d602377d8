//! `cargo xtask bench`: instructions per operation, and bandwidth, beside the same work in C.

mod bandwidth;
mod callgrind;
mod operations;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::args::Args;
use crate::error::{Context as _, Error};
use crate::jobs;
use crate::packages;
use crate::process;
use crate::workspace;
use callgrind::Counts;
use operations::{Budget, OPERATIONS, Operation, Ours};

const HELP: &str = "\
Counts instructions per operation, of verbs-core, verbs-channel and verbs-async, beside the same
work in C.

Usage: cargo xtask bench [OPTION]

The programs run under callgrind, on a stand-in for libibverbs that completes every request at
once; its own instructions are not counted. What is left is the loop and what the binding costs.

  --bandwidth     instead, compare the bandwidth of kv_transfer with that of C's ib_write_bw over
                  soft-RoCE, in pairs of runs
  --guest         with --bandwidth: in a virtual machine, even if this kernel has soft-RoCE
  --native        with --bandwidth: soft-RoCE of this kernel, or fail
  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

/// Each loop is run twice. What the longer run takes more is the loop's alone: set-up and tear-down
/// are in both.
const COUNTS: [u64; 2] = [1_000, 5_000];

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let policy = args.policy()?;
    if args.flag("--bandwidth") {
        let options = jobs::options(&mut args, policy)?;
        args.finish()?;
        let needs = [&packages::BUILD[..], &[packages::PERFTEST]].concat();
        packages::ensure(&[needs, soft_roce::needs(&options)].concat(), policy)?;
        bandwidth::compare(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    args.finish()?;
    packages::ensure(
        &[&packages::BUILD[..], &[packages::VALGRIND]].concat(),
        policy,
    )?;

    let dir = workspace::scratch_dir()?.join("bench");
    fs::create_dir_all(&dir).context(|| format!("cannot make the folder {}", dir.display()))?;
    println!("building the programs");
    let reference = build_c(&dir)?;
    let core = build_ours(Ours::Core)?;
    let channel = build_ours(Ours::Channel)?;
    let operations = build_ours(Ours::Async)?;
    let mut rows = Vec::new();
    for operation in &OPERATIONS {
        let c = measure(&reference, &dir, operation.c)?;
        let program = match operation.ours {
            Ours::Core => &core,
            Ours::Channel => &channel,
            Ours::Async => &operations,
        };
        let ours = measure(program, &dir, operation.name)?;
        let budget = operation.budget.among(&rows);
        rows.push(Row {
            operation,
            c,
            ours,
            budget,
        });
    }
    print!("{}", table(&rows));
    judge(&rows)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the stand-in and the C loops, as fast as the C compiler can make them.
fn build_c(dir: &Path) -> Result<PathBuf, Error> {
    let sources = workspace::root().join("verbs-core/benches/c");
    let flags = process::output(Command::new("pkg-config").args(["--cflags", "libibverbs"]))?;
    let cc = |output: &Path| {
        let mut cc = Command::new("cc");
        cc.args(["-O3", "-Wall", "-Wextra"])
            .args(flags.split_whitespace());
        cc.arg("-o").arg(output).current_dir(&sources);
        cc
    };
    let library = dir.join("libibverbs.so.1");
    let mut shared = cc(&library);
    shared.args(["-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1"]);
    shared.args([
        "-Wl,--version-script=libibverbs.map",
        "provider.c",
        "unsupported.c",
    ]);
    process::run(&mut shared)?;
    let reference = dir.join("reference");
    process::run(cc(&reference).arg("reference.c").arg(library))?;
    Ok(reference)
}

/// Builds loops of ours with the bench profile: optimised, with link-time optimisation.
fn build_ours(ours: Ours) -> Result<PathBuf, Error> {
    let (package, target) = ours.names();
    let built = workspace::build(&[
        "bench",
        &format!("--package={package}"),
        &format!("--bench={target}"),
        "--no-run",
        "--message-format=json-render-diagnostics",
    ])?;
    let is_it = |artifact: &workspace::Artifact| artifact.target == target;
    let found = built
        .into_iter()
        .find(is_it)
        .map(|artifact| artifact.executable);
    found.ok_or_else(|| Error::new(format!("cargo built no program `{target}`")))
}

/// What one operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    instructions: f64,
    allocations: f64,
}

fn measure(program: &Path, dir: &Path, operation: &str) -> Result<Cost, Error> {
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

struct Row<'a> {
    operation: &'a Operation,
    c: Cost,
    ours: Cost,
    /// The most instructions that ours may take, on x86-64.
    budget: Option<f64>,
}

impl Budget {
    /// In instructions, given the rows above.
    fn among(self, rows: &[Row<'_>]) -> Option<f64> {
        let row = |name| rows.iter().find(|row| row.operation.name == name);
        match self {
            Self::Control => None,
            Self::Most(most) => Some(most),
            Self::Like(name) => Some((row(name)?.ours.instructions * 1.1).floor()),
            Self::Same(name) => Some((row(name)?.ours.instructions * 1.01).floor()),
        }
    }

    /// Whether what it is for may allocate.
    const fn may_allocate(self) -> bool {
        matches!(self, Self::Control | Self::Same(_))
    }
}

impl Row<'_> {
    /// Whether ours takes more than it may: to one instruction, since the loop's own branches
    /// differ by fractions of one.
    fn is_over(&self) -> bool {
        let over = |budget: f64| self.ours.instructions.round() > budget;
        let is_x86 = cfg!(target_arch = "x86_64");
        let allocates = self.ours.allocations > 0.0 && !self.operation.budget.may_allocate();
        allocates || (is_x86 && self.budget.is_some_and(over))
    }
}

fn table(rows: &[Row<'_>]) -> String {
    let mut text = format!(
        "\n{:<18}{:<48}{:>8}{:>8}{:>7}{:>8}{:>8}\n",
        "instructions", " per operation", "C", "ours", "ratio", "budget", "allocs"
    );
    for row in rows {
        let Operation { name, what, .. } = row.operation;
        let (c, ours) = (row.c.instructions, row.ours.instructions);
        let budget = row
            .budget
            .map_or_else(|| "-".into(), |budget| budget.to_string());
        let over = if row.is_over() { "  OVER" } else { "" };
        text.push_str(&format!(
            "{name:<18}{what:<48}{c:>8.1}{ours:>8.1}{:>7.2}{budget:>8}{:>8}{over}\n",
            ours / c,
            row.ours.allocations,
        ));
    }
    text
}

/// An error if any operation takes more than it may.
fn judge(rows: &[Row<'_>]) -> Result<(), Error> {
    let over: Vec<&str> = rows
        .iter()
        .filter(|row| row.is_over())
        .map(|row| row.operation.name)
        .collect();
    if over.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!("over the budget: {}", over.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::{Budget, Cost, Counts, OPERATIONS, Row, judge, per_operation, table};

    fn row(instructions: f64, allocations: f64) -> Row<'static> {
        let cost = |instructions, allocations| Cost {
            instructions,
            allocations,
        };
        Row {
            operation: &OPERATIONS[0],
            c: cost(50.0, 0.0),
            ours: cost(instructions, allocations),
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
        let table = table(&[row(45.0, 0.0)]);
        let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert!(
            last.ends_with(&["50.0", "45.0", "0.90", "46", "0"]),
            "{table}"
        );
    }

    #[test]
    fn a_row_may_take_a_tenth_more_than_another() {
        let name = OPERATIONS[0].name;
        let rows = [row(40.0, 0.0)];
        assert_eq!(Budget::Like(name).among(&rows), Some(44.0));
        assert_eq!(Budget::Like("none").among(&rows), None);
        assert_eq!(Budget::Same(name).among(&[row(400.0, 0.0)]), Some(404.0));
        for operation in &OPERATIONS {
            if let Budget::Like(name) | Budget::Same(name) = operation.budget {
                assert!(OPERATIONS.iter().any(|other| other.name == name));
            }
        }
    }

    #[test]
    fn an_allocation_is_over_any_budget_of_a_data_path() {
        assert!(judge(&[row(10.0, 0.0)]).is_ok());
        assert!(judge(&[row(10.0, 0.001)]).is_err());
        let operation = OPERATIONS.iter().find(|other| other.name == "rejoin64");
        let operation = operation.unwrap();
        assert!(
            judge(&[Row {
                operation,
                ..row(10.0, 7.0)
            }])
            .is_ok()
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn more_instructions_than_the_budget_are_over_it() {
        assert!(judge(&[row(46.4, 0.0)]).is_ok());
        let error = judge(&[row(47.0, 0.0)]).unwrap_err();
        assert!(error.to_string().contains("send1"), "{error}");
    }
}
