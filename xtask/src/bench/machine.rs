//! The machine measured on: without it, no figure can be compared with another.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::docs;
use crate::workspace;

/// The machine, its software, and the state of the project, in words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) kernel: String,
    pub(super) rdma_core: String,
    pub(super) rust: String,
    pub(super) commit: String,
    pub(super) date: String,
    /// How busy it was before anything was measured.
    pub(super) load: String,
    /// Why figures of this run are not for the docs.
    pub(super) unfit: Vec<&'static str>,
}

/// More than this share of its processors' time, and other programs disturb.
const BUSY: f64 = 0.1;

impl Machine {
    pub(super) fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let word = |text: String| text.trim().to_owned();
        let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let version = first_line(Command::new("pkg-config").args(["--modversion", "libibverbs"]));
        let git = |args: &[&str]| {
            let mut git = Command::new("git");
            first_line(git.args(args).current_dir(workspace::root()))
        };
        let commit = git(&["rev-parse", "--short=12", "HEAD"]);
        let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--", "."];
        // Files written from figures do not change them.
        let written = docs::files().map(|file| format!(":!{file}"));
        let written: Vec<String> = written.collect();
        status.extend(written.iter().map(|file| &**file));
        let changed = git(&status).is_some();
        let busy = busy();
        let rust = first_line(workspace::rustc().arg("--version"));
        Self {
            processor: processor(&read("/proc/cpuinfo"), count),
            kernel: format!(
                "Linux {}, {}",
                word(read("/proc/sys/kernel/osrelease")),
                std::env::consts::ARCH
            ),
            rdma_core: version.map_or_else(unknown, |version| rdma_core(&version)),
            rust: rust.map_or_else(unknown, |version| short_rust(&version)),
            commit: commit.map_or_else(unknown, |commit| match changed {
                true => commit + " with changes",
                false => commit,
            }),
            date: first_line(Command::new("date").args(["-u", "+%Y-%m-%d"]))
                .unwrap_or_else(unknown),
            load: load(busy, count),
            unfit: unfit(changed, busy),
        }
    }

    /// Its rows in a report.
    pub(super) fn rows(&self) -> [(&'static str, &str); 7] {
        [
            ("processor", &self.processor),
            ("kernel", &self.kernel),
            ("rdma-core", &self.rdma_core),
            ("Rust", &self.rust),
            ("commit", &self.commit),
            ("date", &self.date),
            ("load before", &self.load),
        ]
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The first line that a command prints; none if it prints nothing, or cannot be run.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned())
}

fn processor(cpuinfo: &str, count: usize) -> String {
    let value = |name: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim())
    };
    let model = value("model name").unwrap_or(std::env::consts::ARCH);
    let flags = value("flags").unwrap_or_default();
    let kind = match flags.split(' ').any(|flag| flag == "hypervisor") {
        true => ", in a virtual machine",
        false => "",
    };
    format!("{model}, {count} threads{kind}")
}

/// libibverbs 1.14.44.0 is that of rdma-core 44.
fn rdma_core(version: &str) -> String {
    let third = version.split('.').nth(2);
    third.unwrap_or(version).to_owned()
}

/// `rustc 1.95.0 (abc 2026-01-01)` as 1.95.0.
fn short_rust(version: &str) -> String {
    let number = version.split(' ').nth(1);
    number.unwrap_or(version).to_owned()
}

/// The share of its processors' time in which this machine was busy, within a second in which this program
/// does nothing.
fn busy() -> Option<f64> {
    let now = || Ticks::read(&fs::read_to_string("/proc/stat").ok()?);
    let before = now()?;
    thread::sleep(Duration::from_secs(1));
    Some(now()?.busy_since(&before))
}

/// The times of all processors together, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    /// From `/proc/stat`; see `proc_stat(5)`.
    fn read(stat: &str) -> Option<Self> {
        let mut words = stat.lines().next()?.split_whitespace();
        if words.next() != Some("cpu") {
            return None;
        }
        // The first two include the time of guests.
        let ticks: Option<Vec<u64>> = words.take(8).map(|word| word.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() >= 5)?;
        Some(Self {
            all: ticks.iter().sum(),
            idle: ticks[3] + ticks[4],
        })
    }

    fn busy_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle).min(all);
        #[expect(clippy::cast_precision_loss, reason = "ticks of a second")]
        let share = (all - idle) as f64 / all.max(1) as f64;
        share
    }
}

/// Why figures are not for the docs.
fn unfit(changed: bool, busy: Option<f64>) -> Vec<&'static str> {
    let reasons = [
        (changed, "there are changes that are not committed"),
        (
            busy.is_none_or(|busy| busy >= BUSY),
            "other programs run on this machine, or may",
        ),
    ];
    let reasons = reasons.into_iter().filter(|(is_so, _)| *is_so);
    reasons.map(|(_, reason)| reason).collect()
}

/// How busy it was, and what it means.
fn load(busy: Option<f64>, count: usize) -> String {
    let Some(busy) = busy else {
        return unknown();
    };
    let word = if busy < BUSY {
        "idle"
    } else {
        "other programs ran: take times again"
    };
    format!("{:.0} % of {count} threads ({word})", busy * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{Machine, Ticks, load, processor, rdma_core, short_rust, unfit, unknown};

    #[test]
    fn the_processor_is_named_with_its_threads() {
        let real = "processor\t: 0\nmodel name\t: Fast 9000\nflags\t\t: fpu vme\n";
        assert_eq!(processor(real, 8), "Fast 9000, 8 threads");
        let guest = real.replace("vme", "vme hypervisor");
        let text = processor(&guest, 2);
        assert_eq!(text, "Fast 9000, 2 threads, in a virtual machine");
        assert!(processor("", 2).ends_with(", 2 threads"));
    }

    #[test]
    fn versions_are_short() {
        assert_eq!(rdma_core("1.14.44.0"), "44");
        assert_eq!(rdma_core("odd"), "odd");
        assert_eq!(short_rust("rustc 1.95.0 (59807616e 2026-04-14)"), "1.95.0");
    }

    #[test]
    fn a_busy_machine_is_called_so() {
        let stat = |line: &str| Ticks::read(&format!("{line}\ncpu0 1 2 3\n"));
        let before = stat("cpu  100 0 100 1000 50 0 0 10 5 0").unwrap();
        let after = stat("cpu  130 0 110 1130 70 0 0 20 5 0").unwrap();
        assert_eq!(after.busy_since(&before), 0.25);
        assert_eq!(after.busy_since(&after), 0.0);
        assert_eq!(
            load(Some(0.25), 2),
            "25 % of 2 threads (other programs ran: take times again)"
        );
        assert_eq!(load(Some(0.0), 2), "0 % of 2 threads (idle)");
        assert_eq!(
            (stat("cpu 1 2"), stat(""), load(None, 2)),
            (None, None, unknown())
        );
    }

    #[test]
    fn changes_and_other_programs_make_a_machine_unfit() {
        assert!(unfit(false, Some(0.05)).is_empty());
        assert_eq!(unfit(true, Some(0.05)).len(), 1);
        assert_eq!(unfit(false, Some(0.25)).len(), 1);
        assert_eq!(unfit(true, None).len(), 2);
    }

    #[test]
    fn this_machine_has_a_kernel() {
        let machine = Machine::this();
        assert!(machine.kernel.starts_with("Linux "), "{machine:?}");
        assert_eq!(machine.rows().len(), 7);
    }
}
