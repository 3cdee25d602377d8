//! The tests that need an RDMA device, found among all test programs.
//!
//! All that can run on devices in user space do so. The others, and a few more, run on soft-RoCE of a kernel, and those
//! about iWARP on a second driver, soft-iWARP. All of them run on both drivers where a kernel is asked for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use soft_roce::{Driver, Options, Way};

use super::libtest::Tally;
use super::offline::count;
use super::report::Report;
use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::process;
use crate::progress;
use crate::workspace::{self, Artifact};

/// A test program may take this long in all. An emulated machine beside other work needs three times as long as alone.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Tests in modules of this name run on two machines at once, each test in a run of its own:
/// it may kill one of them.
const TWO_HOSTS: &str = "two_hosts::";

/// Tests that prove something of a kernel, by a part of their names. Others that skip themselves in user space take minutes on
/// a kernel, and run only where one is asked for.
const KERNEL: [(&str, &str); 20] = [
    ("peer_whose_process_is_killed", KILLED),
    ("p9_raw::a_client_that_is_killed", KILLED),
    ("sysfs", NO_SYSFS),
    ("a_device_has_its_place_and_its_rate", NO_SYSFS),
    (
        "a_device_node_that_may_not_be_opened",
        "there are no device nodes",
    ),
    ("memlock_limit", "memory is not pinned"),
    ("a_sleep_arms_once_and_takes_one_event", NO_CALLS),
    ("after_the_busy_poll_time_wakes", NO_CALLS),
    ("unreachable_address_fails", "addresses are not looked up"),
    ("control_group", "control groups limit nothing"),
    ("two_hosts::sends_to_a_dead_host_fail", ONE_HOST),
    ("two_hosts::dead_host_ends_a_waiting_receive", ONE_HOST),
    (IWARP, "it is about iWARP"),
    // The way through the system's libibverbs and the kernel, in every layer.
    ("quick_start::", BOTH),
    ("opcodes::", BOTH),
    ("one_sided::", BOTH),
    ("lessons::", BOTH),
    // The same of librdmacm.
    ("rdmacm::connect::", BOTH),
    ("rdmacm::programs::", BOTH),
    ("hello_rdma_cm", BOTH),
];
const KILLED: &str = "nobody tells the peers of a process that is killed";
const NO_SYSFS: &str = "there is no sysfs";
const ONE_HOST: &str = "there is one host";
const NO_CALLS: &str = "arming is no system call, and a tracer sees none";
/// For tests that run in user space, too.
const BOTH: &str = "";

/// In the names of tests about iWARP.
const IWARP: &str = "iwarp";

/// Why a test is run on a kernel, whatever happens in user space.
fn kernels(test: &str) -> Option<&'static str> {
    let mut all = KERNEL.iter();
    all.find(|(part, _)| test.contains(part))
        .map(|(_, why)| *why)
}

/// A test program with the tests in it that need a device.
#[derive(Clone, Debug)]
struct Program {
    artifact: Artifact,
    tests: Vec<String>,
}

impl Program {
    fn name(&self) -> String {
        format!("{} {}", self.artifact.package, self.artifact.target)
    }

    /// The job that runs the tests which `args` choose.
    fn job(&self, name: String, driver: Driver, args: &[&str]) -> Job {
        let Artifact {
            dir, executable, ..
        } = &self.artifact;
        let threads = match driver {
            // Some wait for 10 s there until a peer has been given up: together they take half the time.
            Driver::Siw => 3,
            _ => 2,
        };
        let threads = format!("--test-threads={threads}");
        let fixed = ["--ignored", "--show-output", &threads];
        let program = executable.display().to_string();
        let words = fixed.iter().chain(args).map(|arg| (*arg).to_owned());
        let commands = vec![std::iter::once(program).chain(words).collect()];
        Job {
            dir: dir.display().to_string(),
            ..Job::new(name, LIMIT, commands)
        }
    }
}

/// Runs all device tests whose name contains `filter`.
pub(super) fn tests(report: &mut Report, options: &Options, filter: Option<&str>) {
    let step = report.start("device tests");
    if let Err(error) = all(report, options, filter) {
        report.fail(format!("device tests: {error}"), error.code());
    }
    step.end(report);
}

fn all(report: &mut Report, options: &Options, filter: Option<&str>) -> Result<(), Error> {
    let mut programs = programs(filter)?;
    if programs.is_empty() && filter.is_none() {
        return Err(Error::new("there are none"));
    }
    let is_part = options.way == Way::Auto && options.driver == Driver::Rxe;
    if is_part || options.way == Way::User {
        programs = user_space(report, options, programs)?;
    }
    let kernel = options.of_kernel();
    let is_here = |test: &str| !is_part || !test.contains(IWARP);
    one_host(report, &kernel, &kept(programs.clone(), is_here))?;
    two_hosts(report, &kernel, &programs)?;
    if options.driver == Driver::Rxe {
        second_driver(report, &kernel, programs, is_part)?;
    }
    Ok(())
}

/// Builds every test program, and the programs that tests run.
pub(super) fn built() -> Result<Vec<Artifact>, Error> {
    let features = workspace::test_features()?;
    workspace::build(&[
        "test",
        "--workspace",
        "--exclude=xtask",
        "--exclude=cargo-soft-roce",
        &features,
        "--no-run",
        "--message-format=json-render-diagnostics",
    ])
}

/// The test programs that hold ignored tests.
fn programs(filter: Option<&str>) -> Result<Vec<Program>, Error> {
    let mut programs = Vec::new();
    for artifact in built()? {
        // Programs of the examples are built as well, as programs. Those of soft-verbs have devices of their own.
        if !artifact.is_test || artifact.package == "soft-verbs" {
            continue;
        }
        let mut list = std::process::Command::new(&artifact.executable);
        list.args(["--ignored", "--list", "--format=terse"])
            .current_dir(&artifact.dir);
        let tests = listed(&process::output(&mut list)?);
        let is_device = artifact.kind == "test" && artifact.target == "device";
        if is_device && tests.is_empty() {
            let package = artifact.package;
            return Err(Error::new(format!(
                "the program `device` of {package} has no test"
            )));
        }
        let wanted = |test: &String| filter.is_none_or(|filter| test.contains(filter));
        let tests: Vec<String> = tests.into_iter().filter(wanted).collect();
        if !tests.is_empty() {
            programs.push(Program { artifact, tests });
        }
    }
    Ok(programs)
}

/// Reads libtest's terse list: `NAME: test`.
fn listed(list: &str) -> Vec<String> {
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    tests.map(str::to_owned).collect()
}

/// Runs the tests that can run in user space, and returns those that a kernel has to run; unless it must not, when they are
/// skipped.
fn user_space(
    report: &mut Report,
    options: &Options,
    programs: Vec<Program>,
) -> Result<Vec<Program>, Error> {
    let mut user = options.clone();
    user.way = Way::User;
    let here = |test: &str| kernels(test).is_none_or(|why| why == BOTH);
    let start = Instant::now();
    one_host(report, &user, &kept(programs.clone(), here))?;
    let time = start.elapsed().as_secs_f64();
    report.line(&format!(
        "tests on devices in user space: {time:.1} s; the slowest:"
    ));
    report.slowest(10);
    if options.way == Way::User {
        for program in &programs {
            for (test, why) in program.tests.iter().map(|test| (test, kernels(test))) {
                if let Some(why) = why.filter(|why| *why != BOTH) {
                    report.skip_printed(format!("{} {test}: {why}", program.name()));
                }
            }
        }
        return Ok(Vec::new());
    }
    Ok(kept(programs, |test| kernels(test).is_some()))
}

/// The programs with those of their tests that are wanted.
fn kept(mut programs: Vec<Program>, is_wanted: impl Fn(&str) -> bool) -> Vec<Program> {
    for program in &mut programs {
        program.tests.retain(|test| is_wanted(test));
    }
    programs.retain(|program| !program.tests.is_empty());
    programs
}

/// Runs all tests that one machine is enough for, in one run of soft-RoCE.
fn one_host(report: &mut Report, options: &Options, programs: &[Program]) -> Result<(), Error> {
    let mut jobs = Vec::new();
    let mut expected = BTreeMap::new();
    for program in programs {
        let (_, single): (Vec<&str>, Vec<&str>) = split(&program.tests);
        let name = program.name() + on(options);
        if !single.is_empty() {
            expected.insert(name.clone(), single.len());
            let args = [&["--exact"], single.as_slice()].concat();
            jobs.push(program.job(name, options.driver, &args));
        }
    }
    run(report, options, &jobs, &expected)
}

/// Runs each test for two machines in a run of its own.
fn two_hosts(report: &mut Report, options: &Options, programs: &[Program]) -> Result<(), Error> {
    let mut options = options.clone();
    options.hosts = 2;
    for program in programs {
        let (double, _): (Vec<&str>, Vec<&str>) = split(&program.tests);
        for test in double {
            let name = format!("{} {test}", program.name());
            if options.way == Way::Native {
                report.skip(format!("{name}: one machine only (--native)"));
                continue;
            }
            let job = program.job(name.clone(), options.driver, &["--exact", test]);
            run(report, &options, &[job], &BTreeMap::from([(name, 1)]))?;
        }
    }
    Ok(())
}

/// Runs a part of the tests on soft-iWARP: only those about it, or those of verbs-core, and of the layers above and of the
/// examples what is about connections. All that may run there do so with `--driver siw`.
fn second_driver(
    report: &mut Report,
    options: &Options,
    mut programs: Vec<Program>,
    only_iwarp: bool,
) -> Result<(), Error> {
    let mut options = options.clone();
    options.driver = Driver::Siw;
    for program in &mut programs {
        let is_core = program.artifact.package == "verbs-core";
        let is_in = |test: &str| CONNECTIONS.iter().any(|part| test.starts_with(part));
        program.tests.retain(|test| match only_iwarp {
            true => test.contains(IWARP),
            false => is_core || is_in(test),
        });
    }
    let programs = kept(programs, |_| true);
    if programs.is_empty() {
        return Ok(());
    }
    if let Err(error) = soft_roce::prepare(&options) {
        for program in programs {
            let (name, on) = (program.name(), on(&options));
            report.skip(format!("{name}{on}: {error}"));
        }
        return Ok(());
    }
    one_host(report, &options, &programs)
}

/// How the names of tests of connections begin: with their module, or, of the examples, with what they are about.
const CONNECTIONS: [&str; 9] = [
    "brief_clients::",
    "by_manager::",
    "client_without_a_server_",
    "connecting::",
    "iwarp::",
    "leaving::",
    "lessons::",
    "peers_of_different_programs_",
    "quick_start::",
];

/// The suffix of a program's name in reports.
fn on(options: &Options) -> &'static str {
    match (options.driver, options.way) {
        (Driver::Siw, _) => " on siw",
        (_, Way::User) => " in user space",
        _ => "",
    }
}

fn split(tests: &[String]) -> (Vec<&str>, Vec<&str>) {
    let tests = tests.iter().map(String::as_str);
    tests.partition(|test| test.contains(TWO_HOSTS))
}

/// Runs `jobs` and counts; `expected` has the number of tests of each.
fn run(
    report: &mut Report,
    options: &Options,
    jobs: &[Job],
    expected: &BTreeMap<String, usize>,
) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    let mut tally = Tally::default();
    let ran = jobs::run(jobs, options, &mut |job, event| match event {
        Event::Start(name) => {
            tally = Tally::default();
            report.line(&format!("--> {name}"));
            progress::doing(name);
        }
        Event::Line(line) => {
            if tally.line(line) {
                report.line(line);
            }
            progress::doing(&format!("{}: {}", job.name, tally.progress()));
        }
        Event::End(result) => {
            let expected = expected.get(&job.name).copied().unwrap_or(0);
            judge(report, &job.name, &tally, expected, result);
        }
    });
    if let Err(error) = ran {
        // Every job's tests are missing now; the reason is the same for all.
        report.fail(format!("device tests: {error}"), error.code());
    }
    Ok(())
}

/// Counts one program's tests, and finds failures that its numbers alone don't show.
fn judge(
    report: &mut Report,
    name: &str,
    tally: &Tally,
    expected: usize,
    result: Result<(), (u8, &str)>,
) {
    let code = result.map_or_else(|(code, _)| code, |()| 1);
    count(report, name, tally, code);
    match result {
        Err((code, why)) if tally.failed == 0 => {
            report.fail(format!("{name}: {why}{}", tally.place()), code);
        }
        Ok(()) if tally.passed + tally.failed != expected => {
            let ran = tally.passed + tally.failed;
            report.fail(format!("{name}: {ran} of its {expected} tests were run"), 1);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Driver, Program, Tally, judge, listed, split};
    use crate::test::report::Report;
    use crate::workspace::Artifact;

    #[test]
    fn tests_are_listed_and_benchmarks_are_not() {
        assert_eq!(listed("a::b: test\nc: benchmark\n\n2 tests\n"), ["a::b"]);
    }

    #[test]
    fn tests_for_two_hosts_are_recognised_by_their_module() {
        let tests = ["qp::rnr".to_owned(), "two_hosts::peer_dies".to_owned()];
        assert_eq!(
            split(&tests),
            (vec!["two_hosts::peer_dies"], vec!["qp::rnr"])
        );
    }

    #[test]
    fn a_test_program_runs_in_its_package_s_folder() {
        let program = Program {
            artifact: Artifact {
                package: "core".into(),
                dir: "/w/core".into(),
                target: "device".into(),
                kind: "test".into(),
                is_test: true,
                executable: "/t/device-1".into(),
            },
            tests: vec![],
        };
        let job = program.job(program.name(), Driver::Rxe, &["--exact", "a"]);
        assert_eq!(job.dir, "/w/core");
        assert_eq!(job.commands[0][0], "/t/device-1");
        assert!(job.commands[0].contains(&"--ignored".to_owned()));
    }

    fn judged(lines: &[&str], expected: usize, result: Result<(), (u8, &str)>) -> String {
        let mut tally = Tally::default();
        for line in lines {
            tally.line(line);
        }
        let mut report = Report::default();
        judge(&mut report, "core device", &tally, expected, result);
        report.summary()
    }

    #[test]
    fn a_program_that_runs_fewer_tests_than_it_has_is_a_failure() {
        let result = ["test result: ok. 0 passed; 0 failed; 0 ignored"];
        let summary = judged(&result, 3, Ok(()));
        assert!(summary.contains("0 of its 3 tests"), "{summary}");
        assert!(
            summary.ends_with("0 passed, 1 failed, 0 skipped"),
            "{summary}"
        );
    }

    #[test]
    fn a_program_that_dies_is_a_failure_beside_what_it_did() {
        let lines = ["test a ... ok", "test b ... "];
        let summary = judged(&lines, 3, Err((134, "signal: 6")));
        assert!(
            summary.contains("FAILED core device: signal: 6, in the test b"),
            "{summary}"
        );
    }

    #[test]
    fn failed_and_skipped_tests_are_counted_by_name() {
        let lines = [
            "test a ... FAILED",
            "SKIPPED b: no atomics",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored",
        ];
        let summary = judged(&lines, 3, Err((101, "exit status: 101")));
        assert!(summary.contains("FAILED core device: a"), "{summary}");
        assert!(
            summary.ends_with("1 passed, 1 failed, 1 skipped"),
            "{summary}"
        );
    }
}
