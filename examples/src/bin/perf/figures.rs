//! What was measured, as a table for people or as JSON.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use examples::{Context as _, Failure, say};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::plan::Plan;

/// How long operations took, in nanoseconds, to three digits.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

/// What a side has measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    operations: u64,
    nanoseconds: u64,
    /// Messages of the peer that did not arrive here.
    lost: u64,
    #[serde(skip)]
    times: Option<(Times, u32)>,
}

/// Times one operation after the other. The first are a warm-up, and not measured.
pub(crate) struct Latency<'a> {
    plan: &'a Plan,
    warm_up: u64,
    /// How many operations have been timed, with the warm-up.
    number: u64,
    start: Instant,
    times: Times,
}

impl<'a> Latency<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Result<Self, Failure> {
        Ok(Self {
            plan,
            warm_up: plan.warm_up(),
            number: 0,
            start: Instant::now(),
            times: Times::new()?,
        })
    }

    /// The number of the next operation, until there were enough.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.number == self.warm_up {
            self.start = Instant::now();
        }
        let measured = self.number.checked_sub(self.warm_up);
        let is_over = measured.is_some_and(|count| self.plan.is_over(count, self.start));
        (!is_over).then_some(self.number)
    }

    /// The operation that begun then is done.
    #[inline]
    pub(crate) fn record(&mut self, begun: Instant) {
        if self.number >= self.warm_up {
            self.times.record(begun.elapsed());
        }
        self.number += 1;
    }

    /// What was measured, of operations of which each went so many ways in its time.
    pub(crate) fn figures(self, ways: u32) -> Figures {
        Figures {
            times: Some((self.times, ways)),
            ..Figures::bandwidth(self.number - self.warm_up, self.start.elapsed())
        }
    }
}

impl Times {
    fn new() -> Result<Self, Failure> {
        // Up to a minute; what takes longer counts as that.
        let times = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Ok(Self(times.context(|| "cannot make a histogram")?))
    }

    #[inline]
    fn record(&mut self, took: Duration) {
        self.0.saturating_record(nanoseconds(took).max(1));
    }
}

fn nanoseconds(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

impl Figures {
    pub(crate) fn bandwidth(operations: u64, took: Duration) -> Self {
        Self {
            operations,
            nanoseconds: nanoseconds(took),
            ..Self::default()
        }
    }

    pub(crate) const fn lost(&mut self, lost: u64) {
        self.lost = lost;
    }

    /// Both sides' together: both sent at the same time, or only this one did.
    pub(crate) fn with(mut self, theirs: &Self) -> Self {
        self.operations += theirs.operations;
        self.nanoseconds = self.nanoseconds.max(theirs.nanoseconds);
        self.lost += theirs.lost;
        self
    }

    /// Prints them.
    pub(crate) fn print(&self, plan: &Plan, json: bool, histogram: bool) -> Result<(), Failure> {
        let Self {
            operations, lost, ..
        } = *self;
        let seconds = self.nanoseconds as f64 / 1e9;
        let per_second = operations as f64 / seconds;
        let megabytes = per_second * f64::from(plan.size) / 1e6;
        let usec = |(times, ways): &(Times, u32)| {
            let usec = |nanoseconds: f64| nanoseconds / 1e3 / f64::from(*ways);
            let at = |quantile| usec(times.0.value_at_quantile(quantile) as f64);
            [
                ("min", usec(times.0.min() as f64)),
                ("median", at(0.5)),
                ("p90", at(0.9)),
                ("p99", at(0.99)),
                ("p99_9", at(0.999)),
                ("max", usec(times.0.max() as f64)),
                ("mean", usec(times.0.mean())),
                ("stdev", usec(times.0.stdev())),
            ]
        };
        let latency = self.times.as_ref().map(usec);
        if json {
            let latency = latency.map(|all| all.into_iter().collect::<BTreeMap<_, _>>());
            return say(json!({
                "plan": plan,
                "operations": operations,
                "lost": lost,
                "seconds": seconds,
                "operations_per_second": per_second,
                "megabytes_per_second": megabytes,
                "latency_microseconds": latency,
            }));
        }
        let Plan {
            op,
            layer,
            size,
            qps,
            ..
        } = plan;
        let s = if *qps == 1 { "" } else { "s" };
        say(format_args!(
            "{op} of {size} bytes on {layer}, {qps} connection{s}: {operations} in {seconds:.3} s"
        ))?;
        match latency {
            Some(latency) => {
                for (name, value) in latency {
                    say(format_args!("  {name:<8} {value:>12.2} usec"))?;
                }
            }
            None => say(format_args!(
                "  {megabytes:>12.2} MB/s {per_second:>14.0} operations/s"
            ))?,
        }
        if lost > 0 {
            say(format_args!("  {lost} datagrams were lost"))?;
        }
        match &self.times {
            Some((times, ways)) if histogram => times.print(*ways),
            _ => Ok(()),
        }
    }
}

impl Times {
    /// How many took how long, in steps of a fifth.
    fn print(&self, ways: u32) -> Result<(), Failure> {
        let most = self
            .0
            .iter_log(1, 1.2)
            .map(|step| step.count_since_last_iteration());
        let most = most.max().unwrap_or(1).max(1);
        for step in self.0.iter_log(1, 1.2) {
            let count = step.count_since_last_iteration();
            if count == 0 {
                continue;
            }
            let usec = step.value_iterated_to() as f64 / 1e3 / f64::from(ways);
            let width = usize::try_from((count * 50).div_ceil(most))?;
            let bar = "#".repeat(width);
            say(format_args!("  up to {usec:>10.2} usec {count:>9} {bar}"))?;
        }
        Ok(())
    }
}
