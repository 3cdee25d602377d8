//! How long it takes to build a crate that uses verbs-channel, from nothing, and what each dependency has
//! of it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::plan::{Part, Plan};
use super::progress::Progress;
use super::report::Section;
use super::samples::Spread;
use super::table::{Table, cell};
use crate::error::{Context as _, Error};
use crate::process::quietly;
use crate::workspace;

/// The package that is built: a crate of no code, whose only dependency is verbs-channel.
const USER: &str = "user";

/// How long one build may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs the compiler, and writes to a file of its own which package that was for, and how long processors
/// were busy.
const WRAPPER: &str = "\
#!/bin/sh
\"$@\"
code=$?
{ echo \"$CARGO_PKG_NAME\"; times; } > \"$COMPILER_TIMES/$$\"
exit $code
";

/// Dependencies that take longer, in one of the profiles, have a row of their own.
const LONG: f64 = 2.0;

/// The purpose of each of those.
const REASONS: [(&str, &str); 20] = [
    (
        "verbs-sys",
        "of this workspace; its build script runs bindgen",
    ),
    ("verbs-core", "of this workspace"),
    ("verbs-channel", "of this workspace"),
    ("bindgen", "makes the bindings of the installed headers"),
    ("cexpr", "of bindgen: values of macros"),
    ("clang-sys", "of bindgen: calls libclang"),
    ("memchr", "of bindgen: looks for bytes"),
    ("nom", "of bindgen: values of macros"),
    ("regex", "of bindgen: chooses items by name"),
    ("regex-automata", "of bindgen: chooses items by name"),
    ("regex-syntax", "of bindgen: chooses items by name"),
    ("proc-macro2", "of bindgen and thiserror: Rust as data"),
    ("quote", "of bindgen and thiserror: Rust as data"),
    ("syn", "of bindgen and thiserror: Rust as data"),
    (
        "thiserror-impl",
        "writes the `Display` and sources of errors",
    ),
    ("pkg-config", "finds the installed libraries"),
    ("libc", "types of C in the bindings"),
    ("rustix", "sockets and `poll`, without unsafe code"),
    ("linux-raw-sys", "of rustix: the kernel's numbers"),
    ("crossbeam-utils", "spinning, and data of two threads apart"),
];

/// The two profiles that users build with.
const PROFILES: [&str; 2] = ["dev", "release"];

/// Measures this workspace, and the other one that the plan names, in turns.
pub(super) fn measure(plan: &Plan) -> Result<Section, Error> {
    let dir = workspace::scratch_dir()?.join("bench/build");
    let here = Tree::new("here", workspace::root(), &dir)?;
    let other = plan.beside.as_deref();
    let other = other.map(|root| Tree::new("beside", root, &dir));
    let trees: Vec<Tree> = other.transpose()?.into_iter().chain([here]).collect();
    let rounds = plan.rounds(Part::Build);
    let mut progress = Progress::new("builds", rounds * trees.len() * PROFILES.len());
    let mut all = vec![[Vec::new(), Vec::new()]; trees.len()];
    for round in 1..=rounds {
        for (tree, built) in trees.iter().zip(&mut all) {
            for (profile, built) in PROFILES.iter().zip(built) {
                progress.next(&format!("{}, {profile}, round {round}", tree.name));
                built.push(tree.build(profile)?);
            }
        }
    }
    drop(progress);
    let mut section = Section {
        title: "Builds",
        command: plan.command(Part::Build),
        about: ABOUT.to_owned(),
        rounds,
        ..Section::default()
    };
    for (tree, builds) in trees.iter().zip(&all) {
        let caption = format!(
            "Seconds to build a crate that uses verbs-channel, {}, n = {rounds}",
            tree.name
        );
        section.tables.push((caption, table(builds)));
    }
    // Another checkout may have dependencies that this program knows nothing of.
    if let Some(here) = all.last() {
        let times = Times::of(here);
        let without = times.unexplained().map(|name| {
            format!("`{name}` takes more than {LONG} s, and bench/build.rs gives no reason for it")
        });
        section.problems = without.collect();
    }
    Ok(section)
}

const ABOUT: &str = "\
An empty crate whose only dependency is verbs-channel, without features, is built in an empty target \
folder, with all processors; the sources are there already. The figures are the seconds that processors were \
busy, which other programs hardly change, and in the last row those that it took. Dependencies whose compiler \
takes less than 2 s are together in one row.";

/// A checkout of the workspace, and the crate that uses it.
struct Tree {
    name: &'static str,
    dir: PathBuf,
}

/// The cost of one build.
#[derive(Clone, Debug, Default, PartialEq)]
struct Build {
    whole: f64,
    /// The time that processors were busy with it.
    processors: f64,
    /// The compiler's time for each dependency.
    packages: BTreeMap<String, f64>,
}

impl Build {
    fn time(&self, package: &str) -> f64 {
        self.packages.get(package).copied().unwrap_or(0.0)
    }
}

impl Tree {
    fn new(name: &'static str, root: &Path, dir: &Path) -> Result<Self, Error> {
        let dir = dir.join(name);
        let what = || format!("cannot make the crate in {}", dir.display());
        fs::create_dir_all(dir.join("src")).context(what)?;
        let root = fs::canonicalize(root).context(|| format!("cannot find {}", root.display()))?;
        let manifest = format!(
            "[package]\nname = \"{USER}\"\nedition = \"2024\"\n\n[dependencies]\nverbs-channel = {{ path = {:?} }}\n\n\
             [workspace]\n",
            root.join("verbs-channel")
        );
        fs::write(dir.join("Cargo.toml"), manifest).context(what)?;
        fs::write(dir.join("src/lib.rs"), "//! Nothing.\n").context(what)?;
        let wrapper = dir.join("wrapper");
        fs::write(&wrapper, WRAPPER).context(what)?;
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&wrapper, executable).context(what)?;
        // The versions are those of the workspace.
        fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock")).context(what)?;
        let tree = Self { name, dir };
        tree.cargo(&["fetch"], "fetching sources")?;
        Ok(tree)
    }

    fn cargo(&self, args: &[&str], label: &str) -> Result<(), Error> {
        let mut command = workspace::cargo(args);
        command.current_dir(&self.dir);
        // These variables would make it another build.
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_JOBS"] {
            command.env_remove(variable);
        }
        command.env("CARGO_TARGET_DIR", self.dir.join("target"));
        command.env("RUSTC_WRAPPER", self.dir.join("wrapper"));
        command.env("COMPILER_TIMES", self.dir.join("times"));
        let quiet = quietly(&mut command, label, LIMIT)?;
        match quiet.success() {
            true => Ok(()),
            false => Err(quiet.error(&command)),
        }
    }

    /// Builds in an empty folder.
    fn build(&self, profile: &str) -> Result<Build, Error> {
        for folder in ["target", "times"].map(|name| self.dir.join(name)) {
            if folder.exists() {
                let removed = fs::remove_dir_all(&folder);
                removed.context(|| format!("cannot empty the folder {}", folder.display()))?;
            }
        }
        let times = self.dir.join("times");
        let what = || format!("cannot read the times in {}", times.display());
        fs::create_dir_all(&times).context(what)?;
        let (start, busy) = (Instant::now(), children()?);
        self.cargo(&["build", "--offline", "--profile", profile], "building")?;
        let whole = start.elapsed().as_secs_f64();
        let processors = children()? - busy;
        let mut packages = BTreeMap::new();
        for entry in fs::read_dir(&times).context(what)? {
            let text = fs::read_to_string(entry.context(what)?.path()).context(what)?;
            let times = of_compiler(&text);
            let (name, seconds) =
                times.ok_or_else(|| Error::new("sh's `times` has another form"))?;
            // Cargo asks the compiler for its version, for no package.
            if !name.is_empty() && name != USER {
                *packages.entry(name.to_owned()).or_default() += seconds;
            }
        }
        Ok(Build {
            whole,
            processors,
            packages,
        })
    }
}

/// Reads what the wrapper writes: the package, two times of the shell, and two of its children, as in
/// `1m2.500000s 0m0.250000s`.
fn of_compiler(text: &str) -> Option<(&str, f64)> {
    let mut lines = text.lines();
    let (name, _shell, children) = (lines.next()?, lines.next()?, lines.next()?);
    let seconds = |time: &str| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?)
    };
    let times = children.split_whitespace().map(seconds);
    Some((name, times.sum::<Option<f64>>()?))
}

/// How long processors were busy with what this process has started and waited for, in seconds.
fn children() -> Result<f64, Error> {
    let stat = fs::read_to_string("/proc/self/stat");
    let stat = stat.context(|| "cannot read /proc/self/stat")?;
    let ticks = of_children(&stat);
    let ticks = ticks.ok_or_else(|| Error::new("/proc/self/stat has another form"))?;
    Ok(f64::from(ticks) / 100.0)
}

/// Reads `PID (NAME) STATE …`: in programs and in the kernel, in hundredths of a second on every machine.
fn of_children(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    let mut next = || fields.next()?.parse::<u32>().ok();
    Some(next()? + next()?)
}

/// The dependencies of some builds in both profiles: those that take long, and the names of the others.
struct Times<'b> {
    long: Vec<(&'b str, [Option<Spread>; 2])>,
    short: Vec<&'b str>,
}

impl<'b> Times<'b> {
    fn of(builds: &'b [Vec<Build>; 2]) -> Self {
        let first = builds.iter().flatten().next();
        let names = first.into_iter().flat_map(|build| build.packages.keys());
        let times = names.map(|name| (&**name, each(builds, |build| build.time(name))));
        let (mut long, short): (Vec<_>, Vec<_>) = times.partition(|(_, times)| most(times) > LONG);
        long.sort_by(|(_, a), (_, b)| most(b).total_cmp(&most(a)));
        let short = short.into_iter().map(|(name, _)| name).collect();
        Self { long, short }
    }

    /// Those that take long for no known reason.
    fn unexplained(&self) -> impl Iterator<Item = &'b str> {
        let names = self.long.iter().map(|(name, _)| *name);
        names.filter(|name| reason(name).is_none())
    }
}

fn reason(name: &str) -> Option<&'static str> {
    let found = REASONS.iter().find(|(of, _)| *of == name);
    found.map(|(_, reason)| *reason)
}

/// A figure of the builds of each profile.
fn each(builds: &[Vec<Build>; 2], of: impl Fn(&Build) -> f64) -> [Option<Spread>; 2] {
    builds
        .each_ref()
        .map(|builds| Spread::of(builds.iter().map(&of).collect()))
}

/// The long ones, the others together, and the whole.
fn table(builds: &[Vec<Build>; 2]) -> Table {
    let seconds = |spreads: [Option<Spread>; 2]| {
        spreads.map(|spread| cell(spread, |seconds| format!("{seconds:.1}")))
    };
    let Times { long, short } = Times::of(builds);
    let mut table = Table::new(&["dependency", "dev", "release", "what for"]);
    for (name, times) in long {
        let [dev, release] = seconds(times);
        let reason = reason(name).unwrap_or("?");
        table.row([name.to_owned(), dev, release, reason.to_owned()]);
    }
    let rest = |build: &Build| short.iter().map(|name| build.time(name)).sum();
    let [dev, release] = seconds(each(builds, rest));
    table.row([
        format!("{} others", short.len()),
        dev,
        release,
        String::new(),
    ]);
    let scripts = |build: &Build| build.processors - build.packages.values().sum::<f64>();
    let [dev, release] = seconds(each(builds, scripts));
    let what = "build scripts, which run bindgen, and cargo".to_owned();
    table.row(["other programs".into(), dev, release, what]);
    let [dev, release] = seconds(each(builds, |build| build.processors));
    table.row(["all".into(), dev, release, String::new()]);
    let [dev, release] = seconds(each(builds, |build| build.whole));
    let what = "from its start to its end".to_owned();
    table.row(["time that passed".into(), dev, release, what]);
    table
}

/// The longer median of the two profiles.
fn most(times: &[Option<Spread>; 2]) -> f64 {
    let medians = times.iter().flatten().map(|spread| spread.median);
    medians.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::{Build, Times, of_children, of_compiler, table};

    #[test]
    fn time_of_a_compiler_is_that_of_the_shell_s_children() {
        let text = "syn\n0m0.001000s 0m0.002000s\n1m2.500000s 0m0.250000s\n";
        assert_eq!(of_compiler(text), Some(("syn", 62.75)));
        assert_eq!(
            of_compiler("\n0m0.0s 0m0.0s\n0m0.0s 0m0.5s\n"),
            Some(("", 0.5))
        );
        assert_eq!(of_compiler("syn\n1.5 0.5\n1.5 0.5\n"), None);
    }

    #[test]
    fn time_of_children_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 1 2 3 4 50 60 1100 234 20 0 1 0 99\n";
        assert_eq!(of_children(stat), Some(1334));
        assert_eq!(of_children("7 (a) S 1"), None);
    }

    #[test]
    fn only_long_dependencies_have_rows() {
        let build = |whole, times: [f64; 4]| Build {
            whole,
            processors: whole + 2.0,
            packages: ["bindgen", "cfg-if", "log", "unheard-of"]
                .map(str::to_owned)
                .into_iter()
                .zip(times)
                .collect(),
        };
        let dev = vec![build(5.0, [4.0, 0.5, 0.25, 1.0]); 3];
        let release = vec![build(9.0, [8.0, 0.5, 0.5, 3.0])];
        let expected = "\
| dependency | dev | release | what for |
|---|---:|---:|---:|
| bindgen | 4.0 | 8.0 | makes the bindings of the installed headers |
| unheard-of | 1.0 | 3.0 | ? |
| 2 others | 0.8 | 1.0 |  |
| other programs | 1.2 | -1.0 | build scripts, which run bindgen, and cargo |
| all | 7.0 | 11.0 |  |
| time that passed | 5.0 | 9.0 | from its start to its end |
";
        let builds = [dev, release];
        assert_eq!(table(&builds).markdown(), expected);
        let unexplained: Vec<&str> = Times::of(&builds).unexplained().collect();
        assert_eq!(unexplained, ["unheard-of"]);
    }
}
