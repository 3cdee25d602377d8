//! Measurements of the examples, as a table for people.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::{env, io};

use crate::numbers::{digits, size, thousands};

/// A measurement of an example.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) operation: String,
    pub(super) bytes: u64,
    pub(super) iterations: u64,
    /// How long all iterations took together.
    pub(super) microseconds: f64,
    pub(super) verified: bool,
}

impl Row {
    /// Reads `RESULT op=write bytes=64 iters=1000 usec=12345.6 verified=yes`.
    pub(super) fn read(line: &str) -> Option<Self> {
        let words = line.strip_prefix("RESULT ")?.split_whitespace();
        let values: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let microseconds: f64 = values.get("usec")?.parse().ok()?;
        let is_time = microseconds.is_finite() && microseconds > 0.0;
        is_time.then_some(Self {
            operation: (*values.get("op")?).to_owned(),
            bytes: values.get("bytes")?.parse().ok()?,
            iterations: values.get("iters")?.parse().ok()?,
            microseconds,
            verified: *values.get("verified")? == "yes",
        })
    }
}

/// The rows of one step.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub(super) title: &'a str,
    /// The contents of its rows, in a few words.
    pub(super) shows: &'a str,
    pub(super) rows: Vec<Row>,
}

/// Whether to print colours: on a terminal, unless `NO_COLOR` is set.
pub(super) fn has_colour() -> bool {
    let is_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_unwanted
}

const BOLD: &str = "1";
const GREEN: &str = "32";
const RED: &str = "1;31";

/// The table, with a heading for each step that has rows.
pub(super) fn table(sections: &[Section<'_>], colour: bool) -> String {
    let paint = |code: &str, text: &str| match colour {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let mut lines = Vec::new();
    for Section { title, shows, rows } in sections {
        if rows.is_empty() {
            continue;
        }
        lines.push(paint(BOLD, title));
        lines.push(format!("  {shows}"));
        let heads = ["", "size", "times", "each", "rate"].map(str::to_owned);
        lines.push(line(&heads));
        for row in rows {
            let verified = match row.verified {
                true => paint(GREEN, "verified"),
                false => paint(RED, "NOT VERIFIED"),
            };
            lines.push(format!("{}   {verified}", line(&cells(row))));
        }
        lines.push(String::new());
    }
    lines.join("\n")
}

fn line(cells: &[String; 5]) -> String {
    let [operation, size, times, each, rate] = cells;
    format!("  {operation:<26}{size:>9}{times:>10}{each:>12}{rate:>13}")
}

/// The name of an operation in words.
fn words(operation: &str) -> String {
    operation
        .replace("_imm", " with immediate")
        .replace('_', " ")
}

fn cells(row: &Row) -> [String; 5] {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let (bytes, iterations) = (row.bytes as f64, row.iterations as f64);
    [
        words(&row.operation),
        size(row.bytes),
        thousands(row.iterations),
        time(row.microseconds / iterations),
        // Bytes per microsecond are megabytes per second.
        rate(bytes * iterations / row.microseconds),
    ]
}

fn time(microseconds: f64) -> String {
    match microseconds {
        _ if microseconds >= 999_500.0 => format!("{} s", digits(microseconds / 1e6)),
        _ if microseconds >= 999.5 => format!("{} ms", digits(microseconds / 1e3)),
        _ => format!("{} µs", digits(microseconds)),
    }
}

fn rate(megabytes: f64) -> String {
    match megabytes {
        _ if megabytes >= 999.5 => format!("{} GB/s", digits(megabytes / 1e3)),
        _ if megabytes >= 0.9995 => format!("{} MB/s", digits(megabytes)),
        _ => format!("{} kB/s", digits(megabytes * 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, Section, rate, table, time};

    const LINE: &str = "RESULT op=write bytes=65536 iters=2000 usec=250000.0 verified=yes";

    fn sections(lines: &[&str]) -> [Section<'static>; 2] {
        let rows = lines.iter().filter_map(|line| Row::read(line)).collect();
        let empty = Section {
            title: "the device",
            shows: "nothing",
            rows: Vec::new(),
        };
        let full = Section {
            title: "writes",
            shows: "memory is written",
            rows,
        };
        [empty, full]
    }

    #[test]
    fn results_are_shown_with_units_below_their_step() {
        let slow = "RESULT op=write_imm bytes=8 iters=3 usec=4500000 verified=no";
        let expected = "\
writes
  memory is written
                                 size     times        each         rate
  write                        64 KiB     2,000      125 µs     524 MB/s   verified
  write with immediate            8 B         3      1.50 s    0.01 kB/s   NOT VERIFIED
";
        assert_eq!(table(&sections(&[LINE, slow]), false), expected);
    }

    #[test]
    fn colours_are_around_words_only() {
        let plain = table(&sections(&[LINE]), false);
        let coloured = table(&sections(&[LINE]), true);
        assert!(coloured.contains("\x1b[32mverified\x1b[0m\n"), "{coloured}");
        let mut without = coloured;
        for code in ["\x1b[1m", "\x1b[32m", "\x1b[0m"] {
            without = without.replace(code, "");
        }
        assert_eq!(without, plain);
    }

    #[test]
    fn units_are_those_that_people_read() {
        assert_eq!(
            [0.5, 99.96, 999.4].map(time),
            ["0.50 µs", "100 µs", "999 µs"]
        );
        assert_eq!([999.6, 2.5e6].map(time), ["1.00 ms", "2.50 s"]);
        assert_eq!(
            [0.5, 12.34, 1000.0].map(rate),
            ["500 kB/s", "12.3 MB/s", "1.00 GB/s"]
        );
    }

    #[test]
    fn invalid_result_line_is_no_result() {
        assert_eq!(Row::read("1000 bytes in 3 s"), None);
        for end in ["0 verified=yes", "NaN verified=yes"] {
            let line = format!("RESULT op=write bytes=1000 iters=50 usec={end}");
            assert_eq!(Row::read(&line), None);
        }
        assert_eq!(Row::read("RESULT op=write"), None);
    }
}
