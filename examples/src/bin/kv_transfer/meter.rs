//! What the pages cost this process: processor time, and instructions where they can be counted.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counts while it runs.
pub(crate) struct Meter {
    cpu: Duration,
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            cpu: Duration::ZERO,
        }
    }

    /// What `work` costs is added.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = cpu_time();
        let output = work();
        self.cpu += cpu_time().saturating_sub(before);
        output
    }

    /// The cost of each of so many pages.
    pub(crate) fn per_page(&self, pages: u64) -> String {
        let micros = self.cpu.as_secs_f64() * 1e6 / pages.max(1) as f64;
        format!("{micros:.1} us of CPU a page")
    }
}

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
