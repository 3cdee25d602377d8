//! The result of a run of tests, counted from what really happened.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::progress::{self, Progress};

/// Most tests skipped for one reason that the summary names.
const FEW: usize = 3;

/// The counts, the names behind them, and the exit code.
#[derive(Debug, Default)]
pub(crate) struct Report {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
    printed: Vec<String>,
    code: Option<u8>,
    /// Whether a missing tool is a failure.
    is_strict: bool,
    /// Tests on devices, and how many milliseconds each took.
    pub(super) took: Vec<(u64, String)>,
    /// The lines of a report that prints nothing by itself.
    collected: Option<String>,
}

impl Report {
    /// A report of steps that run beside those of another report: it prints nothing until it is
    /// [added](Self::add) to that one.
    pub(crate) fn beside() -> Self {
        Self {
            collected: Some(String::new()),
            ..Self::default()
        }
    }

    /// A report in which [a missing tool](Self::lacks) is a failure.
    pub(crate) fn strict() -> Self {
        Self {
            is_strict: true,
            ..Self::default()
        }
    }

    /// Prints the lines of a report of steps that ran beside those of this one, and counts what it
    /// counted.
    pub(crate) fn add(&mut self, other: Self) {
        for line in other.collected.iter().flat_map(|lines| lines.lines()) {
            self.line(line);
        }
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.printed.extend(other.printed);
        self.code = self.code.or(other.code);
    }

    /// Prints a line.
    pub(crate) fn line(&mut self, line: &str) {
        match &mut self.collected {
            None => progress::print(line),
            Some(lines) => {
                lines.push_str(line);
                lines.push('\n');
            }
        }
    }

    /// Announces the step `name`, starts its clock, and shows it while it is at work.
    pub(crate) fn start<'a>(&mut self, name: &'a str) -> Step<'a> {
        self.line(&format!("==> {name}"));
        Step {
            name,
            start: Instant::now(),
            failed: self.failed.len(),
            progress: self.collected.is_none().then(|| Progress::of(name)),
        }
    }

    /// Prints the tests that took the longest.
    pub(super) fn slowest(&mut self, count: usize) {
        let mut took = std::mem::take(&mut self.took);
        took.sort_unstable_by(|a, b| b.cmp(a));
        for (time, test) in took.iter().take(count) {
            self.line(&format!("    {time:>6} ms {test}"));
        }
    }

    pub(crate) fn pass(&mut self, count: usize) {
        self.passed += count;
    }

    /// Counts a failure; `code` is the exit code of what failed, passed on if it's the first.
    pub(crate) fn fail(&mut self, what: impl Into<String>, code: u8) {
        self.failed.push(what.into());
        self.code.get_or_insert(code);
    }

    /// Counts something that could not run; `what` is `NAME: REASON`.
    pub(crate) fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// Counts something that could not run because this machine lacks a tool that can be installed; `what` is
    /// `NAME: REASON`. In a [strict](Self::strict) report it has failed.
    pub(crate) fn lacks(&mut self, what: impl Into<String>) {
        match self.is_strict {
            true => self.fail(what, 1),
            false => self.skip(what),
        }
    }

    /// The same as [`skip`](Self::skip) for something whose `NAME: REASON` was printed when it was skipped.
    pub(crate) fn skip_printed(&mut self, what: impl Into<String>) {
        self.printed.push(what.into());
    }

    /// Whether nothing at all was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed == 0 && self.failed.is_empty() && self.skipped() == 0
    }

    /// The exit code of the whole run.
    pub(crate) fn exit_code(&self) -> u8 {
        self.code.unwrap_or(0)
    }

    fn skipped(&self) -> usize {
        self.skipped.len() + self.printed.len()
    }

    /// Skipped tests and why, failed tests, and the closing line.
    ///
    /// Where many were skipped for one reason, their names have been printed before.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::from("\n");
        for skipped in &self.skipped {
            text.push_str(&format!("SKIPPED {skipped}\n"));
        }
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for skipped in &self.printed {
            let (_, reason) = skipped.split_once(": ").unwrap_or(("", skipped));
            by_reason.entry(reason).or_default().push(skipped);
        }
        for (reason, skipped) in by_reason {
            match skipped.len() {
                1..=FEW => {
                    for skipped in skipped {
                        text.push_str(&format!("SKIPPED {skipped}\n"));
                    }
                }
                many => text.push_str(&format!("SKIPPED {many} tests, named above: {reason}\n")),
            }
        }
        for failed in &self.failed {
            text.push_str(&format!("FAILED {failed}\n"));
        }
        let (failed, skipped) = (self.failed.len(), self.skipped());
        text + &format!("{} passed, {failed} failed, {skipped} skipped", self.passed)
    }
}

/// A step that is under way.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    name: &'a str,
    start: Instant,
    /// The failures before it.
    failed: usize,
    progress: Option<Progress>,
}

impl Step<'_> {
    /// Sets the step's current action.
    pub(crate) fn doing(&self, what: &str) {
        if let Some(progress) = &self.progress {
            progress.doing(what);
        }
    }

    /// Says whether anything has failed since the step began, and how long it took.
    pub(crate) fn end(self, report: &mut Report) {
        let how = match report.failed.len() > self.failed {
            true => "FAILED",
            false => "ok",
        };
        let seconds = self.start.elapsed().as_secs_f32();
        report.line(&format!("<== {}: {how} ({seconds:.1} s)", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn the_closing_line_stands_alone_and_counts_what_was_counted() {
        let mut report = Report::default();
        report.pass(3);
        report.skip("odp: no such device");
        report.fail("tidy", 1);
        report.fail("clippy", 101);
        let summary = report.summary();
        assert_eq!(
            summary.lines().last(),
            Some("3 passed, 2 failed, 1 skipped")
        );
        assert!(summary.contains("SKIPPED odp: no such device\n"));
        assert!(summary.contains("FAILED clippy\n"));
        assert_eq!(report.exit_code(), 1);
    }

    #[test]
    fn many_skipped_for_one_reason_are_one_line_and_all_count() {
        let mut report = Report::default();
        for test in ["a", "b", "c", "d"] {
            report.skip_printed(format!("{test}: iWARP lacks atomics"));
        }
        report.skip_printed("e: no: such: device");
        let summary = report.summary();
        let expected = "\nSKIPPED 4 tests, named above: iWARP lacks atomics\n\
             SKIPPED e: no: such: device\n0 passed, 0 failed, 5 skipped";
        assert_eq!(summary, expected);
        assert!(!report.is_empty());
    }

    #[test]
    fn a_missing_tool_is_a_failure_in_a_strict_report_only() {
        for (mut report, code) in [(Report::default(), 0), (Report::strict(), 1)] {
            report.lacks("Miri: not installed here");
            assert_eq!(report.exit_code(), code);
            assert!(report.summary().contains("Miri: not installed here"));
        }
    }

    #[test]
    fn steps_that_ran_beside_are_printed_and_counted_with_the_rest() {
        let mut report = Report::beside();
        report.pass(1);
        let mut other = Report::beside();
        let step = other.start("docs");
        other.pass(2);
        other.skip("odp: no such device");
        other.skip_printed("atomics: no such device");
        other.fail("docs", 3);
        step.end(&mut other);
        report.add(other);
        let lines = report.collected.clone().unwrap();
        assert!(lines.starts_with("==> docs\n<== docs: FAILED ("), "{lines}");
        let summary = report.summary();
        assert!(
            summary.ends_with("3 passed, 1 failed, 2 skipped"),
            "{summary}"
        );
        assert_eq!(report.exit_code(), 3);
    }

    #[test]
    fn nothing_failed_is_success() {
        assert_eq!(Report::default().exit_code(), 0);
        assert!(Report::default().is_empty());
    }
}
