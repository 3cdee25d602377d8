//! A crate outside this workspace, `tests/foreign-crate`: its tests run in a guest, by `test` and by
//! cargo's runner.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{assert_code, finish, quiet, scratch, soft_roce, text};

/// In the crate's folder, with a target folder that is not in this one's sources.
fn there(command: &mut Command) -> Output {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign-crate");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign");
    command.current_dir(dir).env("CARGO_TARGET_DIR", target);
    finish(command.spawn().unwrap())
}

/// `cargo soft-roce test --guest ARG…`
fn test(args: &[&str]) -> Command {
    let mut command = soft_roce("test");
    command.args(["--guest", "--no-install"]).args(args);
    command
}

/// `cargo test ARG…` with `cargo soft-roce run` as the runner.
fn cargo_test(args: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_cargo-soft-roce");
    let runner = format!("[{program:?}, 'run', '--guest', '--no-install', '--']");
    let mut command = quiet(env::var_os("CARGO").unwrap());
    command.args([
        "test",
        "--config",
        &format!("target.'cfg(unix)'.runner={runner}"),
    ]);
    command.args(args);
    command
}

#[test]
fn all_tests_run_where_a_device_is() {
    let output = there(&mut test(&["--", "--include-ignored"]));
    assert_code(&output, 0);
    let out = text(&output.stdout);
    for name in [
        "tests::plain",
        "an_active_device_is_there",
        "the_folder_and_the_environment_are_cargo_s",
    ] {
        assert!(out.contains(&format!("test {name} ... ok")), "{out}");
    }
    let err = text(&output.stderr);
    assert!(err.contains("2 test programs passed"), "{err}");
    assert!(err.contains("doctests were not run"), "{err}");
}

#[test]
fn runner_of_the_user_s_does_not_take_the_tests() {
    let host = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let variable = format!(
        "CARGO_TARGET_{}_RUNNER",
        host.replace('-', "_").to_uppercase()
    );
    // Which succeeds, and runs nothing.
    let home = scratch("home");
    let config = format!("[target.{host}]\nrunner = 'true'\n");
    fs::write(home.join("config.toml"), config).unwrap();
    let mut command = test(&["--test=device"]);
    command.env("CARGO_HOME", home).env(variable, "true");
    let output = there(&mut command);
    assert_code(&output, 0);
    let err = text(&output.stderr);
    assert!(err.contains("1 test program passed"), "{err}");
}

#[test]
fn a_failing_test_is_a_failing_exit_code() {
    let output = there(test(&["--no-fail-fast"]).env("FOREIGN_FAILS", "1"));
    assert_code(&output, 101);
    let err = text(&output.stderr);
    assert!(
        err.contains("1 of 2 test programs failed: foreign-crate device"),
        "{err}"
    );
    assert!(text(&output.stdout).contains("as asked"));
}

#[test]
fn a_test_that_hangs_is_stopped_and_its_program_named() {
    let args = ["--timeout", "5", "--test=device", "hangs_when"];
    let output = there(test(&args).env("FOREIGN_HANGS", "1"));
    assert_code(&output, 124);
    let err = text(&output.stderr);
    assert!(err.contains("foreign-crate device: stopped"), "{err}");
}

#[test]
fn tests_that_do_not_compile_are_cargo_s_failure() {
    let output = there(&mut test(&["--features", "none-such"]));
    assert_code(&output, 101);
    assert!(text(&output.stderr).contains("none-such"));
}

#[test]
fn cargo_s_runner_finds_a_device_and_passes_a_failure_on() {
    let args = ["--test=device", "--", "--include-ignored"];
    let output = there(&mut cargo_test(&args));
    assert_code(&output, 0);
    let out = text(&output.stdout);
    assert!(
        out.contains("test an_active_device_is_there ... ok"),
        "{out}"
    );
    let output = there(cargo_test(&args).env("FOREIGN_FAILS", "1"));
    assert_code(&output, 101);
}

#[test]
fn status_says_what_would_be_used() {
    let output = there(&mut soft_roce("status"));
    assert_code(&output, 0);
    let out = text(&output.stdout);
    assert!(out.starts_with("`test` and `run` are "), "{out}");
    assert!(out.contains("foreign/soft-roce/results"), "{out}");
}
