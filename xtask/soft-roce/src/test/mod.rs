//! `cargo soft-roce test`: a crate's tests, built by cargo here and run where the devices are.
//!
//! Cargo decides which programs run, in which folder, with which arguments and environment: it runs
//! the tests with a runner that only records what it is given. Then all of it runs in one run of
//! soft-RoCE.

mod inside;
mod list;

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process;
use std::time::Duration;

use crate::error::Error;
use crate::helper::{self, own_exe};
use crate::process::{run as run_shown, run_quietly};
use crate::{Command, Options, TIMED_OUT, cargo, needs, packages, say};
pub(crate) use inside::main as inside;
use list::List;
pub(crate) use list::note;

/// Options of `cargo test` that choose targets. Without any it would run doctests, too.
const TARGETS: [&str; 10] = [
    "--lib",
    "--bin",
    "--bins",
    "--example",
    "--examples",
    "--test",
    "--tests",
    "--bench",
    "--benches",
    "--all-targets",
];

/// How long cargo may take to list what it would run; everything is built by then.
const LIST: Duration = Duration::from_secs(10 * 60);

/// How much longer than the tests soft-RoCE has: they are stopped inside, by name.
const GRACE: Duration = Duration::from_secs(30);

/// Builds and runs the tests that `cargo test ARGS -- TEST_ARGS` would; the exit status.
pub(crate) fn run(
    options: &Options,
    args: &[OsString],
    test_args: &[OsString],
) -> Result<i32, Error> {
    for arg in args {
        if arg == "--doc" {
            return Err(Error::usage(
                "doctests are not run where the devices are: rustdoc builds and runs them in one \
                 step; run them here, with `cargo test --doc`, or one by one in guests, with this \
                 program as cargo's runner (--help)",
            ));
        }
        if arg == "--no-run" {
            return Err(Error::usage(
                "only to build the tests, use `cargo test --no-run`",
            ));
        }
    }
    packages::ensure(&needs(options), options.install)?;
    let mut args = args.to_vec();
    let is_chosen = args.iter().any(chooses_targets);
    if !is_chosen {
        args.push("--tests".into());
    }
    run_shown(cargo::cargo().args(["test", "--no-run"]).args(&args))?;

    let list = List::new()?;
    let asked = ask_cargo(&args, test_args, list.path())?;
    let count = list.finish()?;
    // Cargo names each program that it runs, by whichever runner.
    if count == 0 && asked.contains("Running ") {
        return Err(Error::new(
            "cargo ran the tests with another runner, without the devices: leave out `--config` with a runner; if \
             `build.target` of cargo's configuration names a target with a runner, pass `--target` here, too",
        ));
    }
    if count == 0 {
        say("there are no tests to run");
        return Ok(0);
    }
    let fail_fast = !args.iter().any(|arg| arg == "--no-fail-fast");
    let seconds = options.timeout.map_or(0.0, |limit| limit.as_secs_f64());
    let words: [OsString; 5] = [
        own_exe()?.into(),
        helper::TESTS.into(),
        list.path().into(),
        seconds.to_string().into(),
        fail_fast.to_string().into(),
    ];
    let options = Options {
        attached: true,
        timeout: options.timeout.map(|limit| limit + GRACE),
        ..options.clone()
    };
    let code = crate::run(&options, &Command::here(words)?)?;
    // A program that was stopped may have lacked a reader.
    if !is_chosen && code != TIMED_OUT && code < 128 {
        say("doctests were not run: `cargo test --doc` runs them, without devices");
    }
    Ok(code)
}

fn chooses_targets(arg: &OsString) -> bool {
    let arg = arg.to_string_lossy();
    let name = arg.split('=').next().unwrap_or_default();
    TARGETS.contains(&name)
}

/// Has cargo note in `file` what it would run. Returns what it printed.
fn ask_cargo(args: &[OsString], test_args: &[OsString], file: &Path) -> Result<String, Error> {
    let own = own_exe()?;
    let (runner, words) = (runner(&own, file)?, runner_words(&own, file));
    let mut ask = cargo::cargo();
    ask.arg("test");
    let names = env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| is_runner(&name.to_string_lossy())) {
        ask.env_remove(name);
    }
    // Whatever the crate's own configuration has, for any target: the exact name comes first, and cargo merges no
    // list into a text of the configuration, but takes a variable in place of either.
    let target = target(args).or_else(|| env::var("CARGO_BUILD_TARGET").ok());
    for target in target.into_iter().chain([cargo::host()?]) {
        match &words {
            Some(words) => ask.env(variable(&target), words),
            None => ask.args(["--config", &format!("target.{target}.runner={runner}")]),
        };
    }
    ask.args(["--config", &format!("target.'cfg(all())'.runner={runner}")]);
    ask.args(args).arg("--").args(test_args);
    run_quietly(&mut ask, "listing the tests", LIST)
}

/// The variable that sets the runner of a target.
fn variable(target: &str) -> String {
    let target = target.replace(['-', '.'], "_").to_uppercase();
    format!("CARGO_TARGET_{target}_RUNNER")
}

/// Whether a variable sets a target's runner.
fn is_runner(name: &str) -> bool {
    name.starts_with("CARGO_TARGET_") && name.ends_with("_RUNNER")
}

/// The runner in words, if it can be written so: cargo splits them at each space.
fn runner_words(own: &Path, file: &Path) -> Option<String> {
    let (own, file) = (own.to_str()?, file.to_str()?);
    let is_word = |text: &str| !text.contains(char::is_whitespace);
    (is_word(own) && is_word(file)).then(|| format!("{own} {} {file}", helper::NOTE))
}

/// The runner as TOML.
fn runner(own: &Path, file: &Path) -> Result<String, Error> {
    let text = |path: &Path| {
        let text = path.to_str().map(|text| format!("{text:?}"));
        text.ok_or_else(|| Error::new(format!("the path {} is not UTF-8", path.display())))
    };
    Ok(format!(
        "[{}, \"{}\", {}]",
        text(own)?,
        helper::NOTE,
        text(file)?
    ))
}

/// The target for which cargo builds.
fn target(args: &[OsString]) -> Option<String> {
    let mut args = args.iter().map(|arg| arg.to_string_lossy());
    let arg = args.find(|arg| arg == "--target" || arg.starts_with("--target="))?;
    match arg.split_once('=') {
        Some((_, target)) => Some(target.to_owned()),
        None => args.next().map(Cow::into_owned),
    }
}

/// A name for a file that no other run uses.
fn unique(name: &str) -> String {
    format!("{name}-{}", process::id())
}

#[cfg(test)]
mod tests {
    use super::{chooses_targets, is_runner, run, runner, runner_words, target, variable};
    use crate::Options;
    use std::ffi::OsString;
    use std::path::Path;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_target_is_found_however_it_is_spelled() {
        assert_eq!(
            target(&words("-p x --target a-b --lib")).as_deref(),
            Some("a-b")
        );
        assert_eq!(target(&words("--target=a-b")).as_deref(), Some("a-b"));
        assert_eq!(target(&words("--target-dir x")), None);
    }

    #[test]
    fn choice_of_targets_is_distinguished_from_other_options() {
        for (line, chooses) in [("--test=a", true), ("--lib", true), ("--testing", false)] {
            assert_eq!(words(line).iter().any(chooses_targets), chooses, "{line}");
        }
    }

    #[test]
    fn runner_is_set_by_a_variable_of_the_target() {
        let name = variable("thumbv8m.main-none-eabi");
        assert_eq!(name, "CARGO_TARGET_THUMBV8M_MAIN_NONE_EABI_RUNNER");
        assert!(is_runner(&name));
        let words = runner_words(Path::new("/a"), Path::new("/b"));
        assert_eq!(words.as_deref(), Some("/a --soft-roce-note /b"));
        assert_eq!(runner_words(Path::new("/a"), Path::new("/b c")), None);
    }

    #[test]
    fn paths_are_quoted_as_toml() {
        let runner = runner(Path::new("/a b/\"c"), Path::new("/d\\e")).unwrap();
        assert!(runner.starts_with(r#"["/a b/\"c", "#), "{runner}");
        assert!(runner.ends_with(r#", "/d\\e"]"#), "{runner}");
    }

    #[test]
    fn doctests_are_refused_by_name() {
        let error = run(&Options::default(), &words("--doc"), &[]).unwrap_err();
        assert!(error.to_string().contains("cargo test --doc"), "{error}");
        assert_eq!(error.code(), 2);
    }
}
