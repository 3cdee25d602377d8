//! The side that runs the test programs, where the devices are.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::list::read;
use crate::error::{Context as _, Error};
use crate::guest::frame::Job;
use crate::process::{exit_code, wait};
use crate::{TIMED_OUT, helper, say, user};

/// Runs the programs of the list one after the other, as cargo does; the exit code of the first that
/// fails.
pub(crate) fn main(args: &[OsString]) -> Result<u8, Error> {
    let [file, seconds, fail_fast] = args else {
        return Err(Error::usage(
            "a list, a time limit, and whether to stop at a failure",
        ));
    };
    let jobs = read(Path::new(file))?;
    let seconds: f64 = seconds
        .to_string_lossy()
        .parse()
        .context(|| "odd time limit")?;
    let limit = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
    Ok(run(&jobs, limit, fail_fast == "true"))
}

fn run(jobs: &[Job], limit: Option<Duration>, fail_fast: bool) -> u8 {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut failed = Vec::new();
    let mut first = 0;
    let mut ran = 0;
    for job in jobs {
        let name = name(job);
        say(&format!("running {name} ({})", job.argv[0].display()));
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (code, why) = run_one(job, left.unwrap_or(Duration::MAX));
        ran += 1;
        if code == 0 {
            continue;
        }
        failed.push(format!("{name}: {why}"));
        first = if first == 0 { code } else { first };
        if fail_fast || i32::from(code) == TIMED_OUT {
            break;
        }
    }
    let programs = if ran == 1 {
        "test program"
    } else {
        "test programs"
    };
    match failed.len() {
        0 => say(&format!("{ran} {programs} passed")),
        count => say(&format!(
            "{count} of {ran} {programs} failed: {}",
            failed.join("; ")
        )),
    }
    if ran < jobs.len() {
        let left = jobs.len() - ran;
        say(&format!(
            "{left} more did not run (`--no-fail-fast` goes on after a failure)"
        ));
    }
    first
}

/// An exit code, and what it means.
fn run_one(job: &Job, left: Duration) -> (u8, String) {
    let mut command = Command::new(&job.argv[0]);
    command.args(&job.argv[1..]).current_dir(&job.dir);
    command.envs(job.env.iter().cloned());
    let cargos = job.env.iter().find(|(name, _)| name == "LD_LIBRARY_PATH");
    if let Some(path) = cargos.and_then(|(_, path)| user::search_path(path)) {
        command.env("LD_LIBRARY_PATH", path);
    }
    let ended = command.spawn().and_then(|mut child| wait(&mut child, left));
    match ended {
        Ok(Some(status)) => (exit_code(status), status.to_string()),
        Ok(None) => (
            124,
            "stopped, the time limit (--timeout) is over".to_owned(),
        ),
        Err(error) => (
            helper::not_started(&error),
            format!("cannot be run: {error}"),
        ),
    }
}

/// The package and the program, without the hash that cargo appends.
fn name(job: &Job) -> String {
    let program = Path::new(&job.argv[0]).file_name().unwrap_or_default();
    let program = program.to_string_lossy();
    let program = match program.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => &program,
    };
    let package = job.env.iter().find(|(name, _)| name == "CARGO_PKG_NAME");
    match package {
        Some((_, package)) if *package != *program => format!("{} {program}", package.display()),
        _ => program.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{name, run};
    use crate::guest::frame::Job;
    use std::time::{Duration, Instant};

    fn job(script: &str) -> Job {
        Job {
            argv: ["sh", "-c", script].map(Into::into).to_vec(),
            dir: "/".into(),
            env: vec![("WORD".into(), "x y".into())],
            stdin: false,
            merged: false,
            terminal: None,
        }
    }

    #[test]
    fn first_failure_is_the_result_and_ends_the_run_without_no_fail_fast() {
        let mark = std::env::temp_dir().join(super::super::unique("soft-roce-inside"));
        let touch = job(&format!(
            "test \"$WORD\" = 'x y' && echo >> {}",
            mark.display()
        ));
        let jobs = [touch.clone(), job("exit 7"), job("exit 8"), touch];
        assert_eq!(run(&jobs, None, true), 7);
        let lines = || std::fs::read_to_string(&mark).unwrap().lines().count();
        assert_eq!(lines(), 1);
        assert_eq!(run(&jobs, None, false), 7);
        assert_eq!(lines(), 3);
        std::fs::remove_file(&mark).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let start = Instant::now();
        let limit = Some(Duration::from_millis(200));
        assert_eq!(run(&[job("sleep 100"), job("exit 0")], limit, false), 124);
        assert!(start.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn a_program_that_is_gone_is_127() {
        let mut gone = job("");
        gone.argv[0] = "/no/such/program".into();
        assert_eq!(run(&[gone], None, true), 127);
    }

    #[test]
    fn a_program_is_called_by_its_package_and_target() {
        let mut job = job("");
        job.argv[0] = "/t/debug/deps/device-0123456789abcdef".into();
        assert_eq!(name(&job), "device");
        job.env = vec![("CARGO_PKG_NAME".into(), "my-crate".into())];
        assert_eq!(name(&job), "my-crate device");
    }
}
