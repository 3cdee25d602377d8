//! `cargo xtask release --dry-run`: everything that has to be so before the crates are published.

mod docs;
mod manifests;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::args::Args;
use crate::checkers;
use crate::error::{Context as _, Error};
use crate::packages;
use crate::process::{display, output, quietly, succeeds, tail};
use crate::test::offline::{self, step};
use crate::test::report::Report;
use crate::workspace;
use manifests::{Manifest, Manifests};

const HELP: &str = "\
Checks that everything is ready to be published. It publishes nothing.

Usage: cargo xtask release --dry-run [OPTION…]

What the crates say of themselves, their changelogs and names; licences, sources and advisories of
dependencies; changes that break users; packages that build by themselves, in an empty target folder;
the oldest Rust and the oldest dependencies that are promised; documentation as docs.rs builds it, from
the packages; another processor. About ten minutes.

What cannot run here is skipped by name, with the command that installs what it needs. Without the
network these are: names on crates.io, changes since the last release, advisories.

  --strict        what a missing tool skips is a failure
  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

/// The processor that is checked beside this one's, and where Debian's package for it has C's headers.
const OTHER_TARGET: &str = "aarch64-unknown-linux-gnu";
const OTHER_HEADERS: &str = "/usr/aarch64-linux-gnu/include";

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.flag("--dry-run") {
        return Err(args.usage(
            "this command publishes nothing: with `--dry-run` it checks that everything is ready \
             for `cargo publish --workspace`",
        ));
    }
    let policy = args.policy()?;
    let mut report = match args.flag("--strict") {
        true => Report::strict(),
        false => Report::default(),
    };
    args.finish()?;
    packages::ensure(&packages::BUILD, policy)?;
    all(&mut report)?;
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}

fn all(report: &mut Report) -> Result<(), Error> {
    let manifests = Manifests::read()?;
    manifests.check(report);
    let released = names(report, &manifests)?;
    offline::deny(report)?;
    semver(report, &released)?;
    let scratch = workspace::scratch_dir()?.join("release");
    packaged(report, &scratch)?;
    installed(report, &manifests)?;
    oldest_rust(report, &manifests, &scratch)?;
    oldest_dependencies(report, &manifests, &scratch)?;
    docs::docs(report, &manifests, &scratch)?;
    other_processor(report, &manifests)
}

/// Each crate's name is free on crates.io, or ours already; returns which crates have been released.
fn names<'a>(
    report: &mut Report,
    manifests: &'a Manifests,
) -> Result<Vec<(&'a Manifest, bool)>, Error> {
    let running = report.start("names");
    let mut released = Vec::new();
    for manifest in &manifests.published {
        let Manifest { name, .. } = manifest;
        running.doing(name);
        let found = Published::look(manifest)?;
        released.push((manifest, matches!(found, Published::Ours)));
        match found {
            Published::No | Published::Ours => report.pass(1),
            Published::Taken => report.fail(
                format!("names: crates.io has a crate `{name}` that is not this one"),
                1,
            ),
            Published::Unknown(why) => {
                report.skip(format!("name of {name}: crates.io did not answer: {why}"));
            }
        }
    }
    running.end(report, "done");
    Ok(released)
}

/// The state of a name on crates.io.
enum Published {
    No,
    Ours,
    Taken,
    Unknown(String),
}

impl Published {
    fn look(manifest: &Manifest) -> Result<Self, Error> {
        let args = ["info", "--registry=crates-io", "--color=never"];
        let mut command = workspace::cargo(&args);
        // Outside the workspace, whose own crates it would find.
        let outside = std::env::temp_dir();
        let command = command.arg(&manifest.name).current_dir(outside);
        let quiet = quietly(command, "cargo info", ANSWER)?;
        if let Some((why, _)) = quiet.end.failure() {
            return Ok(match quiet.output.contains("could not find") {
                true => Self::No,
                false => Self::Unknown(format!("{why}: {}", tail(&quiet.output, 1))),
            });
        }
        let theirs = quiet
            .output
            .lines()
            .find_map(|line| line.strip_prefix("repository: "));
        Ok(match (&manifest.repository, theirs) {
            (Some(ours), Some(theirs)) if ours == theirs => Self::Ours,
            _ => Self::Taken,
        })
    }
}

/// How long crates.io may take to answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Nothing that users rely on has changed since the last release, unless the version says so.
fn semver(report: &mut Report, released: &[(&Manifest, bool)]) -> Result<(), Error> {
    const TITLE: &str = "cargo semver-checks";
    for (manifest, is_released) in released {
        if !is_released {
            report.skip(format!(
                "{TITLE} of {}: no release to compare with",
                manifest.name
            ));
        } else if succeeds(&mut workspace::cargo(&["semver-checks", "--version"])) {
            let args = ["semver-checks", "--package", &manifest.name];
            let title = format!("{TITLE} of {}", manifest.name);
            step(report, &title, &mut workspace::cargo(&args))?;
        } else {
            report.lacks(format!(
                "{TITLE} of {}: not installed here (cargo install --locked cargo-semver-checks)",
                manifest.name
            ));
        }
    }
    Ok(())
}

/// Each crate builds from what its package has in it. The folder is another each time: cargo keeps the sources of
/// packages in its home by their version and the path of the folder, and would build those of the run before.
fn packaged(report: &mut Report, scratch: &Path) -> Result<(), Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let own = now.unwrap_or_default().as_nanos().to_string();
    let folder = empty(scratch.join("packages"))?;
    let target = folder.join(own);
    let args = ["publish", "--dry-run", "--workspace", "--locked"];
    let mut command = workspace::cargo(&args);
    command.arg("--target-dir").arg(&target);
    step(report, "cargo publish --dry-run --workspace", &mut command)?;
    remove(&folder)
}

/// `cargo install` of the program from its package alone gives a program that starts.
fn installed(report: &mut Report, manifests: &Manifests) -> Result<(), Error> {
    const PROGRAM: &str = "cargo-soft-roce";
    // Outside the workspace, of which cargo would take it for a member.
    let folder = std::env::temp_dir().join(format!("{PROGRAM}-{}", std::process::id()));
    let folder = empty(folder)?;
    let steps = install(report, manifests, PROGRAM, &folder);
    remove(&folder)?;
    steps
}

fn install(
    report: &mut Report,
    manifests: &Manifests,
    program: &str,
    folder: &Path,
) -> Result<(), Error> {
    let before = report.failures();
    let mut package = workspace::cargo(&["package", "--no-verify", "--locked", "--package"]);
    package.arg(program).arg("--target-dir").arg(folder);
    step(report, &format!("package of {program}"), &mut package)?;
    if report.failures() > before {
        return Ok(());
    }
    docs::extract(&folder.join("package"), folder)?;
    let unpacked = folder.join(format!("{program}-{}", manifests.version_of(program)?));
    let mut install = workspace::cargo(&["install", "--locked", "--path"]);
    install.arg(unpacked).arg("--root").arg(folder);
    step(report, "cargo install of it", install.current_dir(folder))?;
    if report.failures() > before {
        return Ok(());
    }
    let mut help = Command::new(folder.join("bin").join(program));
    match succeeds(help.args(["soft-roce", "--help"])) {
        true => report.pass(1),
        false => report.fail(format!("`{}` failed", display(&help)), 1),
    }
    Ok(())
}

/// The libraries build with the Rust that their manifests promise, which is an old one.
fn oldest_rust(report: &mut Report, manifests: &Manifests, scratch: &Path) -> Result<(), Error> {
    let promised = &manifests.rust_version;
    let current = output(workspace::rustc().arg("--version"))?;
    let current = current.split_whitespace().nth(1).unwrap_or_default();
    manifests.check_slack(report, current);
    manifests.check_dependencies(report)?;
    let title = format!("Rust {promised}");
    let mut cargo = Command::new("rustup");
    cargo.args(["run", promised, "cargo"]);
    if !succeeds(Command::new("rustup").args(["run", promised, "cargo", "--version"])) {
        report.lacks(format!(
            "{title}: not installed here (rustup toolchain install {promised})"
        ));
        return Ok(());
    }
    // Cargo has told the children which compiler it uses.
    cargo
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN");
    cargo.current_dir(workspace::root());
    cargo.args([
        "check",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
    ]);
    cargo.arg("--target-dir").arg(scratch.join("oldest-rust"));
    step(report, &title, &mut cargo)
}

/// The libraries build with the lowest version of each dependency that their manifests allow.
fn oldest_dependencies(
    report: &mut Report,
    manifests: &Manifests,
    scratch: &Path,
) -> Result<(), Error> {
    const TITLE: &str = "lowest versions of dependencies";
    if !checkers::has(&["--version"]) {
        report.lacks(format!(
            "{TITLE}: no nightly toolchain, which resolves them"
        ));
        return Ok(());
    }
    let copy = empty(scratch.join("oldest-dependencies"))?;
    for file in workspace::files()? {
        let to = copy.join(&file);
        let folder = to.parent().unwrap_or(&copy);
        let made =
            fs::create_dir_all(folder).and_then(|()| fs::copy(workspace::root().join(&file), &to));
        made.context(|| format!("cannot copy {} to {}", file.display(), copy.display()))?;
    }
    let mut update = checkers::nightly(&["update", "-Zdirect-minimal-versions"]);
    let before = report.failures();
    step(report, "which they are", update.current_dir(&copy))?;
    if report.failures() > before {
        return Ok(());
    }
    let mut check = workspace::cargo(&["check", "--all-features", "--locked"]);
    check.args(manifests.packages()).current_dir(&copy);
    check.arg("--target-dir").arg(scratch.join("oldest-target"));
    step(report, TITLE, &mut check)?;
    remove(&copy)
}

/// The libraries compile for a processor of another kind.
fn other_processor(report: &mut Report, manifests: &Manifests) -> Result<(), Error> {
    let installed = output(Command::new("rustup").args(["target", "list", "--installed"]));
    let has_target =
        installed.is_ok_and(|targets| targets.lines().any(|line| line == OTHER_TARGET));
    if !has_target || !Path::new(OTHER_HEADERS).is_dir() {
        report.lacks(format!(
            "{OTHER_TARGET}: not installed here (rustup target add {OTHER_TARGET}; apt-get install libc6-dev-arm64-cross)"
        ));
        return Ok(());
    }
    let mut command = workspace::cargo(&["check", "--all-features", "--target", OTHER_TARGET]);
    command.args(manifests.packages());
    // The headers of libibverbs are the same for each processor; C's are not.
    command.env("PKG_CONFIG_ALLOW_CROSS", "1");
    command.env(
        "BINDGEN_EXTRA_CLANG_ARGS",
        format!("-isystem {OTHER_HEADERS}"),
    );
    step(report, OTHER_TARGET, &mut command)
}

/// The folder `path`, with nothing in it.
fn empty(path: PathBuf) -> Result<PathBuf, Error> {
    remove(&path)?;
    fs::create_dir_all(&path).context(|| format!("cannot make the folder {}", path.display()))?;
    Ok(path)
}

fn remove(path: &Path) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    fs::remove_dir_all(path).context(|| format!("cannot remove the folder {}", path.display()))
}
