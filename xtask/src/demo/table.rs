//! Measurements of `perf`, as a table for people.

use std::io::IsTerminal as _;
use std::{env, io};

use tinyjson::JsonValue;

use crate::numbers::digits;
use crate::workspace::{at, text};

/// A row of the table: an operation of a layer.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) title: &'static str,
    /// As `perf` calls them.
    pub(super) layer: &'static str,
    pub(super) op: &'static str,
}

impl Row {
    pub(super) const fn new(title: &'static str, layer: &'static str, op: &'static str) -> Self {
        Self { title, layer, op }
    }
}

/// The figures of a run of `perf`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    layer: String,
    op: String,
    figure: Figure,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// The median, in microseconds.
    Latency(f64),
    /// In megabytes a second.
    Bandwidth(f64),
}

impl Measured {
    /// Reads the line that `perf --json` prints.
    pub(super) fn read(line: &str) -> Option<Self> {
        let json: JsonValue = line.parse().ok()?;
        let number = |keys: &[&str]| at(&json, keys)?.get::<f64>().copied();
        let is_bandwidth: bool = *at(&json, &["plan", "bandwidth"])?.get()?;
        Some(Self {
            layer: text(&json, &["plan", "layer"])?.to_owned(),
            op: text(&json, &["plan", "op"])?.to_owned(),
            figure: match is_bandwidth {
                false => Figure::Latency(number(&["latency_microseconds", "median"])?),
                true => Figure::Bandwidth(number(&["megabytes_per_second"])?),
            },
        })
    }
}

/// Whether to print colours: on a terminal, unless `NO_COLOR` is set.
pub(super) fn has_colour() -> bool {
    let is_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_unwanted
}

/// The table of what was measured: each row with its bars, which compare it with the first one's.
pub(super) fn table(rows: &[Row], measured: &[Measured], colour: bool) -> String {
    let paint = |code: &str, text: String| match colour {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text,
    };
    let figures = |row: &Row| {
        let its = measured.iter();
        let its = its.filter(|it| it.layer == row.layer && it.op == row.op);
        its.fold((None, None), |(latency, bandwidth), it| match it.figure {
            Figure::Latency(micros) => (Some(micros), bandwidth),
            Figure::Bandwidth(megabytes) => (latency, Some(megabytes)),
        })
    };
    let (first_latency, first_bandwidth) = rows.first().map(figures).unwrap_or_default();
    let line = |title: &str, cells: [&str; 4]| {
        let [latency, by, bandwidth, times] = cells;
        format!("  {title:<34}{latency:>11}{by:>9}{bandwidth:>14}{times:>9}")
    };
    let heads = ["64 bytes", "", "64 KiB", ""];
    let mut lines = vec![paint("1", line("", heads))];
    for row in rows {
        let (latency, bandwidth) = figures(row);
        let ratio = |a: Option<f64>, b: Option<f64>| {
            let ratio = a.zip(b).map(|(a, b)| format!("{}x", digits(a / b)));
            ratio.unwrap_or_default()
        };
        let cells = [
            &latency.map(time).unwrap_or_default(),
            &ratio(latency, first_latency),
            &bandwidth.map(rate).unwrap_or_default(),
            &ratio(bandwidth, first_bandwidth),
        ];
        let verified = paint("32", "verified".to_owned());
        lines.push(format!(
            "{}   {verified}",
            line(row.title, cells.map(String::as_str))
        ));
    }
    lines.join("\n") + "\n"
}

fn time(microseconds: f64) -> String {
    match microseconds {
        _ if microseconds >= 999.5 => format!("{} ms", digits(microseconds / 1e3)),
        _ => format!("{} µs", digits(microseconds)),
    }
}

fn rate(megabytes: f64) -> String {
    match megabytes {
        _ if megabytes >= 999.5 => format!("{} GB/s", digits(megabytes / 1e3)),
        _ => format!("{} MB/s", digits(megabytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Measured, Row, table};

    #[test]
    fn figures_are_in_the_row_of_their_layer_beside_their_ratio_to_the_first() {
        let rows = [
            Row::new("TCP", "tcp", "send"),
            Row::new("a read", "core", "read"),
        ];
        let lines = [
            r#"{"plan":{"layer":"tcp","op":"send","bandwidth":false},"latency_microseconds":{"median":10.0}}"#,
            r#"{"plan":{"layer":"tcp","op":"send","bandwidth":true},"megabytes_per_second":2000.0,"latency_microseconds":null}"#,
            r#"{"plan":{"layer":"core","op":"read","bandwidth":false},"latency_microseconds":{"median":5.0}}"#,
            r#"{"plan":{"layer":"core","op":"read","bandwidth":true},"megabytes_per_second":500.0}"#,
        ];
        let measured = lines.map(|line| Measured::read(line).unwrap());
        let expected = "
                                       64 bytes                 64 KiB
  TCP                                   10.0 µs    1.00x     2.00 GB/s    1.00x   verified
  a read                                5.00 µs    0.50x      500 MB/s    0.25x   verified
";
        let text = table(&rows, &measured, false);
        let trimmed: Vec<_> = text.lines().map(str::trim_end).collect();
        assert_eq!(format!("\n{}\n", trimmed.join("\n")), expected);
        assert!(table(&rows, &measured, true).contains("\x1b[32mverified\x1b[0m"));
        assert_eq!(Measured::read("1000 bytes in 3 s"), None);
    }
}
