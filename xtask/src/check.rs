//! `cargo xtask check`: the quick look before a commit. `cargo xtask ci`: all of it.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::Args;
use crate::checkers;
use crate::error::Error;
use crate::packages;
use crate::test::report::Report;
use crate::test::{self, Choice, offline};

const CHECK_HELP: &str = "\
The quick look before a commit: formatting, the project's rules, lints. If clippy is not installed,
it checks that everything compiles.

Usage: cargo xtask check [OPTION]

  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

const CI_HELP: &str = "\
What continuous integration runs: `cargo xtask test`; each library with each of its features alone;
`cargo deny` where it is installed; and, where there is a nightly toolchain, `cargo xtask miri` and
`cargo xtask sanitize`.

Usage: cargo xtask ci [OPTION…]

The options are those of `cargo xtask test`.";

/// Runs `check`.
pub(crate) fn check(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(CHECK_HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let policy = args.policy()?;
    args.finish()?;
    packages::ensure(&packages::BUILD, policy)?;
    let mut report = Report::default();
    offline::checks(&mut report)?;
    offline::compiles(&mut report)?;
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}

/// Runs `ci`.
pub(crate) fn ci(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(CI_HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let choice = Choice::from_args(args)?;
    choice.install_needs()?;
    let mut report = Report::default();
    offline::deny(&mut report)?;
    offline::features(&mut report)?;
    test::run(&mut report, &choice)?;
    checkers::miri::all(&mut report, None)?;
    checkers::sanitize::all(&mut report)?;
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}
