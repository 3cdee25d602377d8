//! `cargo xtask release --dry-run`: the tools that have to be content before the crates are published.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::checkers;
use crate::error::Error;
use crate::packages;
use crate::process::{output, succeeds};
use crate::test::offline::{self, plugin, step};
use crate::test::report::Report;
use crate::workspace;

/// Whether everything is ready to be published
///
/// Licences, sources and advisories of dependencies; changes that break users, since the last tag; packages that build by
/// themselves; the oldest Rust and the oldest dependencies that are promised; documentation as on docs.rs; another
/// processor. A tool that is not installed is skipped by name, with the command that installs it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only check: `cargo publish --workspace` publishes
    #[arg(long, required = true)]
    dry_run: bool,
    /// A tool that is not installed is a failure
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    install: packages::Install,
}

/// A processor of another kind, and its C headers, as Debian has them.
const OTHER: [&str; 2] = [
    "aarch64-unknown-linux-gnu",
    "/usr/aarch64-linux-gnu/include",
];

/// The packages that are published.
pub(crate) const PUBLISHED: [&str; 7] = [
    "--package=verbs-sys",
    "--package=verbs-core",
    "--package=verbs-channel",
    "--package=verbs-async",
    "--package=cargo-soft-roce",
    "--package=soft-nic",
    "--package=soft-verbs",
];

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<ExitCode, Error> {
    packages::ensure(&packages::BUILD, args.install.policy())?;
    let mut report = match args.strict {
        true => Report::strict(),
        false => Report::default(),
    };
    all(&mut report)?;
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}

fn all(report: &mut Report) -> Result<(), Error> {
    offline::deny(report)?;
    let mut tag = Command::new("git");
    tag.args(["describe", "--tags", "--abbrev=0"])
        .current_dir(workspace::root());
    match output(&mut tag) {
        Ok(tag) => plugin(report, "semver-checks", &["--baseline-rev", tag.trim()])?,
        Err(_) => report.skip("cargo semver-checks: no release to compare with"),
    }
    plugin(
        report,
        "minimal-versions",
        &["check", "--direct", "--workspace", "--all-features"],
    )?;
    // A second run in the same folder would take the sources of the first.
    let target = workspace::scratch_dir()?.join(format!("packages-{}", std::process::id()));
    let mut publish = workspace::cargo(&["publish", "--dry-run", "--workspace", "--locked"]);
    step(
        report,
        "cargo publish --dry-run --workspace",
        publish.arg("--target-dir").arg(&target),
    )?;
    drop(std::fs::remove_dir_all(&target));

    let oldest = env!("CARGO_PKG_RUST_VERSION");
    if succeeds(&mut checkers::cargo_of(oldest, &["--version"])) {
        let mut check = checkers::cargo_of(oldest, &["check", "--workspace", "--all-targets"]);
        check
            .args(["--all-features", "--locked", "--target-dir"])
            .arg(workspace::scratch_dir()?.join("oldest-rust"));
        step(report, &format!("Rust {oldest}"), &mut check)?;
    } else {
        report.lacks(format!(
            "Rust {oldest}: not installed here (rustup toolchain install {oldest})"
        ));
    }

    if succeeds(&mut checkers::nightly(&["--version"])) {
        // Only a nightly toolchain labels what a feature adds.
        let mut doc = checkers::nightly(&["doc", "--lib", "--no-deps", "--all-features"]);
        doc.args(PUBLISHED)
            .env("DOCS_RS", "1")
            .env("RUSTDOCFLAGS", "--cfg docsrs -Dwarnings");
        step(report, "documentation as on docs.rs", &mut doc)?;
    } else {
        report.lacks(
            "documentation as on docs.rs: no nightly toolchain (rustup toolchain install nightly)",
        );
    }

    let [target, headers] = OTHER;
    let installed = output(Command::new("rustup").args(["target", "list", "--installed"]));
    let has_target = installed.is_ok_and(|targets| targets.lines().any(|line| line == target));
    if !has_target || !Path::new(headers).is_dir() {
        report.lacks(format!(
            "{target}: not installed here (rustup target add {target}; apt-get install libc6-dev-arm64-cross)"
        ));
        return Ok(());
    }
    let mut check = workspace::cargo(&["check", "--all-features", "--target", target]);
    // The headers of libibverbs are the same for each processor; C's are not.
    check.args(PUBLISHED).env("PKG_CONFIG_ALLOW_CROSS", "1");
    check.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-isystem {headers}"));
    step(report, target, &mut check)
}
