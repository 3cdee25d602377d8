//! The project's task runner: demo, test, soft-roce and the checks.
#![expect(clippy::print_stdout, reason = "a program for people: it prints")]

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

mod args;
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

/// One subcommand.
struct Command {
    name: &'static str,
    what: &'static str,
    main: fn(Vec<OsString>) -> Result<ExitCode, Error>,
}

/// All of them, in the order of the help page.
const COMMANDS: [Command; 11] = [
    Command {
        name: "demo",
        what: "the main job: two processes move bytes over soft-RoCE and verify them",
        main: demo::main,
    },
    Command {
        name: "test",
        what: "all tests, lints and checks; first those that need no device",
        main: test::main,
    },
    Command {
        name: "soft-roce",
        what: "RDMA devices without RDMA hardware: up, down, status, test, run, shell",
        main: soft_roce_as_here,
    },
    Command {
        name: "check",
        what: "the quick look before a commit: formatting, rules, lints",
        main: check::check,
    },
    Command {
        name: "tidy",
        what: "the project's own rules, those that clippy can't see",
        main: tidy::main,
    },
    Command {
        name: "from-c",
        what: "writes the pages of verbs-core's docs with every name of C's headers",
        main: from_c::main,
    },
    Command {
        name: "miri",
        what: "tests under Miri, with Stacked and Tree Borrows",
        main: checkers::miri::main,
    },
    Command {
        name: "sanitize",
        what: "tests under ThreadSanitizer and AddressSanitizer",
        main: checkers::sanitize::main,
    },
    Command {
        name: "bench",
        what: "what each layer costs, beside C",
        main: bench::main,
    },
    Command {
        name: "release",
        what: "whether everything is ready to be published",
        main: release::main,
    },
    Command {
        name: "ci",
        what: "what continuous integration runs",
        main: check::ci,
    },
];

fn main() -> ExitCode {
    soft_roce::start();
    let mut args = env::args_os().skip(1);
    let command = args.next();
    let result = dispatch(command, args.collect());
    result.unwrap_or_else(|error| {
        progress::print_last(format!("error: {error}"));
        error.exit_code()
    })
}

fn dispatch(command: Option<OsString>, args: Vec<OsString>) -> Result<ExitCode, Error> {
    let name = command.unwrap_or_default();
    let name = name.to_string_lossy();
    if matches!(&*name, "" | "help" | "--help" | "-h") {
        println!("{}", help());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(command) = COMMANDS.iter().find(|command| command.name == name) {
        if command.name != "soft-roce" {
            // That one listens for signals by itself: it has a virtual machine to end.
            process::end_children_on_signals()?;
        }
        return (command.main)(args);
    }
    match args.first() {
        Some(plan) if name == jobs::COMMAND => {
            jobs::run_inside(&plan.to_string_lossy()).map(ExitCode::from)
        }
        _ => Err(Error::usage(format!(
            "there is no command `{name}`\n\n{}",
            help()
        ))),
    }
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

fn help() -> String {
    let mut text =
        String::from("The project's task runner.\n\nUsage: cargo xtask COMMAND [OPTION…]\n\n");
    for Command { name, what, .. } in &COMMANDS {
        text.push_str(&format!("  {name:<10}  {what}\n"));
    }
    text + "\n`cargo xtask COMMAND --help` has the details."
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{COMMANDS, dispatch, help, of_own_test};

    #[test]
    fn help_names_every_command() {
        for command in &COMMANDS {
            assert!(help().contains(command.name));
        }
    }

    #[test]
    fn an_unknown_command_is_an_error_that_shows_the_known() {
        let error = dispatch(Some("dmeo".into()), vec![]).unwrap_err();
        assert!(error.to_string().contains("demo"), "{error}");
        assert_eq!(error.code(), 2);
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
