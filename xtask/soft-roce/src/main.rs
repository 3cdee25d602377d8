//! `cargo soft-roce`: runs tests and programs where RDMA devices are.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    soft_roce::start();
    let mut args: Vec<_> = env::args_os().skip(1).collect();
    // As `cargo soft-roce …`, cargo passes its own first word on.
    if args.first().is_some_and(|arg| arg == "soft-roce") {
        args.remove(0);
    }
    soft_roce::cli::main("cargo soft-roce", args).unwrap_or_else(|error| {
        soft_roce::progress::print_last(format!("error: {error}"));
        error.exit_code()
    })
}
