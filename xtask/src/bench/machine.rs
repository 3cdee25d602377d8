//! What was measured on: without it, no figure can be compared with another.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

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
}

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
        let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some();
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
            load: load(&read("/proc/loadavg"), count),
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

/// The load average of a minute, and what it means.
fn load(loadavg: &str, count: usize) -> String {
    let load = loadavg.split(' ').next().unwrap_or_default();
    let idle = load.parse::<f64>().is_ok_and(|load| load < 0.3);
    let word = if idle {
        "idle"
    } else {
        "other programs ran: take times again"
    };
    format!("{load} on {count} threads ({word})")
}

#[cfg(test)]
mod tests {
    use super::{Machine, load, processor, rdma_core, short_rust};

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
        assert!(load("0.05 0.3 0.4 1/99 5", 2).contains("idle"));
        assert!(load("1.50 0.3 0.4 1/99 5", 2).contains("take times again"));
        assert!(load("", 2).contains("take times again"));
    }

    #[test]
    fn this_machine_has_a_kernel() {
        let machine = Machine::this();
        assert!(machine.kernel.starts_with("Linux "), "{machine:?}");
        assert_eq!(machine.rows().len(), 7);
    }
}
