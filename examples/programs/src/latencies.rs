//! Latencies of many operations.

use std::fmt;
use std::time::Duration;

/// Latencies, sorted.
#[derive(Clone, Debug)]
pub struct Latencies {
    sorted: Vec<Duration>,
}

impl Latencies {
    /// Creates them from durations in any order.
    #[must_use]
    pub fn new(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self { sorted: all }
    }

    /// How many there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a number to show")]
    pub const fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The latency below which this percentage of them is, in microseconds.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        let at = self.sorted.len() * percent / 100;
        let at = at.min(self.sorted.len().saturating_sub(1));
        let took = self.sorted.get(at);
        took.map_or(0.0, |took| took.as_secs_f64() * 1e6)
    }

    /// The average, in microseconds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a number of messages")]
        let count = self.sorted.len().max(1) as f64;
        self.total().as_secs_f64() * 1e6 / count
    }

    /// Their sum.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.sorted.iter().sum()
    }
}

/// Mean, extremes and percentiles, in one line.
impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [min, median, p90, p99, max] = [0, 50, 90, 99, 100].map(|p| self.percentile(p));
        let mean = self.mean();
        write!(
            f,
            "microseconds: mean {mean:.1}, min {min:.1}, median {median:.1}, 90 % {p90:.1}, \
             99 % {p99:.1}, max {max:.1}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "whole numbers")]
    fn percentiles_are_of_what_was_given() {
        let all = (1..=100).rev().map(Duration::from_micros).collect();
        let all = Latencies::new(all);
        let ranks = [0, 50, 99, 100].map(|percent| all.percentile(percent).round());
        assert_eq!(ranks, [1.0, 51.0, 100.0, 100.0]);
        assert_eq!((all.mean() * 10.0).round(), 505.0);
        assert_eq!(all.len(), 100);
        assert_eq!(all.total(), Duration::from_micros(5050));
        assert_eq!(
            all.to_string(),
            "microseconds: mean 50.5, min 1.0, median 51.0, 90 % 91.0, 99 % 100.0, max 100.0"
        );
        assert_eq!(Latencies::new(Vec::new()).percentile(50), 0.0);
    }
}
