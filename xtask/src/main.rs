//! The project's task runner: demo, test, soft-roce and the checks.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: it prints"
)]

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

mod error;
mod packages;
mod process;
mod soft_roce;

use error::Error;

const HELP: &str = "\
The project's task runner.

Usage: cargo xtask COMMAND [OPTION…]

  soft-roce  an RDMA device without RDMA hardware: up, down, status, test, run, shell

`cargo xtask COMMAND --help` says more.";

fn main() -> ExitCode {
    soft_roce::agent_if_init();
    let mut args = env::args_os().skip(1);
    let command = args.next();
    let result = dispatch(command, args.collect());
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        error.exit_code()
    })
}

fn dispatch(command: Option<OsString>, args: Vec<OsString>) -> Result<ExitCode, Error> {
    let name = command.as_deref().map(|name| name.to_string_lossy());
    match name.as_deref() {
        None | Some("--help" | "-h" | "help") => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some("soft-roce") => soft_roce::main(args),
        Some(other) => Err(Error::usage(format!("unknown command `{other}`\n\n{HELP}"))),
    }
}
