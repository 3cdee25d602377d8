//! Reads what Rust's test programs print, line by line: what passed, failed, or was skipped.

use crate::stream::End;

/// Output so far of one test program, or of several one after the other.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How many tests passed, those that skipped themselves included.
    pub(crate) passed: usize,
    /// How many failed.
    pub(crate) failed: usize,
    /// `NAME: REASON` of each test that libtest ignored.
    pub(crate) ignored: Vec<String>,
    /// `NAME: REASON` of each test that printed that it can't run here.
    pub(crate) skipped: Vec<String>,
    /// The names of the tests that failed.
    pub(crate) failures: Vec<String>,
    /// How many test programs began to run tests.
    started: usize,
    /// How many test programs came to their end.
    pub(crate) results: usize,
    /// The test that has started and not ended.
    pub(crate) running: Option<String>,
    /// Tests that printed how long they took, in milliseconds.
    pub(crate) took: Vec<(u64, String)>,
    /// How many tests have ended one way or another.
    ended: usize,
    in_successes: bool,
    /// The next lines are the output of a test that passed, says cargo-nextest.
    is_quiet: bool,
}

impl Tally {
    /// Takes one line in; returns whether a reader wants to see it. The output of tests that
    /// passed is left out, but for what they skipped; so are starts without an end.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if self.nextest(line) {
            return true;
        }
        // The first words of a test that cargo-nextest runs follow its name.
        let words = line.split_once(" ... ").map_or(line, |(_, words)| words);
        let is_record = words.starts_with("SKIPPED ") || words.starts_with("TOOK ");
        let line = if is_record { words } else { line };
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.in_successes = false;
        }
        if line.starts_with("running ") && (line.ends_with(" test") || line.ends_with(" tests")) {
            self.broke_off();
            self.started += usize::from(!self.in_successes);
        }
        let skipped = line.strip_prefix("SKIPPED ");
        let took = line.strip_prefix("TOOK ");
        let took = took.and_then(|took| took.split_once(" ms "));
        if let Some((time, test)) = took {
            let time = time.parse().ok();
            self.took.extend(time.map(|time| (time, test.to_owned())));
        }
        if let Some(skipped) = skipped {
            self.skipped.push(skipped.to_owned());
        } else if let Some(test) = line.strip_prefix("test ") {
            self.test(test);
        }
        skipped.is_some() || !(self.in_successes || self.is_quiet || starting(line).is_some())
    }

    /// Whether the line is one of cargo-nextest's, `PASS [   0.005s] PACKAGE::PROGRAM TEST`, which comes before what the
    /// test has printed. Those of failures come again at the end.
    fn nextest(&mut self, line: &str) -> bool {
        let Some((how, rest)) = line.trim_start().split_once(" [") else {
            return false;
        };
        let Some((time, test)) = rest.split_once("s] ") else {
            return false;
        };
        if time.trim_start().parse::<f64>().is_err() {
            return false;
        }
        // `(7/9) `, aligned, if all are shown.
        let test = test.rsplit_once(") ").map_or(test, |(_, test)| test);
        self.is_quiet = how == "PASS";
        if how == "FAIL" && !self.failures.iter().any(|failure| failure == test) {
            self.failures.push(test.to_owned());
        }
        true
    }

    /// The next program begins: a test that has not ended never will.
    fn broke_off(&mut self) {
        if let Some(test) = self.running.take() {
            self.failed += 1;
            self.failures.push(format!("{test}: its program broke off"));
        }
    }

    /// `None` if the run of cargo that printed this has succeeded, else what went wrong, and the exit code to pass on.
    /// Cargo takes a program that ended in the middle, by `exit(0)`, for a success.
    pub(crate) fn failure(&self, end: &End) -> Option<(String, u8)> {
        let unfinished = || {
            let count = self.started.saturating_sub(self.results);
            (count > 0).then(|| format!("{count} test programs ended before all of their tests"))
        };
        end.failure().or_else(|| Some((unfinished()?, 1)))
    }

    /// How far the tests are, in a few words.
    pub(crate) fn progress(&self) -> String {
        let Self { ended, running, .. } = self;
        match running {
            Some(test) => format!("{ended} tests ended, {test}"),
            None => format!("{ended} tests ended"),
        }
    }

    /// Where a test program broke off, for a message: `, in the test NAME`, or nothing.
    pub(crate) fn place(&self) -> String {
        let running = self.running.as_ref();
        running.map_or_else(String::new, |test| format!(", in the test {test}"))
    }

    fn test(&mut self, text: &str) {
        if let Some(result) = text.strip_prefix("result: ") {
            self.passed += count(result, " passed");
            self.failed += count(result, " failed");
            self.results += 1;
            self.running = None;
            return;
        }
        let Some((name, how)) = text.split_once(" ... ") else {
            return;
        };
        self.running = how.is_empty().then(|| name.to_owned());
        self.ended += usize::from(!how.is_empty());
        // It may be known from the line of cargo-nextest before.
        let own = format!(" {name}");
        let is_known = self
            .failures
            .last()
            .is_some_and(|last| last.ends_with(&own));
        if how.starts_with("FAILED") && !is_known {
            self.failures.push(name.to_owned());
        } else if let Some(reason) = how.strip_prefix("ignored") {
            let reason = reason.trim_start_matches(", ");
            let reason = if reason.is_empty() { "ignored" } else { reason };
            self.ignored.push(format!("{name}: {reason}"));
        }
    }
}

/// The test of a line that has not ended yet: `test NAME ... `.
pub(crate) fn starting(text: &str) -> Option<&str> {
    text.strip_prefix("test ")?.strip_suffix(" ... ")
}

/// The number before `word` in `ok. 3 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> usize {
    let before = result.split(word).next().unwrap_or_default();
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{End, Tally, starting};
    use std::process::ExitStatus;

    const OUTPUT: &str = "
running 4 tests
test a::passes ... ok
test a::needs_odp ... ok
test a::breaks ... FAILED
test a::device ... ignored, needs an RDMA device

successes:

---- a::needs_odp stdout ----
some noise
SKIPPED a::needs_odp: no on-demand paging here

failures:

---- a::breaks stdout ----
assertion failed

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn everything_is_counted_once() {
        let mut tally = Tally::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| tally.line(line)).collect();
        assert_eq!((tally.passed, tally.failed, tally.results), (2, 1, 1));
        assert_eq!(tally.failures, ["a::breaks"]);
        assert_eq!(tally.ignored, ["a::device: needs an RDMA device"]);
        assert_eq!(tally.skipped, ["a::needs_odp: no on-demand paging here"]);
        assert!(shown.contains(&"assertion failed"));
        assert!(!shown.contains(&"some noise"));
    }

    #[test]
    fn a_test_that_does_not_end_is_known_by_name() {
        let mut tally = Tally::default();
        assert_eq!(starting("test a::hangs ... "), Some("a::hangs"));
        assert!(!tally.line("test a::hangs ... "));
        assert_eq!(tally.place(), ", in the test a::hangs");
        assert_eq!(starting("test a::hangs ... o"), None);
        tally.line("test a::hangs ... ok");
        assert_eq!(tally.place(), "");
    }

    #[test]
    fn a_program_that_breaks_off_before_another_has_failed() {
        let mut tally = Tally::default();
        for line in [
            "running 2 tests",
            "test a::hangs ... ",
            "running 1 test",
            "test b ... ok",
        ] {
            tally.line(line);
        }
        tally.line("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured");
        assert_eq!(tally.failures, ["a::hangs: its program broke off"]);
        assert_eq!((tally.passed, tally.failed), (1, 1));
    }

    #[test]
    fn program_that_ends_before_its_tests_is_unfinished() {
        let mut tally = Tally::default();
        let end = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
        for line in ["running 1 test", "test a ... ok", end, "running 2 tests"] {
            tally.line(line);
        }
        let success = End::Exited(ExitStatus::default());
        assert!(tally.failure(&success).is_some());
        tally.line(end);
        assert_eq!(tally.failure(&success), None);
        // Not a program, but what a test has printed.
        tally.line("successes:");
        tally.line("running 3 tests");
        assert_eq!(tally.failure(&success), None);
    }

    #[test]
    fn tests_that_nextest_runs_are_counted() {
        let mut tally = Tally::default();
        let output = "        PASS [   0.005s] (1/2) core::offline a::passes
running 1 test
test a::passes ... SKIPPED a::passes: no atomics
ok

test result: ok. 1 passed; 0 failed; 0 ignored
        FAIL [   0.104s] (2/2) core::offline a::breaks
running 1 test
test a::breaks ... FAILED

test result: FAILED. 0 passed; 1 failed; 0 ignored
     Summary [   0.110s] 2 tests run: 1 passed, 1 failed, 7 skipped
        FAIL [   0.104s] core::offline a::breaks";
        let shown: Vec<&str> = output.lines().filter(|line| tally.line(line)).collect();
        assert_eq!((tally.passed, tally.failed, tally.results), (1, 1, 2));
        assert_eq!(tally.skipped, ["a::passes: no atomics"]);
        assert_eq!(tally.failures, ["core::offline a::breaks"]);
        assert!(shown.contains(&"test a::breaks ... FAILED"));
        assert!(!shown.contains(&"ok"));
    }

    #[test]
    fn several_programs_add_up() {
        let mut tally = Tally::default();
        for _ in 0..2 {
            tally.line("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured");
        }
        assert_eq!((tally.passed, tally.results), (10, 2));
    }
}
