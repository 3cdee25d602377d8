//! The cost of operations to a thread: processor time, instructions and allocations.

use std::fmt;
use std::time::Duration;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};
use verbs_harness::allocations::allocations;

/// Measures parts of what the thread that created it does.
///
/// The program's global allocator is `verbs_harness::allocations::Counting`.
#[derive(Debug)]
pub struct Meter {
    /// In user space. Virtual machines have none, and `kernel.perf_event_paranoid` may forbid it.
    instructions: Option<Counter>,
    cpu: Duration,
    allocations: usize,
}

/// The average cost of an operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Costs {
    /// Microseconds of processor time.
    pub cpu: f64,
    /// Instructions in user space, where they are counted.
    pub instructions: Option<f64>,
    /// Allocations of memory.
    pub allocations: f64,
}

impl Meter {
    /// A meter at zero.
    #[must_use]
    pub fn new() -> Self {
        let instructions = Builder::new().kind(Hardware::INSTRUCTIONS);
        Self {
            instructions: instructions.build().ok(),
            cpu: Duration::ZERO,
            allocations: 0,
        }
    }

    /// Measures this, and adds it.
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
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

    /// The cost measured, divided by the number of operations.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub fn costs(&mut self, operations: u64) -> Costs {
        let operations = operations.max(1) as f64;
        let counted = self.instructions.as_mut().map(Counter::read);
        Costs {
            cpu: self.cpu.as_secs_f64() * 1e6 / operations,
            instructions: counted.and_then(|count| Some(count.ok()? as f64 / operations)),
            allocations: self.allocations as f64 / operations,
        }
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cpu, allocations, ..
        } = self;
        write!(f, "{cpu:.1} us of CPU, ")?;
        match self.instructions {
            Some(instructions) => write!(f, "{instructions:.0} instructions, ")?,
            None => f.write_str("instructions unavailable, ")?,
        }
        write!(f, "{allocations:.2} allocations")
    }
}

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_of_each_operation() {
        let mut meter = Meter {
            instructions: None,
            cpu: Duration::from_micros(30),
            allocations: 5,
        };
        let text = "3.0 us of CPU, instructions unavailable, 0.50 allocations";
        assert_eq!(meter.costs(10).to_string(), text);
        // Without operations, the costs are the totals.
        assert!(meter.costs(0).to_string().ends_with(", 5.00 allocations"));
        let mut costs = meter.costs(1);
        costs.instructions = Some(1234.4);
        assert!(costs.to_string().contains(", 1234 instructions, "));
    }
}
