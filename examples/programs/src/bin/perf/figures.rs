//! The measurements, as a table for people or as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use programs::{Context as _, Failure, say};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::plan::Plan;

/// How long operations took, in nanoseconds, to three digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", try_from = "Vec<(u64, u64)>")]
pub(crate) struct Times(Histogram<u64>);

/// The measurements of a side.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    operations: u64,
    nanoseconds: u64,
    /// Messages of the peer that did not arrive here.
    lost: u64,
    /// The times, and how many ways each of them covers.
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

    /// Records an operation that began at this time and has just ended.
    #[inline]
    pub(crate) fn record(&mut self, start: Instant) {
        if self.number >= self.warm_up {
            self.times.record(start.elapsed());
        }
        self.number += 1;
    }

    /// The measurements, if the time of each operation covers `ways` ways.
    pub(crate) fn figures(self, ways: u32) -> Figures {
        Figures {
            times: Some((self.times, ways)),
            ..Figures::bandwidth(self.number - self.warm_up, self.start.elapsed())
        }
    }
}

impl Times {
    pub(crate) fn new() -> Result<Self, Failure> {
        // Up to a minute; what takes longer counts as that.
        let times = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Ok(Self(times.context(|| "cannot make a histogram")?))
    }

    #[inline]
    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(nanoseconds(took).max(1));
    }
}

/// Each time, and how many operations took that long.
impl From<Times> for Vec<(u64, u64)> {
    fn from(Times(times): Times) -> Self {
        let recorded = times.iter_recorded();
        recorded
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Times {
    type Error = Failure;

    fn try_from(counts: Vec<(u64, u64)>) -> Result<Self, Failure> {
        let mut times = Self::new()?;
        for (took, count) in counts {
            times.0.saturating_record_n(took, count);
        }
        Ok(times)
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

    /// The same, with the time of each operation if that was taken.
    pub(crate) fn timed(mut self, times: Option<Times>) -> Self {
        self.times = times.map(|times| (times, 1));
        self
    }

    pub(crate) const fn lost(&mut self, lost: u64) {
        self.lost = lost;
    }

    /// Both sides' together: both sent at the same time, or only this one did.
    pub(crate) fn with(mut self, theirs: Self) -> Result<Self, Failure> {
        self.operations += theirs.operations;
        self.nanoseconds = self.nanoseconds.max(theirs.nanoseconds);
        self.lost += theirs.lost;
        match (&mut self.times, theirs.times) {
            (Some((ours, _)), Some((theirs, _))) => ours.0.add(theirs.0)?,
            (ours, theirs) => *ours = ours.take().or(theirs),
        }
        Ok(self)
    }

    /// The median and others of what was timed, in microseconds of one way.
    fn latency(&self) -> Option<[(&'static str, f64); 8]> {
        let (Times(times), ways) = self.times.as_ref()?;
        let usec = |nanoseconds: f64| nanoseconds / 1e3 / f64::from(*ways);
        let at = |quantile| usec(times.value_at_quantile(quantile) as f64);
        Some([
            ("min", usec(times.min() as f64)),
            ("median", at(0.5)),
            ("p90", at(0.9)),
            ("p99", at(0.99)),
            ("p99_9", at(0.999)),
            ("max", usec(times.max() as f64)),
            ("mean", usec(times.mean())),
            ("stdev", usec(times.stdev())),
        ])
    }

    /// Upper bounds in microseconds, and how many operations took at most that and more than the
    /// bound before.
    fn histogram(&self) -> Vec<(f64, u64)> {
        let Some((Times(times), ways)) = &self.times else {
            return Vec::new();
        };
        // In steps of a fifth.
        let steps = times.iter_log(1, 1.2).map(|step| {
            let usec = step.value_iterated_to() as f64 / 1e3 / f64::from(*ways);
            (usec, step.count_since_last_iteration())
        });
        steps.filter(|(_, count)| *count > 0).collect()
    }

    fn seconds(&self) -> f64 {
        self.nanoseconds as f64 / 1e9
    }

    fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds()
    }

    fn megabytes_per_second(&self, plan: &Plan) -> f64 {
        self.per_second() * f64::from(plan.size) / 1e6
    }

    /// Prints them.
    pub(crate) fn print(&self, plan: &Plan, json: bool) -> Result<(), Failure> {
        match json {
            true => say(self.json(plan)),
            false => say(self.table(plan)?.trim_end()),
        }
    }

    fn json(&self, plan: &Plan) -> Value {
        let latency = self.latency().map(BTreeMap::from);
        let mut all = json!({
            "plan": plan,
            "operations": self.operations,
            "lost": self.lost,
            "seconds": self.seconds(),
            "operations_per_second": self.per_second(),
            "megabytes_per_second": self.megabytes_per_second(plan),
            "latency_microseconds": latency,
        });
        if plan.histogram {
            let step = |(usec, count)| json!({ "up_to_microseconds": usec, "operations": count });
            all["histogram"] = self.histogram().into_iter().map(step).collect();
        }
        all
    }

    fn table(&self, plan: &Plan) -> Result<String, Failure> {
        let Plan {
            op,
            layer,
            size,
            qps,
            ..
        } = plan;
        let Self {
            operations, lost, ..
        } = self;
        let (s, seconds) = (if *qps == 1 { "" } else { "s" }, self.seconds());
        let mut text = format!(
            "{op} of {size} bytes on {layer}, {qps} connection{s}: {operations} in {seconds:.3} s\n"
        );
        if plan.bandwidth {
            let (megabytes, rate) = (self.megabytes_per_second(plan), self.per_second());
            writeln!(text, "  {megabytes:>12.2} MB/s {rate:>14.0} operations/s")?;
        }
        for (name, value) in self.latency().into_iter().flatten() {
            writeln!(text, "  {name:<8} {value:>12.2} usec")?;
        }
        if *lost > 0 {
            writeln!(text, "  {lost} datagrams were lost")?;
        }
        if plan.histogram {
            let steps = self.histogram();
            let most = steps.iter().map(|(_, count)| *count).max().unwrap_or(1);
            for (usec, count) in steps {
                let bar = "#".repeat(usize::try_from((count * 50).div_ceil(most))?);
                writeln!(text, "  up to {usec:>10.2} usec {count:>9} {bar}")?;
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::{Figures, Times};
    use crate::plan::Plan;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        plan: Plan,
    }

    /// Figures of operations that took these times in nanoseconds.
    fn figures(took: impl Iterator<Item = u64>, ways: u32) -> Figures {
        let mut times = Times::new().unwrap();
        let mut operations = 0;
        for nanoseconds in took {
            times.record(Duration::from_nanos(nanoseconds));
            operations += 1;
        }
        Figures {
            times: Some((times, ways)),
            ..Figures::bandwidth(operations, Duration::from_millis(500))
        }
    }

    /// Times below 2,048 ns are recorded exactly.
    #[test]
    fn percentiles_are_those_of_the_samples() {
        let all = figures((1..=1000).rev(), 1);
        let latency = all.latency().unwrap();
        let expected = [
            ("min", 0.001),
            ("median", 0.5),
            ("p90", 0.9),
            ("p99", 0.99),
            ("p99_9", 0.999),
            ("max", 1.0),
            ("mean", 0.5005),
        ];
        assert_eq!(latency[..7], expected);
        let ("stdev", stdev) = latency[7] else {
            panic!("{latency:?}");
        };
        // The standard deviation of 1..=n is the root of (n² - 1) / 12.
        assert!((stdev - 0.288_674_99).abs() < 1e-8, "{stdev}");
        // One way is half of a round trip.
        let halves = figures((1..=1000).map(|half| 2 * half), 2)
            .latency()
            .unwrap();
        assert_eq!(halves[..7], expected);
        let one = figures([7_000_000].into_iter(), 1).latency().unwrap();
        for (name, value) in &one[..7] {
            assert!((value / 7000.0 - 1.0).abs() < 1e-3, "{name} {value}");
        }
    }

    #[test]
    fn latency_beyond_a_minute_counts_as_a_minute() {
        let hours = figures([1, 1 << 60].into_iter(), 1);
        let latency = hours.latency().unwrap();
        let max = latency[5].1;
        assert!((max / 60e6 - 1.0).abs() < 1e-2, "{latency:?}");
    }

    #[test]
    fn a_histogram_counts_each_operation_once() {
        let options = Options::try_parse_from(["perf", "--histogram"]).unwrap();
        let took = [1000; 6].into_iter().chain([1500; 3]).chain([1_000_000]);
        let all = figures(took, 1);
        let steps = all.histogram();
        let counts: Vec<u64> = steps.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [6, 3, 1]);
        for (usec, least) in steps.iter().map(|(usec, _)| *usec).zip([1.0, 1.5, 1000.0]) {
            assert!((least..least * 1.21).contains(&usec), "{steps:?}");
        }
        let json = all.json(&options.plan);
        let operations = json["histogram"].as_array().unwrap().iter();
        let operations: Vec<u64> = operations
            .map(|step| step["operations"].as_u64().unwrap())
            .collect();
        assert_eq!(operations, counts);
        assert_eq!(json["histogram"][0]["up_to_microseconds"], steps[0].0);
        let table = all.table(&options.plan).unwrap();
        assert!(
            table.contains(&format!("6 {}\n", "#".repeat(50))),
            "{table}"
        );
        assert!(table.contains(&format!("1 {}\n", "#".repeat(9))), "{table}");
        let without = Plan {
            histogram: false,
            ..options.plan
        };
        assert!(all.json(&without).get("histogram").is_none());
        assert!(!all.table(&without).unwrap().contains('#'));
    }

    #[test]
    fn times_of_both_sides_are_in_one_histogram() {
        let ours = figures([1000; 6].into_iter().chain([70_000_000_000]), 1);
        let theirs = figures([1000; 2].into_iter().chain([1_234_567; 3]), 1);
        // As the server sends them.
        let theirs = serde_json::to_string(&theirs).unwrap();
        let both = ours.with(serde_json::from_str(&theirs).unwrap()).unwrap();
        let steps = both.histogram();
        let counts: Vec<u64> = steps.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts, both.operations), (vec![8, 3, 1], 12));
        let latency = both.latency().unwrap();
        assert_eq!(latency[1], ("median", 1.0));
    }

    #[test]
    fn rates_are_of_both_sides_and_the_longer_time() {
        let options = Options::try_parse_from(["perf", "--bandwidth", "--size", "1000"]).unwrap();
        let side = |operations, milliseconds, lost| Figures {
            lost,
            ..Figures::bandwidth(operations, Duration::from_millis(milliseconds))
        };
        let both = side(3000, 1500, 1).with(side(1000, 2000, 2)).unwrap();
        let json = both.json(&options.plan);
        for (name, value) in [
            ("operations", 4000.0),
            ("lost", 3.0),
            ("seconds", 2.0),
            ("operations_per_second", 2000.0),
            ("megabytes_per_second", 2.0),
        ] {
            assert_eq!(json[name].as_f64(), Some(value), "{name}: {json}");
        }
        assert!(json["latency_microseconds"].is_null(), "{json}");
        let table = both.table(&options.plan).unwrap();
        assert!(table.contains("2.00 MB/s"), "{table}");
        assert!(table.contains("3 datagrams were lost"), "{table}");
        assert!(!table.contains("median"), "{table}");
        let mut times = Times::new().unwrap();
        times.record(Duration::from_micros(2));
        let table = both.timed(Some(times)).table(&options.plan).unwrap();
        assert!(table.contains("2.00 MB/s"), "{table}");
        assert!(table.contains("  median           2.00 usec"), "{table}");
    }
}
