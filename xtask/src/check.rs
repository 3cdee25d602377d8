//! `cargo xtask check`: the quick look before a commit. `cargo xtask ci`: all of it.

use std::process::ExitCode;

use crate::checkers;
use crate::error::Error;
use crate::packages::{self, Install};
use crate::test::report::Report;
use crate::test::{self, Args, offline};

/// Runs `check`.
pub(crate) fn check(install: Install) -> Result<ExitCode, Error> {
    packages::ensure(&packages::BUILD, install.policy())?;
    let mut report = Report::default();
    offline::checks(&mut report)?;
    offline::compiles(&mut report)?;
    println!("{}", report.summary());
    Ok(ExitCode::from(report.exit_code()))
}

/// Runs `ci`.
pub(crate) fn ci(args: Args) -> Result<ExitCode, Error> {
    let choice = args.choice();
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
