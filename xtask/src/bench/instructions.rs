//! Instructions and allocations of each operation, counted by callgrind, beside the same loop in C.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Context as _, Error};
use crate::process::{output, run, run_quietly};
use crate::progress::Progress;
use crate::workspace;

/// The crates, each with its bench.
const BENCHES: [(&str, &str); 3] = [
    ("verbs-core", "data_path"),
    ("verbs-channel", "channel"),
    ("verbs-async", "operations"),
];

/// The counts of operations of two runs, whose difference has no set-up in it.
const COUNTS: [u64; 2] = [1_000, 5_000];

/// Counts of a run, or of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    /// Without those of the stand-in for libibverbs.
    instructions: f64,
    allocations: f64,
}

/// An operation that was measured.
#[derive(Debug)]
struct Row {
    name: String,
    ours: Counts,
    /// The most instructions, if there is a limit.
    limit: Option<f64>,
    may_allocate: bool,
}

/// Prints the table of all operations, and returns the names of those that exceed their budget.
pub(super) fn measure() -> Result<Vec<String>, Error> {
    let dir = workspace::scratch_dir()?.join("bench");
    fs::create_dir_all(&dir).context(|| format!("cannot make the folder {}", dir.display()))?;
    println!("building the programs that are counted");
    let reference = build_c(&dir)?;
    let mut programs = Vec::new();
    for (package, bench) in BENCHES {
        programs.push(build_ours(package, bench)?);
    }
    println!("\n| operation | C | here | budget | allocations |\n|---|---:|---:|---:|---:|");
    let shown = Progress::of("instructions");
    let mut rows: Vec<Row> = Vec::new();
    // Several operations have the same twin in C.
    let mut twins: BTreeMap<String, Counts> = BTreeMap::new();
    for ((package, _), program) in BENCHES.iter().zip(&programs) {
        let path = workspace::root().join(package).join("benches/budgets.txt");
        let text =
            fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let [name, twin, budget] = [(); 3].map(|()| words.next().unwrap_or_default());
            let words = words.collect::<Vec<_>>().join(" ");
            shown.doing(name);
            let c = match twins.get(twin) {
                Some(counted) => *counted,
                None => cost(&reference, &dir, twin)?,
            };
            twins.insert(twin.to_owned(), c);
            let ours = cost(program, &dir, name)?;
            let (limit, may_allocate) = limits(budget, &rows)
                .ok_or_else(|| Error::new(format!("{}: a budget in {line}", path.display())))?;
            let row = Row {
                name: name.to_owned(),
                ours,
                limit,
                may_allocate,
            };
            let over = if row.is_over() { " OVER" } else { "" };
            crate::progress::print(&format!(
                "| {words} (`{name}`) | {:.1} | {:.1} | {}{over} | {} |",
                c.instructions,
                ours.instructions,
                limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string()),
                ours.allocations
            ));
            rows.push(row);
        }
    }
    let over = rows.into_iter().filter(Row::is_over);
    Ok(over.map(|row| row.name).collect())
}

/// The limit of a budget, and whether allocations are permitted: `46`, `any`, or `NAME+10%` of a row before it.
fn limits(budget: &str, rows: &[Row]) -> Option<(Option<f64>, bool)> {
    if budget == "any" {
        return Some((None, true));
    }
    let Some((name, percent)) = budget
        .strip_suffix('%')
        .and_then(|text| text.split_once('+'))
    else {
        return Some((Some(budget.parse().ok()?), false));
    };
    let base = rows.iter().find(|row| row.name == name)?;
    let factor = 1.0 + percent.parse::<f64>().ok()? / 100.0;
    let most = (base.ours.instructions * factor).floor();
    Some((Some(most), base.may_allocate))
}

impl Row {
    fn is_over(&self) -> bool {
        let allocates = self.ours.allocations > 0.0 && !self.may_allocate;
        // Budgets are for this processor.
        let is_counted = cfg!(target_arch = "x86_64");
        let over = |limit: f64| is_counted && self.ours.instructions.round() > limit;
        allocates || self.limit.is_some_and(over)
    }
}

/// Builds the stand-in for libibverbs and the C loops, as fast as the C compiler can make them.
fn build_c(dir: &Path) -> Result<PathBuf, Error> {
    let flags = output(Command::new("pkg-config").args(["--cflags", "libibverbs"]))?;
    let cc = |name: &str, args: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(["-O3", "-Wall", "-Wextra"])
            .args(flags.split_whitespace());
        cc.arg("-o").arg(dir.join(name)).args(args);
        run(cc.current_dir(workspace::root().join("verbs-core/benches/c")))
    };
    let shared = "-fPIC -shared -Wl,-soname,libibverbs.so.1 -Wl,--version-script=libibverbs.map provider.c unsupported.c";
    let library = dir.join("libibverbs.so.1");
    cc("libibverbs.so.1", &shared.split(' ').collect::<Vec<_>>())?;
    cc("reference", &["reference.c", &library.to_string_lossy()])?;
    Ok(dir.join("reference"))
}

/// Builds loops of ours with the bench profile: optimised, with link-time optimisation.
fn build_ours(package: &str, bench: &str) -> Result<PathBuf, Error> {
    let (package, target) = (format!("--package={package}"), format!("--bench={bench}"));
    let json = "--message-format=json-render-diagnostics";
    let built = workspace::build(&["bench", &package, &target, "--no-run", json])?;
    let found = built.into_iter().find(|artifact| artifact.target == bench);
    let found = found.map(|artifact| artifact.executable);
    found.ok_or_else(|| Error::new(format!("cargo built no program `{bench}`")))
}

/// The cost of one operation.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn cost(program: &Path, dir: &Path, operation: &str) -> Result<Counts, Error> {
    let [short, long] = [
        count(program, dir, operation, COUNTS[0])?,
        count(program, dir, operation, COUNTS[1])?,
    ];
    let per = |long: f64, short: f64| (long - short).max(0.0) / (COUNTS[1] - COUNTS[0]) as f64;
    Ok(Counts {
        instructions: per(long.instructions, short.instructions),
        allocations: per(long.allocations, short.allocations),
    })
}

/// Runs `program OPERATION COUNT` under callgrind; `dir` has the stand-in.
fn count(program: &Path, dir: &Path, operation: &str, count: u64) -> Result<Counts, Error> {
    let file = dir.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([operation, &count.to_string()])
        .env("LD_LIBRARY_PATH", dir);
    run_quietly(&mut command, operation, Duration::from_secs(120))?;
    let profile = fs::read_to_string(&file);
    let profile = profile.context(|| format!("cannot read {}", file.display()))?;
    let library = dir.join("libibverbs.so.1").display().to_string();
    let counts = read(&profile, &library);
    counts.ok_or_else(|| {
        Error::new(format!(
            "{operation}: callgrind counted nothing of {library}"
        ))
    })
}

/// Adds up a profile, but for the instructions of `library`, which has to be in it.
fn read(profile: &str, library: &str) -> Option<Counts> {
    let (mut counts, mut is_seen) = (Counts::default(), false);
    let (mut object, mut called) = ("", "");
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        let number = |line: &str, at| line.split(' ').nth(at)?.parse::<f64>().ok();
        match line.split_once('=') {
            Some(("ob", name)) => {
                object = name;
                is_seen |= object == library;
            }
            Some(("cfn", name)) => called = name,
            Some(("calls", calls)) => {
                if is_allocator(called) {
                    counts.allocations += number(calls, 0)?;
                }
                // The cost of the function that was called is counted there.
                lines.next();
            }
            None if line.starts_with(|c: char| c.is_ascii_digit()) && object != library => {
                counts.instructions += number(line, 1)?;
            }
            _ => {}
        }
    }
    is_seen.then_some(counts)
}

fn is_allocator(function: &str) -> bool {
    // A recursive call has its depth behind the name.
    let name = function.split(['\'', '@']).next();
    let all = [
        "malloc",
        "calloc",
        "realloc",
        "memalign",
        "posix_memalign",
        "aligned_alloc",
    ];
    name.is_some_and(|name| all.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::{Counts, Row, limits, read};

    const PROFILE: &str = "\
events: Ir

ob=/bin/data_path
fl=a.rs
fn=main
16 10
18 5
cob=/tmp/libibverbs.so.1
cfn=poll_cq
calls=3 20
19 300
cob=/lib/libc.so.6
cfn=malloc'2
calls=4 0
20 70

ob=/tmp/libibverbs.so.1
fn=poll_cq
20 300
cob=/lib/libc.so.6
cfn=malloc
calls=1 0
20 20

ob=/lib/libc.so.6
fn=malloc
0 90
cfn=malloc_consolidate
calls=9 0
0 1
totals: 405
";

    #[test]
    fn instructions_of_the_library_are_left_out_and_none_is_counted_twice() {
        let expected = Counts {
            instructions: 105.0,
            allocations: 5.0,
        };
        assert_eq!(read(PROFILE, "/tmp/libibverbs.so.1"), Some(expected));
        assert_eq!(read(PROFILE, "/usr/lib/libibverbs.so.1"), None);
        assert_eq!(read("ob=x\n16 many\n", "y"), None);
    }

    #[test]
    fn budget_is_a_number_or_of_another_row_and_allocations_need_permission() {
        let row = |budget, instructions, allocations| {
            let base = Row {
                name: "base".into(),
                ours: Counts {
                    instructions: 400.0,
                    allocations: 0.0,
                },
                limit: None,
                may_allocate: false,
            };
            let (limit, may_allocate) = limits(budget, &[base])?;
            let ours = Counts {
                instructions,
                allocations,
            };
            Some(
                Row {
                    name: "it".into(),
                    ours,
                    limit,
                    may_allocate,
                }
                .is_over(),
            )
        };
        assert_eq!(row("any", 1e9, 7.0), Some(false));
        assert_eq!(row("1e9", 10.0, 0.001), Some(true));
        assert_eq!(
            (row("many", 1.0, 0.0), row("none+1%", 1.0, 0.0)),
            (None, None)
        );
        if cfg!(target_arch = "x86_64") {
            assert_eq!(
                (row("46", 46.4, 0.0), row("46", 47.0, 0.0)),
                (Some(false), Some(true))
            );
            assert_eq!(
                (row("base+10%", 440.0, 0.0), row("base+10%", 441.0, 0.0)),
                (Some(false), Some(true))
            );
        }
    }
}
