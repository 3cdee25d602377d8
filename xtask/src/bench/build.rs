//! How long it takes to build a crate that uses verbs-channel, from nothing, and what each dependency has
//! of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tinyjson::JsonValue;

use super::plan::{Part, Plan};
use super::progress::Progress;
use super::report::Section;
use super::samples::Spread;
use super::table::{Table, cell};
use crate::error::{Context as _, Error};
use crate::process::quietly;
use crate::workspace::{self, at, text};

/// The package that is built: a crate of no code, whose only dependency is verbs-channel.
const USER: &str = "user";

/// How long one build may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Dependencies that take longer, in one of the profiles, have a row of their own.
const LONG: f64 = 2.0;

/// What each of those is for.
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
    let mut progress = Progress::new("builds", plan.rounds * trees.len() * PROFILES.len());
    let mut all = vec![[Vec::new(), Vec::new()]; trees.len()];
    for round in 1..=plan.rounds {
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
        ..Section::default()
    };
    for (tree, builds) in trees.iter().zip(&all) {
        let caption = format!(
            "Seconds to build a crate that uses verbs-channel, {}",
            tree.name
        );
        section.tables.push((caption, table(builds)));
    }
    Ok(section)
}

const ABOUT: &str = "\
An empty crate whose only dependency is verbs-channel, without features, is built in an empty target \
folder, with all processors; the sources are there already. A dependency's time is from when its compiler \
or its build script begins until it ends, all of them together. Several run at once, so they add up to more \
than the whole. Dependencies that take less than 2 s are together in one row. If other programs run, all \
of that takes longer; the time that processors were busy with the build hardly does.";

/// A checkout of the workspace, and the crate that uses it.
struct Tree {
    name: &'static str,
    dir: PathBuf,
}

/// What one build took.
#[derive(Clone, Debug, Default, PartialEq)]
struct Build {
    whole: f64,
    /// The time that processors were busy with it.
    processors: f64,
    /// The dependencies.
    packages: BTreeMap<String, f64>,
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
        // The versions are those of the workspace.
        fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock")).context(what)?;
        let tree = Self { name, dir };
        tree.cargo(&["fetch"], "fetching sources")?;
        Ok(tree)
    }

    fn cargo(&self, args: &[&str], label: &str) -> Result<(), Error> {
        let mut command = workspace::cargo(args);
        command.current_dir(&self.dir);
        // What else is set would make it another build.
        for variable in ["RUSTFLAGS", "RUSTC_WRAPPER", "CARGO_BUILD_JOBS"] {
            command.env_remove(variable);
        }
        let quiet = quietly(&mut command, label, LIMIT)?;
        match quiet.success() {
            true => Ok(()),
            false => Err(quiet.error(&command)),
        }
    }

    /// Builds in an empty folder.
    fn build(&self, profile: &str) -> Result<Build, Error> {
        let target = self.dir.join("target");
        if target.exists() {
            let removed = fs::remove_dir_all(&target);
            removed.context(|| format!("cannot empty the folder {}", target.display()))?;
        }
        let (start, busy) = (Instant::now(), children()?);
        let args = ["build", "--timings", "--offline", "--profile", profile];
        self.cargo(&args, "building")?;
        let whole = start.elapsed().as_secs_f64();
        let processors = children()? - busy;
        let page = target.join("cargo-timings/cargo-timing.html");
        let text = fs::read_to_string(&page);
        let text = text.context(|| format!("cannot read {}", page.display()))?;
        let packages = packages(&text);
        let packages = packages.ok_or_else(|| Error::new("cargo's timings have another form"))?;
        Ok(Build {
            whole,
            processors,
            packages,
        })
    }
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

/// Reads the units in cargo's page, and adds up those of each package: its build script, that run, and
/// its library.
fn packages(page: &str) -> Option<BTreeMap<String, f64>> {
    let (_, units) = page.split_once("UNIT_DATA = ")?;
    let (units, _) = units.split_once("];")?;
    let json: JsonValue = format!("{units}]").parse().ok()?;
    let units: &Vec<JsonValue> = json.get()?;
    let mut packages = BTreeMap::new();
    for unit in units {
        let name = text(unit, &["name"])?;
        let seconds: f64 = *at(unit, &["duration"])?.get()?;
        if name != USER {
            *packages.entry(name.to_owned()).or_default() += seconds;
        }
    }
    Some(packages)
}

/// The long ones, the others together, and the whole.
fn table(builds: &[Vec<Build>; 2]) -> Table {
    let each = |of: &dyn Fn(&Build) -> f64| {
        builds
            .each_ref()
            .map(|builds| Spread::of(builds.iter().map(of).collect()))
    };
    let seconds = |spreads: [Option<Spread>; 2]| {
        spreads.map(|spread| cell(spread, |seconds| format!("{seconds:.1}")))
    };
    let time = |build: &Build, name: &str| build.packages.get(name).copied().unwrap_or(0.0);
    let first = builds.iter().flatten().next();
    let names = first.into_iter().flat_map(|build| build.packages.keys());
    let (mut long, short): (Vec<_>, Vec<_>) = names
        .map(|name| (name, each(&|build: &Build| time(build, name))))
        .partition(|(_, times)| most(times) > LONG);
    long.sort_by(|(_, a), (_, b)| most(b).total_cmp(&most(a)));

    let mut table = Table::new(&["dependency", "dev", "release", "what for"]);
    for (name, times) in long {
        let reason = REASONS.iter().find(|(of, _)| of == name);
        let reason = reason.map_or("?", |(_, reason)| reason);
        let [dev, release] = seconds(times);
        table.row([name.clone(), dev, release, reason.to_owned()]);
    }
    let rest = |build: &Build| short.iter().map(|(name, _)| time(build, name)).sum();
    let [dev, release] = seconds(each(&rest));
    table.row([
        format!("{} others", short.len()),
        dev,
        release,
        String::new(),
    ]);
    let [dev, release] = seconds(each(&|build: &Build| build.whole));
    table.row(["the whole".into(), dev, release, String::new()]);
    let [dev, release] = seconds(each(&|build: &Build| build.processors));
    table.row(["time of processors".into(), dev, release, String::new()]);
    table
}

/// The longer median of the two profiles.
fn most(times: &[Option<Spread>; 2]) -> f64 {
    let medians = times.iter().flatten().map(|spread| spread.median);
    medians.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::{Build, of_children, packages, table};

    #[test]
    fn times_of_a_package_are_added_up() {
        let page = r#"<script>const UNIT_DATA = [
            {"i": 0, "name": "syn", "version": "3.0.9", "target": "", "start": 0.0, "duration": 1.5},
            {"i": 1, "name": "verbs-sys", "target": " build-script", "duration": 1.0},
            {"i": 2, "name": "verbs-sys", "target": "", "duration": 2.25},
            {"i": 3, "name": "user", "duration": 0.1}
        ];
        const CONCURRENCY_DATA = [];</script>"#;
        let found = packages(page).unwrap();
        let expected = [("syn", 1.5), ("verbs-sys", 3.25)];
        let expected = expected.map(|(name, seconds)| (name.to_owned(), seconds));
        assert_eq!(found, expected.into());
        assert_eq!(packages("UNIT_DATA = [{}];"), None);
        assert_eq!(packages("nothing"), None);
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
            processors: 2.0 * whole,
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
| the whole | 5.0 | 9.0 |  |
| time of processors | 10.0 | 18.0 |  |
";
        assert_eq!(table(&[dev, release]).markdown(), expected);
    }
}
