//! What a page costs a thread: processor time, instructions and allocations.

use std::time::Duration;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};
use verbs_harness::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures parts of what the thread that created it does.
pub(crate) struct Meter {
    /// In user space. Virtual machines have none, and `kernel.perf_event_paranoid` may forbid it.
    instructions: Option<Counter>,
    cpu: Duration,
    allocations: usize,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let instructions = Builder::new().kind(Hardware::INSTRUCTIONS);
        Self {
            instructions: instructions.build().ok(),
            cpu: Duration::ZERO,
            allocations: 0,
        }
    }

    /// Measures this.
    pub(crate) fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (cpu, allocated) = (thread_time(), allocations());
        let enabled = self.instructions.as_mut().map(Counter::enable);
        let result = work();
        let disabled = self.instructions.as_mut().map(Counter::disable);
        let is_counted = matches!((enabled, disabled), (Some(Ok(())), Some(Ok(()))));
        self.instructions = self.instructions.take().filter(|_| is_counted);
        self.allocations += allocations() - allocated;
        self.cpu += thread_time().saturating_sub(cpu);
        result
    }

    /// What was measured, for each of so many pages.
    pub(crate) fn per_page(mut self, pages: u64) -> String {
        let pages = pages.max(1) as f64;
        let counted = self.instructions.as_mut().map(Counter::read);
        let instructions = match counted {
            Some(Ok(count)) => format!("{:.0} instructions", count as f64 / pages),
            _ => "instructions unavailable".to_owned(),
        };
        let cpu = self.cpu.as_secs_f64() * 1e6 / pages;
        let allocations = self.allocations as f64 / pages;
        format!("{cpu:.1} us of CPU, {instructions}, {allocations:.2} allocations a page")
    }
}

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
