//! The project's task runner: demo, test, soft-roce and the checks.
#![expect(clippy::print_stdout, reason = "a program for people: it prints")]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

mod bench;
mod check;
mod checkers;
mod demo;
mod from_c;
mod jobs;
mod numbers;
mod packages;
mod release;
mod test;
mod tidy;
mod workspace;

use soft_roce::{error, process, progress, stream};

use error::Error;

/// The project's task runner.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", max_term_width = 110)]
enum Task {
    Demo(demo::Args),
    Test(test::Args),
    /// RDMA devices without RDMA hardware: up, down, status, test, run, shell
    #[command(disable_help_flag = true)]
    SoftRoce {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The quick look before a commit: formatting, rules, lints
    ///
    /// Where clippy is not installed, it checks that everything compiles.
    Check(packages::Install),
    Tidy(tidy::Args),
    /// Writes the pages of verbs-core's docs with every name of C's headers
    ///
    /// They have the Rust name of each, or why there is none. `cargo xtask tidy` checks that they are those of the
    /// code, on a machine with the same version of the headers.
    FromC,
    Miri(checkers::miri::Args),
    Sanitize(checkers::sanitize::Args),
    Bench(bench::Args),
    Release(release::Args),
    /// All that continuous integration runs
    ///
    /// `test`; each library with each of its features alone; `cargo deny` where it is installed; and, where there is a
    /// nightly toolchain, `miri` and `sanitize`.
    Ci(test::Args),
}

fn main() -> ExitCode {
    soft_roce::start();
    let result = run(Task::parse());
    result.unwrap_or_else(|error| {
        progress::print_last(format!("error: {error}"));
        error.exit_code()
    })
}

fn run(task: Task) -> Result<ExitCode, Error> {
    if !matches!(task, Task::SoftRoce { .. }) {
        // That one listens for signals by itself: it has a virtual machine to end.
        process::end_children_on_signals()?;
    }
    match task {
        Task::Demo(args) => demo::main(args),
        Task::Test(args) => test::main(args),
        Task::SoftRoce { args } => soft_roce_as_here(args),
        Task::Check(install) => check::check(install),
        Task::Tidy(args) => tidy::main(args),
        Task::FromC => from_c::main(),
        Task::Miri(args) => checkers::miri::main(args),
        Task::Sanitize(args) => checkers::sanitize::main(args),
        Task::Bench(args) => bench::main(args),
        Task::Release(args) => release::main(args),
        Task::Ci(args) => check::ci(args),
    }
}

/// The names of all commands.
fn commands() -> Vec<String> {
    let task = Task::command();
    let names = task
        .get_subcommands()
        .map(|command| command.get_name().to_owned());
    names.collect()
}

/// As `cargo soft-roce` has it, but that `test` is this workspace's own.
fn soft_roce_as_here(args: Vec<OsString>) -> Result<ExitCode, Error> {
    if let Some(options) = of_own_test(&args)? {
        process::end_children_on_signals()?;
        return test::device(options);
    }
    soft_roce::cli::main("cargo xtask soft-roce", args)
}

/// The options of this workspace's own `soft-roce test`, unless these arguments ask for something else, such as
/// help.
fn of_own_test(args: &[OsString]) -> Result<Option<soft_roce::Options>, Error> {
    match args {
        [test, options @ ..] if test == "test" => soft_roce::cli::options(options.to_vec()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::{CommandFactory as _, Parser as _};

    use super::{Task, of_own_test};

    #[test]
    fn options_are_well_defined_and_contradictions_are_errors() {
        Task::command().debug_assert();
        let is_taken = |line: &str| Task::try_parse_from(line.split(' ')).is_ok();
        assert!(
            is_taken("xtask test --guest --yes name") && is_taken("xtask soft-roce run --help")
        );
        for line in [
            "xtask dmeo",
            "xtask demo --yes --no-install",
            "xtask demo --guest --user",
            "xtask test --offline --device",
            "xtask bench --only nothing",
            "xtask bench --rounds 0",
            "xtask bench --peer a",
            "xtask release",
        ] {
            assert!(!is_taken(line), "{line}");
        }
    }

    #[test]
    fn help_for_the_tests_of_soft_roce_runs_none() {
        let is_run = |line: &str| {
            let args: Vec<_> = line.split(' ').map(OsString::from).collect();
            of_own_test(&args).unwrap().is_some()
        };
        assert!(is_run("test") && is_run("test --guest"));
        assert!(!is_run("test --help") && !is_run("test --guest -h"));
        assert!(!is_run("run --help") && !is_run("up"));
    }
}
